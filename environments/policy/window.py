"""The room that a conversation leaves in its row and in the model's window: kept before a turn is paid."""

from dataclasses import replace

from environments.policy.base import CompletionRequest
from tools.errors import ContextOverflow


def with_room(
    request: CompletionRequest, *, prompt_tokens: int, context_tokens: int | None
) -> CompletionRequest:
    """The request, with no more tokens to sample than there is room for.

    A turn that is cut there has the finish reason `length` and fewer tokens than the loop asked for: that is
    how the loop tells a full window from a spent budget.

    Args:
        request: asks for the turn.
        prompt_tokens: those before it, or as many as there are at least.
        context_tokens: the model's window; `None`: unknown.

    Raises:
        ContextOverflow: there is no room for one token.
    """
    limits = [each for each in (context_tokens, request.max_row_tokens) if each is not None]
    if not limits:
        return request
    room = min(limits) - prompt_tokens
    if room < 1:
        window = "the model's window" if min(limits) == context_tokens else "a row (--env.max_token_length)"
        raise ContextOverflow(f"{prompt_tokens} prompt tokens leave no room in the {min(limits)} of {window}")
    return replace(request, max_tokens=min(request.max_tokens, room))
