"""The room that a conversation leaves in its row and in the model's window: kept before a turn is paid."""

from dataclasses import replace

from environments.policy.base import CompletionRequest
from environments.policy.rendering.long_text import chars_of
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


def tokens_at_least(request: CompletionRequest, *, longest_token: int) -> int:
    """Tokens that the prompt of a conversation has for certain, where a server renders it.

    That is its open row and what follows it, unless a template may drop reasoning from earlier turns.

    Args:
        request: asks for the next turn.
        longest_token: characters of one, at most.
    """
    row, messages = request.row, request.messages
    if row is not None and not any(message.reasoning for message in messages):
        return len(row.token_ids) + chars_of(messages[row.messages :]) // longest_token
    return chars_of(messages, reasoning=False) // longest_token
