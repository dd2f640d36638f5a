"""The values of a page for one group: its entry in the index, and its blocks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.credit import estimate
from environments.credit.ledger import LedgerTerm, TurnLedger, ledger
from environments.trajectory import CreditedGroup, Failure, Trajectory, Turn
from environments.viewer.page_texts import TextCutter
from environments.viewer.page_values import (
    FailureEntry,
    GroupBlock,
    GroupEntry,
    PageFailure,
    RolloutEntry,
    TurnColumns,
)
from environments.viewer.turn_values import PageContent, rollout_blocks
from tools.errors import CreditError

AddBlock = Callable[[str, Any], None]
"""Takes a block by its name."""
_LINE_CHARS = 300
_MOST_VERSIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEstimator:
    """An estimator whose advantages stand beside the record's."""

    name: str
    params: Mapping[str, Any]

    def advantages(self, credited: CreditedGroup) -> list[list[float]] | None:
        """Of a group; `None` where it has none, or the estimator refuses its numbers."""
        if credited.status == "failed":
            return None
        try:
            return estimate(self.name, credited.group, **self.params)
        except CreditError:
            return None


def group_values(
    credited: CreditedGroup,
    number: int,
    content: PageContent,
    others: Sequence[OtherEstimator],
    add: AddBlock,
) -> GroupEntry:
    """The entry of a group; its blocks are given to `add`, one after the other.

    Args:
        credited: the group.
        number: its line in the record, from 1.
        content: what a page takes.
        others: further estimators.
        add: takes the blocks.
    """
    group = credited.group
    ledgers = ledger(credited)
    beside = [other.advantages(credited) for other in others]
    rollouts: list[RolloutEntry] = []
    for position, (trajectory, entries) in enumerate(zip(group.trajectories, ledgers, strict=True)):
        names: list[str] = []
        for block in rollout_blocks(trajectory, entries, content):
            names.append(f"g{number}r{position}p{len(names)}")
            add(names[-1], block)
        own = [None if rows is None else rows[position] for rows in beside]
        columns = _columns(trajectory, entries, own)
        rollouts.append(_rollout(trajectory, columns, names))
    name = f"g{number}"
    add(name, _group_block(credited, content.cutter))
    return GroupEntry(
        id=group.group_id,
        item=group.item_id,
        epoch=group.epoch,
        status=credited.status,
        reason=credited.reason,
        weights=[None if each is None else _line(each) for each in group.weight_versions[:_MOST_VERSIONS]],
        rollouts=rollouts,
        failures=[_failure(each) for each in group.failures],
        block=name,
    )


def _columns(
    trajectory: Trajectory, ledgers: Sequence[TurnLedger], others: list[list[float] | None]
) -> TurnColumns:
    turns = trajectory.turns
    rows = [-1 if not turns else turns[0].span.row, *(turn.span.row for turn in turns)]
    single = [entry.terms[0] if len(entry.terms) == 1 else None for entry in ledgers]
    return TurnColumns(
        kind="".join(turn.kind[0] for turn in turns),
        rewards=[entry.reward for entry in ledgers],
        returns=[
            None if term is None or entry.follows is None else term.value
            for term, entry in zip(single, ledgers, strict=True)
        ],
        advantages=[entry.advantage for entry in ledgers],
        others=others,
        peers=[
            None if term is None or (term.baseline is None and not term.has_no_peer) else term.peer_count
            for term in single
        ],
        alone=[_alone(turn, entry.terms) for turn, entry in zip(turns, ledgers, strict=True)],
        tokens=[turn.span.end - turn.span.start for turn in turns],
        trained=[int(turn.trained) for turn in turns],
        forks=[int(turn.span.row != before) for turn, before in zip(turns, rows, strict=False)],
        condensed=[int(turn.condensed is not None) for turn in turns],
        tool_calls=[len(turn.message.tool_calls) for turn in turns],
        tool_errors=[sum(each.error is not None for each in turn.tool_results) for turn in turns],
    )


def _alone(turn: Turn, terms: Sequence[LedgerTerm]) -> int | None:
    if turn.trained and turn.kind == "act" and any(term.has_no_peer for term in terms):
        return 1
    return 0 if any(term.baseline is not None for term in terms) else None


def _rollout(trajectory: Trajectory, turns: TurnColumns, blocks: list[str]) -> RolloutEntry:
    rewards = trajectory.rewards
    return RolloutEntry(
        sibling=trajectory.sibling,
        score=trajectory.score,
        outcome=None if rewards is None else rewards.outcome,
        stop=trajectory.stop_reason.value,
        end=None if trajectory.end_reason is None else _line(trajectory.end_reason),
        passed=trajectory.passed,
        exact=trajectory.exact,
        rows=len(trajectory.rows),
        wall_s=trajectory.wall_s,
        turns=turns,
        blocks=blocks,
    )


def _failure(failure: Failure) -> FailureEntry:
    return FailureEntry(
        sibling=failure.sibling,
        error_class=failure.error_class or _line(failure.error).partition(":")[0],
        error=_line(failure.error),
        where=failure.where,
        turns=failure.turns,
    )


def _group_block(credited: CreditedGroup, cutter: TextCutter) -> GroupBlock:
    group = credited.group
    return GroupBlock(
        item=cutter.json(group.item),
        tools=_tools(group.trajectories, cutter),
        failures=[
            PageFailure(
                sibling=each.sibling,
                error=cutter.text(each.error),
                traceback=cutter.text(each.traceback),
                judge_calls=[
                    *cutter.judge_calls("judge", each.judge_calls),
                    *cutter.judge_calls("user", each.user_calls),
                    *cutter.judge_calls("summariser", each.summariser_calls),
                ],
            )
            for each in group.failures
        ],
        judge_calls=cutter.judge_calls("judge", group.judge_calls),
        error=group.error,
    )


def _tools(trajectories: Iterable[Trajectory], cutter: TextCutter) -> list[dict[str, Any]]:
    """Every tool that one of them was offered, once."""
    tools = {tool.name: tool for trajectory in trajectories for tool in trajectory.tools}
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": cutter.json(dict(tool.parameters)),
        }
        for tool in tools.values()
    ]


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
