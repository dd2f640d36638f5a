"""The values of a page for the turns of a rollout: what was said, how it was scored, and its credit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from environments.credit.ledger import TurnLedger
from environments.trajectory import Kept, Message, Trajectory, Turn
from environments.viewer.page_texts import TextCutter
from environments.viewer.page_values import (
    PageJudgeCall,
    PageResult,
    PageTurn,
    RolloutBlock,
)
from environments.viewer.token_texts import TokenTexts
from tools.calls import ToolResult

BLOCK_BYTES = 1 << 20
"""A block ends with the turn that reaches this size."""


@dataclass(slots=True, kw_only=True)
class PageContent:
    """What a page takes of a rollout, and how much it did not."""

    cutter: TextCutter
    tokens: bool = True
    """Whether ids, texts and log-probabilities of sampled tokens are in it."""
    token_texts: TokenTexts | None = None
    untold_turns: int = 0
    """Turns of whose tokens nobody knows the texts."""

    def texts_of(self, ids: Sequence[int], said: str) -> list[str] | None:
        """The texts of a turn's tokens; `None`: they are not known, or not wanted."""
        if not self.tokens:
            return None
        texts = None if self.token_texts is None else self.token_texts.texts(ids, said)
        self.untold_turns += texts is None and bool(ids)
        return texts


def rollout_blocks(
    trajectory: Trajectory,
    ledgers: Sequence[TurnLedger],
    content: PageContent,
) -> Iterator[RolloutBlock]:
    """The blocks of a rollout, each of some turns; at least one.

    Args:
        trajectory: the rollout.
        ledgers: of its turns.
        content: what a page takes.
    """
    cutter = content.cutter
    calls = _second_model_calls(trajectory, cutter)
    indices = {turn.index for turn in trajectory.turns}
    rewards = trajectory.rewards
    block = RolloutBlock(
        prompt=[cutter.message(each) for each in trajectory.prompt],
        turns=[],
        outcome_parts={} if rewards is None else dict(rewards.outcome_parts),
        metrics=dict(trajectory.metrics),
        judge_calls=[each for each in calls if each["turn"] not in indices],
    )
    size = len(orjson.dumps(block["prompt"]))
    for position, entry in enumerate(ledgers):
        turn = page_turn(trajectory, position, entry, content)
        turn["judge_calls"] = [each for each in calls if each["turn"] == turn["index"]]
        if size >= BLOCK_BYTES and block["turns"]:
            yield block
            block, size = _next_block(), 0
        block["turns"].append(turn)
        size += len(orjson.dumps(turn))
    yield block


def page_turn(
    trajectory: Trajectory,
    position: int,
    entry: TurnLedger,
    content: PageContent,
) -> PageTurn:
    """A turn whole, but for what second models were asked about it."""
    turn, rewards, cutter = trajectory.turns[position], trajectory.rewards, content.cutter
    ids, logprobs = _sampled(trajectory, turn) if content.tokens else ((), None)
    return PageTurn(
        index=turn.index,
        kind=turn.kind,
        message=cutter.message(turn.message),
        results=[_result(result, cutter) for result in turn.tool_results],
        replies=[cutter.message(each) for each in turn.replies],
        finish_reason=turn.finish_reason,
        trained=turn.trained,
        anchor=None if turn.anchor is None else cutter.text(turn.anchor),
        parts=_at(() if rewards is None else rewards.turn_components, position),
        raw=_at(() if rewards is None else rewards.turn_raw, position),
        noted=dict(turn.noted),
        ledger=entry,
        judge_calls=[],
        fork=turn.fork,
        condensed=None if turn.condensed is None else asdict(turn.condensed),
        saw=None if turn.context is None else [_seen(each, cutter) for each in turn.context],
        row=turn.span.row,
        span=(turn.span.start, turn.span.end),
        token_texts=content.texts_of(ids, turn.message.content),
        token_ids=list(ids),
        logprobs=None if logprobs is None else [round(each, 4) for each in logprobs],
        weight_version=turn.weight_version,
        sampling=dict(turn.sampling),
        model_s=turn.model_s,
        tools_s=turn.tools_s,
    )


def _next_block() -> RolloutBlock:
    return RolloutBlock(prompt=[], turns=[], outcome_parts={}, metrics={}, judge_calls=[])


def _result(result: ToolResult, cutter: TextCutter) -> PageResult:
    return PageResult(
        name=result.name,
        content=cutter.text(result.content),
        error=result.error,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_s=result.duration_s,
    )


def _at(parts: Sequence[Mapping[str, float]], position: int) -> dict[str, float]:
    return dict(parts[position]) if parts else {}


def _seen(part: Kept | Message, cutter: TextCutter) -> dict[str, Any]:
    if isinstance(part, Kept):
        return {"start": part.start, "end": part.end}
    return {"message": cutter.message(part)}


def _sampled(trajectory: Trajectory, turn: Turn) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """The tokens that were sampled in a turn, and their log-probabilities."""
    row, span = trajectory.rows[turn.span.row], turn.span
    logprobs = None if row.logprobs is None else row.logprobs[span.start : span.end]
    return row.token_ids[span.start : span.end], logprobs


def _second_model_calls(trajectory: Trajectory, cutter: TextCutter) -> list[PageJudgeCall]:
    return [
        *cutter.judge_calls("judge", trajectory.judge_calls),
        *cutter.judge_calls("user", trajectory.user_calls),
        *cutter.judge_calls("summariser", trajectory.summariser_calls),
    ]
