"""The numbers of a run by the index of a turn among the acts: who is left, what it earned, who is a peer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from environments.credit import without_peer_of
from environments.credit.stats import vary
from environments.record.spread import Spread
from environments.trajectory import CreditedGroup, Trajectory, Turn

MAX_INDICES = 128
"""Indices with numbers of their own; the acts after them share the last."""


@dataclass(slots=True, kw_only=True)
class IndexTotals:
    """Of one index."""

    rollouts: int = 0
    """With an act of this index; at the last index that several share, acts."""
    reward: Spread = field(default_factory=Spread)
    """Of acts that were scored."""
    advantage: Spread = field(default_factory=Spread)
    """Of trained acts in groups with credit."""
    tokens: Spread = field(default_factory=Spread)
    """Sampled."""
    without_peer: int | None = 0
    """Acts whose advantage is their raw return, since no sibling had a comparable one; `None`: unknown."""
    groups: int = 0
    """With credit, and with two trained acts or more here, so that they could differ."""
    groups_without_spread: int = 0
    """Of these: all advantages here are equal, so that nothing is learned from which act was taken."""
    tool_calls: int = 0
    tool_errors: int = 0

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rollouts": self.rollouts,
            "scored": self.reward.count,
            "reward": self.reward.values(),
            "advantage": self.advantage.values(),
            "tokens": self.tokens.values(),
            "without_peer": self.without_peer,
            "groups": self.groups,
            "groups_without_spread": self.groups_without_spread,
            "tool_calls": self.tool_calls,
            "tool_errors": self.tool_errors,
        }


@dataclass(slots=True, kw_only=True)
class TurnTotals:
    """Only `add` and `add_credit` change it."""

    indices: list[IndexTotals] = field(default_factory=list[IndexTotals])

    def add(self, trajectory: Trajectory) -> None:
        """Take the acts of one rollout in."""
        rewards = trajectory.act_rewards or ()
        for index, (act, reward) in enumerate(zip_longest(trajectory.acts, rewards)):
            totals = self._at(index)
            totals.rollouts += 1
            totals.tokens.add(act.span.end - act.span.start)
            totals.tool_calls += len(act.tool_results)
            totals.tool_errors += sum(result.error is not None for result in act.tool_results)
            if reward is not None:
                totals.reward.add(reward)

    def add_credit(self, credited: CreditedGroup) -> None:
        """Take the advantages of a group in, which has some."""
        rows = [
            [(act, advantage) for act, advantage in zip(each.turns, row, strict=True) if act.kind == "act"]
            for each, row in zip(credited.group.trajectories, credited.advantages, strict=True)
        ]
        for index in range(max(map(len, rows), default=0)):
            here = [row[index] for row in rows if index < len(row)]
            self._add_advantages(self._at(index), here)
        alone = without_peer_of(credited)
        for index in range(max(map(len, rows), default=0)):
            totals = self._at(index)
            if alone is None or totals.without_peer is None:
                totals.without_peer = None
            else:
                totals.without_peer += sum(row[index] for row in alone if index < len(row))

    def shown(self, most: int) -> Iterator[tuple[str, float]]:
        """The mean reward by index, counted from 1; that of all later ones under `most+1+`."""
        for index, each in enumerate(self.indices[:most]):
            if each.reward.mean is not None:
                yield str(index + 1), each.reward.mean
        later = [each.reward for each in self.indices[most:] if each.reward.count]
        if later:
            mean = sum(each.total for each in later) / sum(each.count for each in later)
            yield f"{most + 1}+", mean

    def values(self) -> list[dict[str, Any]]:
        """As JSON, in order; `turn` counts from 0, and `later` says that all later acts are in the last."""
        last = MAX_INDICES - 1
        return [
            {"turn": index, **({"later": True} if index == last else {}), **each.values()}
            for index, each in enumerate(self.indices)
        ]

    def _add_advantages(self, totals: IndexTotals, here: list[tuple[Turn, float]]) -> None:
        advantages = [advantage for act, advantage in here if act.trained]
        for advantage in advantages:
            totals.advantage.add(advantage)
        if len(advantages) > 1:
            totals.groups += 1
            totals.groups_without_spread += not vary(advantages)

    def _at(self, index: int) -> IndexTotals:
        index = min(index, MAX_INDICES - 1)
        while len(self.indices) <= index:
            self.indices.append(IndexTotals())
        return self.indices[index]
