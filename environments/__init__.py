"""Agent environments with per-turn credit: rollouts, turn rewards, advantages, records."""

import importlib.util
import logging
import sys
from pathlib import Path


def _refuse_foreign_tools() -> None:
    """Exit if a user's `tools` next to their environment file would be imported instead of ours."""
    own = Path(__file__).resolve().parent.parent / "tools" / "__init__.py"
    spec = importlib.util.find_spec("tools")
    found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
    if found == own:
        return
    if found is None:
        raise ImportError(f"Turnwise's own package 'tools' is missing from {own.parent.parent}.")
    foreign = found.parent if found.name == "__init__.py" else found
    message = (
        f"{foreign} hides Turnwise's own package 'tools': rename it, or take its folder off Python's path."
    )
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None and Path(script).resolve().parent == foreign.parent:
        # `python my_env.py` next to the folder: a message without traceback.
        sys.stderr.write(f"turnwise: error: {message}\n")
        raise SystemExit(2)
    raise ImportError(message)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "PyTorch was not found" not in record.getMessage()


_refuse_foreign_tools()
logging.getLogger("transformers").addFilter(_is_no_advice)
