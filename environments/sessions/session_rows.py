"""The token row of a logged session, made from its text: nobody knows the ids that were sampled."""

from collections.abc import Sequence
from dataclasses import replace

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.rows import RowBuilder
from environments.trajectory import Completion, Message, TokenRow, Turn
from tools.calls import ToolSpec


def with_row(
    prompt: Sequence[Message], turns: Sequence[Turn], tools: Sequence[ToolSpec], renderer: ChatMLRenderer
) -> tuple[tuple[Turn, ...], tuple[TokenRow, ...]]:
    """The turns with their spans in the row, without logprobs, as of a model server that gives text alone."""
    builder = RowBuilder()
    spanned: list[Turn] = []
    sampled: tuple[int, ...] = ()
    for turn in turns:
        before = spanned[-1].messages[1:] if spanned else ()
        seen = renderer.extend(sampled, before, tools) if spanned else renderer.prompt_ids(prompt, tools)
        sampled = renderer.completion_ids(turn.message)
        completion = Completion(
            message=turn.message,
            finish_reason=turn.finish_reason,
            prompt_ids=seen,
            extends_row=bool(spanned),
            token_ids=sampled,
            logprobs=None,
            exact=False,
        )
        spanned.append(replace(turn, span=builder.append(completion)))
    return tuple(spanned), builder.build()
