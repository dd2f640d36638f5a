"""The `Policy` protocol, its request, and the open row of token ids that a policy may extend."""

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, runtime_checkable

import orjson

from environments.trajectory import CompactNumbers, Completion, Message, TextScore, compact_ids
from tools.calls import ToolSpec
from tools.errors import ConfigError, PolicyError


class OpenRow:
    """The token ids that the model saw and sampled so far, ending with a sampled turn."""

    def __init__(self) -> None:
        self.messages = 0
        self.sampled_start = 0
        self.size = 0
        """Number of ids."""
        self._ids = array("i")
        self._json = bytearray()
        self._written = 0

    @property
    def token_ids(self) -> Sequence[int]:
        """All ids, not copied: valid until the next turn."""
        return CompactNumbers(self._ids)

    def extend(self, unsampled: Sequence[int], sampled: Sequence[int], *, messages: int) -> None:
        self._ids.extend(array("i", unsampled))
        self.sampled_start = len(self._ids)
        self._ids.extend(array("i", sampled))
        self.size = len(self._ids)
        self.messages = messages

    def rest_of(self, prompt_ids: Sequence[int]) -> tuple[int, ...] | None:
        """Return the part of a prompt after this row, or None if the prompt does not start with the row."""
        end = len(self._ids)
        # Cheap test: prompts of other rows mostly differ in length or at this row's end.
        if len(prompt_ids) < end or (end and prompt_ids[end - 1] != self._ids[-1]):
            return None
        try:
            goes_on = compact_ids(prompt_ids[:end]) == self.token_ids
        except (TypeError, ValueError):
            return None
        return tuple(prompt_ids[end:]) if goes_on else None

    def json(self) -> bytes:
        """Return the ids as JSON without the brackets; only new ids are encoded."""
        new = self._ids[self._written :]
        if new:
            if self._json:
                self._json += b","
            self._json += orjson.dumps(new.tolist())[1:-1]
            self._written = len(self._ids)
        return bytes(self._json)


class CannotEnforceError(PolicyError):
    """The policy cannot sample under the constraint of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What an agent demands of a completion: JSON of a schema, a call of a tool, or one call at most."""

    fields: tuple[str, ...]
    """The fields of the agent's request that demand a schema or a tool."""
    schema: Mapping[str, Any] | None = None
    """The JSON schema of its text; `{"type": "object"}` for any JSON object."""
    tool: str | None = None
    """The tool that it must call; empty for any."""
    single_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One model call with the whole conversation, so that a policy keeps no state between calls."""

    messages: tuple[Message, ...]
    kind: Literal["act", "summary"] = "act"
    """`summary`: the last message asks for a summary of the conversation; tool calls in the reply are not
    run."""
    position: int | None = None
    """Number of messages in the whole conversation, including those hidden from the model; None:
    `len(messages)`."""
    tools: tuple[ToolSpec, ...] = ()
    seed: int = 0
    max_tokens: int = 1024
    max_row_tokens: int | None = None
    """Limit of the row of this turn; prompts that are certainly longer need not be rendered."""
    row: OpenRow | None = None
    """The row of the turns so far, which policies that send token ids extend."""
    prompt_tokens: int | None = None
    """Token count of the prompt if a condenser needed it; may be an estimate."""
    stops: tuple[str, ...] = ()
    """Texts after which to stop. The completion keeps them, and may go on where a server does not stop."""
    constraint: Constraint | None = None
    """What to enforce while sampling; a policy that cannot raises CannotEnforceError."""

    @property
    def number(self) -> int:
        return len(self.messages) if self.position is None else self.position


class Policy(Protocol):
    """Writes assistant turns. `check_completion` validates each completion before it joins a row."""

    @property
    def name(self) -> str:
        """The policy's name in the record, such as `scripted:0.6` or the model's name."""
        ...

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample the next assistant message.

        Raises:
            PolicyError: if the call failed after all retries.
            ContextOverflow: if the prompt exceeds the model's context.
        """
        ...


@runtime_checkable
class CheckedPolicy(Protocol):
    """A policy that can be checked before the first rollout."""

    async def check(self) -> None:
        """Raise ConfigError if the policy cannot be used; must not sample."""
        ...


PromptCounter = Callable[[CompletionRequest], Awaitable[int | None]]


def find_prompt_counter(policy: Policy) -> PromptCounter | None:
    """Return the policy's optional `async def prompt_tokens(self, request) -> int | None`.

    It counts the prompt's tokens, tools included, without sampling; None if it cannot. It may raise
    ContextOverflow. Condensers estimate the count for a policy without this method.
    """
    counter: Any = getattr(policy, "prompt_tokens", None)
    return cast("PromptCounter", counter) if callable(counter) else None


ScoreText = Callable[[CompletionRequest, str], Awaitable[TextScore]]
NO_SCORES = (
    "gives no log-probabilities of a given text; vLLM and SGLang do where they get token ids "
    "(--openai.server_type vllm, vllm_generate or sglang), and a model in this process"
)


def find_scorer(policy: Policy) -> ScoreText:
    """Return the policy's method `score(request, text)`, which is optional: it gives a TextScore.

    It scores the text as the beginning of the next assistant message, from the place where the policy would
    sample. The text is tokenised on its own: no token joins it to the prompt, none of the chat format counts.
    """
    scorer: Any = getattr(policy, "score", None)
    if not callable(scorer):
        raise ConfigError(f"the policy {policy.name} {NO_SCORES}")
    return cast("ScoreText", scorer)


def find_window(policy: Policy) -> int | None:
    given: object = getattr(policy, "context_tokens", None)
    return given if type(given) is int and given > 1 else None


def validate_policy(policy: Policy) -> Policy:
    name: object = getattr(policy, "name", None)
    complete: object = None if isinstance(policy, type) else getattr(policy, "complete", None)
    if not isinstance(name, str) or not name or not callable(complete):
        raise ConfigError(
            f"policy {policy!r:.100} has name {name!r}; a policy has a `name`, which the record shows, and "
            f"`async def complete(self, request)`, which gives a turnwise.Completion"
        )
    return policy
