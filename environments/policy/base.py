"""What a policy is: it writes the assistant turns, and may go on from the open row of token ids."""

from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, runtime_checkable

import orjson

from environments.trajectory import CompactNumbers, Completion, Message, compact_ids
from tools.calls import ToolSpec
from tools.errors import ConfigError


class OpenRow:
    """What the model saw and sampled last. It grows only at its end, and only between two requests."""

    def __init__(self) -> None:
        self.messages = 0
        """How many of the messages that the model sees it holds: those before, and the turn it ends with."""
        self.sampled_start = 0
        self.size = 0
        """Number of ids."""
        self._ids = array("i")
        self._json = bytearray()
        self._written = 0

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids, not copied: read them before the next turn."""
        return CompactNumbers(self._ids)

    def extend(self, unsampled: Sequence[int], sampled: Sequence[int], *, messages: int) -> None:
        """Add ids that the model saw, and then sampled; `messages` is what the row holds with that turn."""
        self._ids.extend(array("i", unsampled))  # twice as fast as one id after the other
        self.sampled_start = len(self._ids)
        self._ids.extend(array("i", sampled))
        self.size = len(self._ids)
        self.messages = messages

    def rest_of(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """What of a whole prompt follows the row; `None`: the prompt does not begin with it."""
        end = len(self._ids)
        # Most prompts that do not go on differ in their length or before their end already.
        if len(prompt_ids) < end or (end and prompt_ids[end - 1] != self._ids[-1]):
            return None
        try:
            goes_on = compact_ids(prompt_ids[:end]) == self.token_ids
        except (TypeError, ValueError):  # they are checked later
            return None
        return tuple(prompt_ids[end:]) if goes_on else None

    def json(self) -> bytes:
        """The ids as they stand in a JSON list, without its brackets: only what is new is written."""
        new = self._ids[self._written :]
        if new:
            if self._json:
                self._json += b","
            self._json += orjson.dumps(new.tolist())[1:-1]
            self._written = len(self._ids)
        return bytes(self._json)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One model call. It carries the whole conversation, so a policy keeps no state between calls."""

    messages: tuple[Message, ...]
    kind: Literal["act", "summary"] = "act"
    """`summary`: the last message asks to sum the conversation up; what is called then is not run."""
    position: int | None = None
    """Messages of the whole conversation so far, those that the model does not see any more included;
    `None`: as many as it sees."""
    tools: tuple[ToolSpec, ...] = ()
    seed: int = 0
    """The rollout's seed, the same for each of its calls."""
    rollout_seed: int | None = None
    """The rollout's seed, where `seed` is that of one of its threads."""
    max_tokens: int = 1024
    max_row_tokens: int | None = None
    """Tokens that the row of this turn may have; what is longer for certain need not be rendered."""
    row: OpenRow | None = None
    """The row of the turns so far, for a policy that sends ids and goes on from them; others ignore it."""
    prompt_tokens: int | None = None
    """Of the prompt, where they were counted, as they are for condensers; they may be an estimate."""

    @property
    def number(self) -> int:
        """Differs for each call of a rollout: what is sampled and what calls are named by."""
        return len(self.messages) if self.position is None else self.position


class Policy(Protocol):
    """Writes assistant turns. What it gives is checked before it joins a row: see `check_completion`."""

    @property
    def name(self) -> str:
        """What the record calls this policy, for example `scripted:0.6` or the model's name."""
        ...

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample the next assistant message.

        Raises:
            PolicyError: the call is lost after its retries.
            ContextOverflow: the prompt is longer than the model's context.
        """
        ...


@runtime_checkable
class CheckedPolicy(Protocol):
    async def check(self) -> None:
        """Raise ConfigError while it cannot; buys no completion."""
        ...


PromptCounter = Callable[[CompletionRequest], Awaitable[int | None]]


def prompt_counter(policy: Policy) -> PromptCounter | None:
    """`async def prompt_tokens(self, request)` of a policy that has it: tokens of the prompt of a request.

    It counts what the policy would sample after, tools included, and buys nothing; `None`: it does not know.
    It may raise ContextOverflow where there are more than it has room for. Condensers of a policy without it
    get estimates.
    """
    counter: Any = getattr(policy, "prompt_tokens", None)
    return cast("PromptCounter", counter) if callable(counter) else None


def vocabulary_size(policy: Policy) -> int | None:
    """One more than the largest id, where a policy has a `vocabulary_size`; what it samples is held to it."""
    # Asked for each completion: `isinstance` of a protocol takes 20 µs.
    return getattr(policy, "vocabulary_size", None)


def window_of(policy: Policy) -> int | None:
    """Tokens that a policy's model takes, prompt and completion, where it has `context_tokens`."""
    given: object = getattr(policy, "context_tokens", None)
    return given if type(given) is int and given > 1 else None


def checked_policy(policy: Policy) -> Policy:
    """A policy that the user brings.

    Raises:
        ConfigError: it has no name that a record could hold, or nothing to call.
    """
    name: object = getattr(policy, "name", None)
    complete: object = None if isinstance(policy, type) else getattr(policy, "complete", None)
    if not isinstance(name, str) or not name or not callable(complete):
        raise ConfigError(
            f"policy {policy!r:.100} has name {name!r}; a policy has a `name`, which the record shows, and "
            f"`async def complete(self, request)`, which gives a turnwise.Completion"
        )
    return policy
