"""Credited groups as verifiers' traces, an advantage per sampled token: what prime-rl trains on."""
# verifiers is in no lock, so that its types are unknown where it is not installed.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from itertools import groupby

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, Reward, TraceTask, WireTrace

from environments.trainers.completion_columns import groups_left_out, refuse_unfit
from environments.trajectory import CreditedGroup
from environments.wire.credited_rows import CreditedRow, Shown, credited_rows
from tools.errors import WireError


def traces(credited: CreditedGroup) -> list[WireTrace]:
    """One trace per trajectory, with a branch per token row; rows share no node, so each turn counts once.

    There are none, and a warning, where an advantage is too large for a trainer, or tokens were made of text.

    Raises:
        WireError: a log-probability is unknown.
    """
    with groups_left_out():
        refuse_unfit(credited)
        rows = groupby(credited_rows(credited), key=lambda row: row.trajectory.sibling)
        return [_trace(credited, list(of_trajectory)) for _, of_trajectory in rows]
    return []


def _trace(credited: CreditedGroup, rows: list[CreditedRow]) -> WireTrace:
    trajectory = rows[0].trajectory
    trace = WireTrace(
        task=TraceTask(type=credited.group.env, data=WireTaskData(id=credited.group.item_id)),
        agent=AgentInfo(config=WireAgentConfig()),
        rewards={} if trajectory.score is None else {"score": Reward(score=trajectory.score)},
        info={"group_id": credited.group.group_id, "sibling": trajectory.sibling, **_earned(rows)},
        is_completed=True,
        ok=True,
        stop_condition=trajectory.end_reason or trajectory.stop_reason.value,
    )
    for row in rows:
        trace.nodes += _nodes(row, first=len(trace.nodes))
    return trace


def _earned(rows: list[CreditedRow]) -> dict[str, object]:
    """What verifiers has no field for: the reward of each sampled node, and the outcome beside them."""
    rewards = rows[0].trajectory.rewards
    if rewards is None or rewards.turns is None:
        return {}
    turns = [turn for row in rows for turn in row.turns]
    return {
        "turn_rewards": [rewards.turns[turn.index] for turn in turns],
        "summary_turns": [at for at, turn in enumerate(turns) if turn.kind == "summary"],
        "outcome": rewards.outcome,
    }


def _nodes(row: CreditedRow, *, first: int) -> list[MessageNode]:
    """The path of a row, up to its last turn: every message, with tokens at those that were sampled.

    What stands between two turns is at the start of the later one, as their generation prompts are.
    """
    if row.logprobs is None:
        raise WireError(
            f"sibling {row.trajectory.sibling} has tokens without log-probabilities, which a trace reads as "
            f"of probability 1; sample with a server that gives them"
        )
    nodes: list[MessageNode] = []
    start = shown = 0
    for turn, advantage in zip(row.turns, row.turn_advantages, strict=True):
        *before, said = map(_message, row.conversation.until(turn, ()))
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


def _message(shown: Shown) -> Shown:
    """A message of OpenAI's shape as verifiers has it, whose calls are flat."""
    calls = shown.get("tool_calls", ())
    return (
        shown | {"tool_calls": [{"id": call["id"], **call["function"]} for call in calls]} if calls else shown
    )
