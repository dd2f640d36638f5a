"""Whether Python finds Turnwise's packages `environments` and `tools`, or a user's own of the same name."""

import importlib.util
import sys
from pathlib import Path

OWN_PACKAGES = ("environments", "tools")
_HOME = Path(__file__).resolve().parent.parent


def find_own_packages() -> None:
    """Import nothing, only look.

    Raises:
        ImportError: one is missing, or hidden by something else; `path` is what hides it.
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
    """End a script that stands beside what hides our packages with one line; elsewhere raise.

    Raises:
        ImportError: as `find_own_packages`; in a notebook, a test run or another's program.
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
        # Whoever runs `python my_env.py` can rename the folder, and needs no traceback for that.
        sys.stderr.write(f"turnwise: error: {error}\n")
        raise SystemExit(2) from None


def _origin(name: str) -> Path | None:
    """The folder or file that `import name` runs; `None` when there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        origin = Path(spec.origin).resolve()
        return origin.parent if origin.name == "__init__.py" else origin
    # A folder without `__init__.py`: Python takes it only where ours is not on the path at all.
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0]).resolve() if folders else None
