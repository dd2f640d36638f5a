"""What a check found: one row of the table that `turnwise check` ends with."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from environments.env_checks.checked_env import CheckedEnv

Result = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row."""

    check: str
    result: Result
    found: str
    """In words; of a check that was skipped, why."""

    def to_json(self) -> dict[str, str]:
        """As `--json` shows it."""
        return asdict(self)


Answer = tuple[Result, str]
"""A finding without the name of its check."""
Check = Callable[["CheckedEnv"], Awaitable[Answer]]


class Report(Protocol):
    """Where findings go as they are made: the process that makes them may not live to tell them later."""

    def finding(self, finding: Finding) -> None:
        """A row."""
        ...

    def shown(self, name: str, value: Mapping[str, Any] | list[Any]) -> None:
        """What is shown above the table: `prompt`, `tools`, `hooks`, `rollout`, as JSON values."""
        ...

    def begins(self, check: str) -> None:
        """A check begins: a process that ends does so in it."""
        ...

    def doing(self, what: str) -> None:
        """What of the environment's is called now."""
        ...

    def says(self, line: str) -> None:
        """What the watchdog has to say."""
        ...

    def is_alive(self, blocked_at: str | None) -> None:
        """Twice a second, as long as Python runs at all; where the event loop is blocked, if it is."""
        ...
