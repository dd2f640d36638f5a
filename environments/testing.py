"""Values built from a few numbers, for tests of environments and estimators."""

import math
from collections.abc import Sequence
from typing import Literal

from environments.trajectory import (
    NOT_SAMPLED,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolCall, ToolResult
from tools.errors import UsageError

Kind = Literal["act", "summary"]

_ACT: Kind = "act"
_PROMPT, _SAMPLED, _OBSERVED = 1, 2, 3


def group_of(
    turn_rewards: Sequence[Sequence[float | None]] | None,
    *,
    outcomes: Sequence[float | None] | None = None,
    anchors: Sequence[Sequence[str | None]] | None = None,
    lengths: Sequence[Sequence[int]] | None = None,
    kinds: Sequence[Sequence[Kind]] | None = None,
) -> TrajectoryGroup:
    """Return a scored group from numbers.

    Every act but the last one of a trajectory ran a tool; a score is the sum of its rewards.

    Args:
        turn_rewards: per trajectory, one reward per turn, `None` for an unscored turn. `None` as a whole:
            an environment without turn rewards, with `lengths` for its turns.
        outcomes: one per trajectory.
        anchors: per turn, the state that estimators compare.
        lengths: per turn, the number of sampled tokens; unset: 1.
        kinds: per turn; unset: acts. A summary has no reward.

    Raises:
        UsageError: if the shapes do not match, or a summary has a reward.
    """
    by_turn = lengths if turn_rewards is None else turn_rewards
    if by_turn is None:
        raise UsageError("a scalar environment (turn_rewards=None) needs lengths, to know its turns")
    shape = [len(row) for row in by_turn]
    for name, given in (("anchors", anchors), ("lengths", lengths), ("kinds", kinds)):
        if given is not None and [len(row) for row in given] != shape:
            raise UsageError(f"{name} has {[len(row) for row in given]} turns, the rewards have {shape}")
    if outcomes is not None and len(outcomes) != len(shape):
        raise UsageError(f"{len(outcomes)} outcomes for {len(shape)} trajectories")
    trajectories = tuple(
        _trajectory(
            sibling,
            None if turn_rewards is None else tuple(turn_rewards[sibling]),
            None if outcomes is None else outcomes[sibling],
            [None] * turns if anchors is None else anchors[sibling],
            [1] * turns if lengths is None else lengths[sibling],
            (_ACT,) * turns if kinds is None else kinds[sibling],
        )
        for sibling, turns in enumerate(shape)
    )
    return TrajectoryGroup(
        group_id="group", env="numbers", item_id="item", epoch=0, trajectories=trajectories, failures=()
    )


def _trajectory(
    sibling: int,
    rewards: tuple[float | None, ...] | None,
    outcome: float | None,
    anchors: Sequence[str | None],
    lengths: Sequence[int],
    kinds: Sequence[Kind],
) -> Trajectory:
    token_ids, logprobs = [_PROMPT], [NOT_SAMPLED]
    turns: list[Turn] = []
    for index, (anchor, length, kind) in enumerate(zip(anchors, lengths, kinds, strict=True)):
        if index:
            token_ids.append(_OBSERVED)
            logprobs.append(NOT_SAMPLED)
        span = Span(row=0, start=len(token_ids), end=len(token_ids) + length)
        call = ToolCall(id=f"call_{index}", name="tool", arguments="{}")
        result = ToolResult(call_id=call.id, name=call.name, content="ok")
        calls = kind == "act" and index < len(kinds) - 1
        turn = Turn(
            index=index,
            kind=kind,
            message=Message(role="assistant", content=f"turn {index}", tool_calls=(call,) if calls else ()),
            tool_results=(result,) if calls else (),
            finish_reason="tool_calls" if calls else "stop",
            span=span,
            anchor=anchor,
        )
        turns.append(turn)
        if kind == "summary" and rewards is not None and rewards[index] is not None:
            raise UsageError(f"trajectory {sibling}, turn {index}: a summary has no reward; give None")
        token_ids += [_SAMPLED] * length
        logprobs += [-1.0] * length
    parts = [value for value in (*(rewards or ()), outcome) if value is not None]
    # NaN and infinity stay as they are, so that tests can see what refuses them.
    score = math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)
    return Trajectory(
        item_id="item",
        sibling=sibling,
        seed=sibling,
        prompt=(Message(role="user", content="prompt"),),
        turns=tuple(turns),
        rows=(TokenRow(token_ids=tuple(token_ids), logprobs=tuple(logprobs)),),
        rewards=Rewards(turns=rewards, outcome=outcome, score=score if parts else None),
    )
