"""Reads a server's reply to a chat request, and refuses one whose tokens do not fit together."""

import math
from dataclasses import dataclass

from pydantic import ValidationError

from environments.inference.openai_wire import ChatReply, WireChoice, first_problem
from environments.inference.server_text import start_of
from environments.trajectory import NOT_SAMPLED, Message

_CLAMPED = -9999.0
"""What vLLM reports for a token whose logprob it does not know."""


class ReplyError(ValueError):
    """A reply that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The token ids that a server gave."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """One per sampled token; `None`: the server gave none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    """What a server sampled."""

    message: Message
    finish_reason: str
    tokens: SampledTokens | None
    """`None`: the server gave text alone."""


def read_reply(content: bytes, call_prefix: str) -> SampledMessage:
    """The message of a reply, with its tokens where the server gave them.

    Args:
        content: the body of the reply.
        call_prefix: names tool calls that have no id.

    Raises:
        ReplyError: no chat completion, or what the server reports does not fit together.
    """
    try:
        reply = ChatReply.model_validate_json(content)
    except ValidationError as error:
        raise ReplyError(f"no chat completion ({first_problem(error)}): {start_of(content)}") from error
    choice = reply.choices[0]
    if choice.finish_reason in ("abort", "error"):
        raise ReplyError(f"the server gave up (finish_reason {choice.finish_reason!r})")
    return SampledMessage(
        message=choice.message.to_message(call_prefix),
        finish_reason=choice.finish_reason,
        tokens=_tokens(reply.prompt_token_ids or choice.prompt_token_ids, choice),
    )


def _tokens(prompt_ids: list[int] | None, choice: WireChoice) -> SampledTokens | None:
    if choice.token_ids is None:
        return None
    if not prompt_ids:
        raise ReplyError("the server gave token_ids without prompt_token_ids")
    if not choice.token_ids:
        raise ReplyError("the server gave empty token_ids; a completion has at least its stop token")
    return SampledTokens(
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(choice.token_ids),
        logprobs=_checked_logprobs(choice, len(choice.token_ids)),
    )


def _checked_logprobs(choice: WireChoice, tokens: int) -> tuple[float, ...] | None:
    if choice.logprobs is None or choice.logprobs.content is None:
        return None
    logprobs = tuple(entry.logprob for entry in choice.logprobs.content)
    if len(logprobs) != tokens:
        raise ReplyError(f"the server gave {len(logprobs)} logprobs for {tokens} token_ids")
    for index, logprob in enumerate(logprobs):
        if not math.isfinite(logprob) or logprob == _CLAMPED or logprob >= NOT_SAMPLED:
            raise ReplyError(f"the server gave the logprob {logprob} at token {index} of {tokens}")
    return logprobs
