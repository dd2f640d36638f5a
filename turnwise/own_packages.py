"""Checks that `environments` and `tools` are Turnwise's packages, and not a user's of the same name."""

import importlib.util
import sys
from pathlib import Path

OWN_PACKAGES = ("environments", "tools")
_HOME = Path(__file__).resolve().parent.parent


def find_own_packages() -> None:
    """Check the packages without importing them.

    Raises:
        ImportError: if one is missing, or hidden by another file or folder (`path`).
    """
    for name in OWN_PACKAGES:
        found = _origin(name)
        if found is None:
            raise ImportError(
                f"Turnwise's own package {name!r} is missing from {_HOME}; install Turnwise again.", name=name
            )
        if found != _HOME / name:
            raise ImportError(
                f"{found} hides Turnwise's own package {name!r}: rename it, or take its folder off "
                f"Python's path (PYTHONPATH, or the folder you start Python in).",
                name=name,
                path=str(found),
            )


def refuse_foreign_packages() -> None:
    """Check the packages; a script beside the file that hides them exits with one line.

    Raises:
        ImportError: if one is missing or hidden, in a notebook, a test run or another program.
    """
    try:
        find_own_packages()
    except ImportError as error:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if script is None or error.path is None:
            raise
        foreign = Path(error.path)
        if Path(script).resolve().parent not in (foreign, foreign.parent):
            raise
        # The user of `python my_env.py` can rename the folder, and needs no traceback.
        sys.stderr.write(f"turnwise: error: {error}\n")
        raise SystemExit(2) from None


def _origin(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        origin = Path(spec.origin).resolve()
        return origin.parent if origin.name == "__init__.py" else origin
    # A folder without `__init__.py`: Python uses it only if our package is not on the path.
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0]).resolve() if folders else None
