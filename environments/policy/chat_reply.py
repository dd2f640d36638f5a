"""Makes a completion from a server's reply, and refuses one whose tokens do not fit together."""

import math

from environments.policy.base import CompletionRequest
from environments.policy.openai_wire import ChatReply, WireChoice
from environments.policy.renderer import Renderer
from environments.trajectory import NOT_SAMPLED, Completion, Message

_CLAMPED = -9999.0
"""What vLLM reports for a token whose logprob it does not know."""


def completion_of(reply: ChatReply, request: CompletionRequest, renderer: Renderer) -> Completion:
    """The completion of a reply: exact when it has token ids, else made from its text by `renderer`.

    Raises:
        ValueError: what the server reports does not fit together.
    """
    choice = reply.choices[0]
    if choice.finish_reason in ("abort", "error"):
        raise ValueError(f"the server gave up (finish_reason {choice.finish_reason!r})")
    message = choice.message.to_message(f"call_{request.seed}_{len(request.messages)}")
    if choice.token_ids is None:
        return _approximate(message, choice.finish_reason, request, renderer)
    prompt_ids = reply.prompt_token_ids or choice.prompt_token_ids
    if not prompt_ids:
        raise ValueError("the server gave token_ids without prompt_token_ids")
    if not choice.token_ids:
        raise ValueError("the server gave empty token_ids; a completion has at least its stop token")
    return Completion(
        message=message,
        finish_reason=choice.finish_reason,
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(choice.token_ids),
        logprobs=_checked_logprobs(choice, len(choice.token_ids)),
        exact=True,
    )


def _approximate(
    message: Message, finish_reason: str, request: CompletionRequest, renderer: Renderer
) -> Completion:
    return Completion(
        message=message,
        finish_reason=finish_reason,
        prompt_ids=renderer.prompt_ids(request.messages, request.tools),
        token_ids=renderer.completion_ids(message, stopped=finish_reason != "length"),
        logprobs=None,
        exact=False,
    )


def _checked_logprobs(choice: WireChoice, tokens: int) -> tuple[float, ...] | None:
    if choice.logprobs is None or choice.logprobs.content is None:
        return None
    logprobs = tuple(entry.logprob for entry in choice.logprobs.content)
    if len(logprobs) != tokens:
        raise ValueError(f"the server gave {len(logprobs)} logprobs for {tokens} token_ids")
    for position, logprob in enumerate(logprobs):
        if not math.isfinite(logprob) or logprob == _CLAMPED or logprob >= NOT_SAMPLED:
            raise ValueError(f"the server gave the logprob {logprob} at token {position} of {tokens}")
    return logprobs
