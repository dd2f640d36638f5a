"""Credited groups as verifiers' traces with an advantage per sampled token, which prime-rl trains on."""
# verifiers is not locked, so its names have no types.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from itertools import groupby

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, Reward, TraceTask, WireTrace

from environments.trainers.completion_columns import groups_left_out, refuse_unfit
from environments.trainers.verifiers_credit import TURN_REWARDS
from environments.trajectory import CreditedGroup
from environments.wire.credited_rows import CreditedRow, OpenAIMessage, credited_rows
from tools.errors import WireError


def traces(credited: CreditedGroup) -> list[WireTrace]:
    """Return one trace per trajectory, with a branch per token row; rows share no node.

    A group that a trainer cannot use (see `refuse_unfit`) gives none, and a warning.

    Raises:
        WireError: if a log-probability is unknown.
    """
    with groups_left_out():
        refuse_unfit(credited)
        rows = groupby(credited_rows(credited), key=lambda row: row.trajectory.sibling)
        return [_trace(credited, list(of_trajectory)) for _, of_trajectory in rows]
    return []


def _trace(credited: CreditedGroup, rows: list[CreditedRow]) -> WireTrace:
    trajectory = rows[0].trajectory
    scored = None if trajectory.rewards is None else trajectory.rewards.turns
    turns = [turn for row in rows for turn in row.turns]
    rewards: dict[str, Reward] = {}
    if trajectory.rewards is not None and trajectory.score is not None:
        outcome = trajectory.score if scored is None else trajectory.rewards.outcome
        if outcome is not None:
            rewards["outcome"] = Reward(score=outcome)
        if scored is not None:
            rewards[TURN_REWARDS] = Reward(score=trajectory.score - (outcome or 0.0))
    earned = {} if scored is None else {TURN_REWARDS: [scored[turn.index] for turn in turns]}
    trace = WireTrace(
        task=TraceTask(type=credited.group.env, data=WireTaskData(id=credited.group.item_id)),
        agent=AgentInfo(config=WireAgentConfig()),
        rewards=rewards,
        info={
            "group_id": credited.group.group_id,
            "sibling": trajectory.sibling,
            "turn_kinds": ["summary" if turn.kind == "summary" else "act" for turn in turns],
            **earned,
        },
        is_completed=True,
        ok=True,
        stop_condition=trajectory.end_reason or trajectory.stop_reason.value,
    )
    for row in rows:
        trace.nodes += _nodes(row, first=len(trace.nodes))
    return trace


def _nodes(row: CreditedRow, *, first: int) -> list[MessageNode]:
    """Return the path of a row; tokens between two turns are at the start of the later one."""
    if row.logprobs is None:
        raise WireError(
            f"sibling {row.trajectory.sibling} has tokens without log-probabilities, which a trace reads as "
            f"of probability 1; sample with a server that gives them"
        )
    nodes: list[MessageNode] = []
    start = shown = 0
    for turn, advantage in zip(row.turns, row.turn_advantages, strict=True):
        *before, said = map(_flatten_calls, row.conversation.until(turn, ()))
        context, sampled = turn.span.start - start, turn.span.end - turn.span.start
        trained = sampled if turn.trained else 0
        nodes += [MessageNode(message=message) for message in before[shown:]]
        node = MessageNode(
            message=said,
            sampled=True,
            token_ids=row.tokens[start : turn.span.end],
            mask=[False] * context + [turn.trained] * sampled,
            logprobs=row.logprobs[turn.span.start : turn.span.start + trained],
            advantages=[advantage] * trained,
        )
        nodes.append(node)
        start, shown = turn.span.end, len(before) + 1
    for index, node in enumerate(nodes[1:]):
        node.parent = first + index
    return nodes


def _flatten_calls(shown: OpenAIMessage) -> OpenAIMessage:
    if "tool_calls" not in shown:
        return shown
    return shown | {"tool_calls": [{"id": call["id"], **call["function"]} for call in shown["tool_calls"]]}
