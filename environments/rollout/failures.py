"""What is recorded of a rollout that broke."""

import traceback
from pathlib import Path

from environments.inference.endpoint import without_credentials
from environments.trajectory import Failure, StopReason
from tools.errors import PolicyError, SandboxError, TurnwiseError


def failure_of(error: Exception, *, sibling: int, turns: int) -> Failure:
    """The failure of a sibling that broke with `error` after so many finished turns."""
    return Failure(
        sibling=sibling,
        stop_reason=_stop_reason(error),
        error=_writable(f"{type(error).__name__}: {error}{_in(_where(error))}"),
        traceback=_writable("".join(traceback.format_exception(error))),
        turns=turns,
        error_class=type(error).__name__,
        where=_where(error),
    )


def _stop_reason(error: Exception) -> StopReason | None:
    if isinstance(error, PolicyError):
        return StopReason.POLICY_ERROR
    return StopReason.SANDBOX_LOST if isinstance(error, SandboxError) else None


def _where(error: Exception) -> str | None:
    """Where code broke; an error of ours says what to do, and not where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, TurnwiseError) or not frames:
        return None
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}"


def _in(where: str | None) -> str:
    return "" if where is None else f" ({where})"


def _writable(text: str) -> str:
    """The text as a record may hold it: an error may quote a file name that is no UTF-8, or a URL."""
    return without_credentials(text).encode("utf-8", "backslashreplace").decode()
