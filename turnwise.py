"""The `turnwise` command: makes sure that Python finds Turnwise's own packages, then hands over to them."""

import importlib.util
import sys
from pathlib import Path

OWN_PACKAGES = ("environments", "tools")


def main() -> None:
    """Run the command line."""
    problem = shadowed_package()
    if problem is not None:
        sys.stderr.write(f"turnwise: error: {problem}\n")
        sys.exit(2)
    # Only now: an import at the top would already have run the wrong package.
    from environments.cli.main import main as cli_main  # noqa: PLC0415

    sys.exit(cli_main())


def shadowed_package() -> str | None:
    """One sentence about a foreign `environments` or `tools` that hides ours; `None` when all is well."""
    home = Path(__file__).resolve().parent
    for name in OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if found is None:
            return f"Turnwise's own package {name!r} is missing from {home}; install Turnwise again."
        if found != home / name / "__init__.py":
            foreign = found.parent if found.name == "__init__.py" else found
            return (
                f"{foreign} hides Turnwise's own package {name!r}: rename it, or take its folder off "
                f"Python's path (PYTHONPATH, or the folder you start Python in)."
            )
    return None


if __name__ == "__main__":
    main()
