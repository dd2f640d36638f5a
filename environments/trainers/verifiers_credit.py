"""Credit for verifiers' own traces (v1): advantages on their nodes, which prime-rl reads."""

from collections.abc import Sequence
from math import fsum
from typing import Any

from environments.credit import describe
from environments.credit.array_credit import turn_advantages
from environments.credit.estimator_registry import SINGLETON
from tools.errors import CreditError

TURN_REWARDS = "turn_rewards"
"""In a trace's `info`, a reward per sampled node (None: not scored); in its `rewards`, their sum."""


def stamp_advantages(traces: Sequence[Any], *, estimator: str = "turn_return", **params: Any) -> None:
    """Set the advantages of one group's sampled nodes, an entry per sampled token.

    Put rewards of turns into `info["turn_rewards"]`, and `act` or `summary` per node into
    `info["turn_kinds"]` where a history was condensed. The outcome is the sum of the trace's other rewards. A
    trace with an error is not compared, and keeps its advantages.

    Args:
        traces: `verifiers.v1.trace.Trace`s of rollouts of one task.
        estimator: a name that `turnwise credit` lists.
        params: the estimator's parameters.

    Raises:
        CreditError: if turn rewards do not match sampled nodes, or the estimator refuses the group.
    """
    spec = describe(estimator)
    spec.refuse_alone()
    given = [(each, [node for node in each.nodes if node.sampled]) for each in traces if not each.has_error]
    rewards: list[Any] = [trace.info.get(TURN_REWARDS, [None] * len(nodes)) for trace, nodes in given]
    for (trace, nodes), row in zip(given, rewards, strict=True):
        if row is None or len(row) != len(nodes):
            raise CreditError(f"trace {trace.id} has {len(nodes)} sampled nodes and the turn_rewards {row}")
    kinds = [trace.info.get("turn_kinds", ["act"] * len(nodes)) for trace, nodes in given]
    outcomes = [_outcome(trace) for trace, _ in given]
    if SINGLETON in spec.parameters:  # a task may have one trace without an error
        params.setdefault("singleton", SINGLETON.default)
    credit = turn_advantages(rewards, [0] * len(given), outcomes, estimator=estimator, kinds=kinds, **params)
    for (_, nodes), advantages in zip(given, credit, strict=True):
        for node, advantage in zip(nodes, advantages, strict=True):
            node.advantages = [advantage] * sum(node.mask)


def _outcome(trace: Any) -> float | None:
    known = [each.value for name, each in trace.rewards.items() if each is not None and name != TURN_REWARDS]
    return fsum(known) if known else None
