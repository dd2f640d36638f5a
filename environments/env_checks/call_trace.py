"""What of an environment's code was called, in order, what it gave and how long it took."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

from environments.containment.hook_calls import HookCalls
from environments.data.item_json import stable_text
from environments.inference.server_text import one_line
from environments.rollout.failures import raised_by_user
from tools.errors import ContextOverflow, ToolError

_SHOWN_CHARS = 160
_NO_CALLS = ("model", "the image")
"""What is called in the same way, and is no code of the environment's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """One call."""

    sibling: int
    name: str
    """`prepare`, `score_turn`, `tool terminal`, …"""
    given: str
    """What came back, as JSON as far as that goes, or what it raised."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As `--json` shows it."""
        return asdict(self) | {"given": one_line(self.given[: 2 * _SHOWN_CHARS])}


@dataclass(slots=True, kw_only=True)
class CallTrace:
    """The calls of the rollouts that are recorded, and the longest call of each name of all."""

    doing: Callable[[str], None]
    """Told before each call."""
    longest_s: dict[str, float] = field(default_factory=dict[str, float])
    _recorded: list[TracedCall] | None = None

    @contextmanager
    def recorded(self) -> Generator[list[TracedCall]]:
        """The calls that end in this time."""
        calls: list[TracedCall] = []
        self._recorded = calls
        try:
            yield calls
        finally:
            self._recorded = None

    def ended(self, sibling: int, name: str, given: Callable[[], str], seconds: float) -> None:
        """Note a call."""
        self.longest_s[name] = max(seconds, self.longest_s.get(name, 0.0))
        if self._recorded is not None:
            self._recorded.append(
                TracedCall(sibling=sibling, name=name, given=given(), seconds=round(seconds, 6))
            )


class TracedCalls(HookCalls):
    """The calls of one rollout, noted as they end."""

    def __init__(self, trace: CallTrace, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._trace = trace

    async def run(self, function: Callable[[], Any], *, doing: str, **how: Any) -> Any:
        """As `HookCalls.run`."""
        if doing.startswith(_NO_CALLS):
            return await super().run(function, doing=doing, **how)
        name = doing.rpartition(": ")[2].partition(", ")[0]
        self._trace.doing(doing)
        sibling, started = self._in_flight.sibling, monotonic()
        try:
            given = await super().run(function, doing=doing, **how)
        except BaseException as error:
            text = _raised(raised_by_user(error))
            self._trace.ended(sibling, name, lambda: text, monotonic() - started)
            raise
        self._trace.ended(sibling, name, lambda: _text_of(given), monotonic() - started)
        return given


def _raised(error: BaseException) -> str:
    """What a call raised; what it may raise to answer is no error."""
    if isinstance(error, ToolError):
        return f"told the model: {error}"
    if isinstance(error, ContextOverflow):
        return f"ended the rollout: {error}"
    return f"raised {type(error).__name__}"


def _text_of(given: Any) -> str:
    try:
        return stable_text(given)
    except Exception as error:  # noqa: BLE001  # it is read by code of the environment's own
        return f"<{type(given).__name__}, which cannot be read: {type(error).__name__}>"
