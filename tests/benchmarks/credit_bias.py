"""The bias of every estimator, measured exactly on a small session where the policy decides when to stop.

    python -m tests.benchmarks.credit_bias [--group-size 4] [--steps 600]

A seller chats with a cold, warm or hot customer for at most three turns. Each turn they chat (an upvote of
0.1, and the customer may warm up), pitch (the session ends; outcome 1 with a chance that depends on the
warmth) or leave (the session ends; the turn is not scored). The policy is tabular softmax. All sessions and
all groups of them are enumerated, so nothing here is sampled: a cosine below 1 is bias, not noise.
"""

import argparse
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from environments.credit import Advantages, estimate
from environments.credit.terms import Pool, minus_mean
from environments.testing import group_of
from environments.trajectory import Trajectory, TrajectoryGroup

STATES = ("cold", "warm", "hot")
ACTIONS = ("chat", "pitch", "leave")
UPVOTE = 0.1
WARMS_UP = (0.5, 0.5, 0.0)
CONVERTS = (0.1, 0.4, 0.8)

Weigh = Callable[[TrajectoryGroup], Advantages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One possible session: what happened, and how likely the customer's part of it is."""

    steps: tuple[tuple[int, int], ...]
    """State and action of each turn."""
    rewards: tuple[float | None, ...]
    outcome: float
    chance: float
    """Probability of the customer's reactions, given the actions."""

    @property
    def total(self) -> float:
        return math.fsum(reward or 0.0 for reward in self.rewards) + self.outcome


def sessions(turns: int, state: int = 0) -> Iterator[Session]:
    """Every session of at most `turns` turns."""
    for success, chance in ((1.0, CONVERTS[state]), (0.0, 1 - CONVERTS[state])):
        yield Session(steps=((state, 1),), rewards=(0.0,), outcome=success, chance=chance)
    yield Session(steps=((state, 2),), rewards=(None,), outcome=0.0, chance=1.0)
    if turns == 1:
        yield Session(steps=((state, 0),), rewards=(UPVOTE,), outcome=0.0, chance=1.0)
        return
    for after, chance in ((state, 1 - WARMS_UP[state]), (state + 1, WARMS_UP[state])):
        for rest in sessions(turns - 1, after) if chance else ():
            yield replace(
                rest,
                steps=((state, 0), *rest.steps),
                rewards=(UPVOTE, *rest.rewards),
                chance=chance * rest.chance,
            )


class Market:
    """All sessions of one horizon, as values that estimators take and as arrays to take expectations over."""

    def __init__(self, turns: int = 3, *, played: Iterable[Session] | None = None) -> None:
        self.sessions = tuple(sessions(turns) if played is None else played)
        longest = max(len(session.steps) for session in self.sessions)
        shape = (len(self.sessions), longest, len(STATES) * len(ACTIONS))
        self.taken, self.visited = np.zeros(shape), np.zeros((*shape[:2], len(STATES)))
        for place, session in enumerate(self.sessions):
            for turn, (state, action) in enumerate(session.steps):
                self.taken[place, turn, state * len(ACTIONS) + action] = 1.0
                self.visited[place, turn, state] = 1.0
        self.chance = np.array([session.chance for session in self.sessions])
        self.total = np.array([session.total for session in self.sessions])

    def values(self) -> tuple[Trajectory, ...]:
        """The sessions as trajectories."""
        rewards = [session.rewards for session in self.sessions]
        states = [[STATES[state] for state, _ in session.steps] for session in self.sessions]
        outcomes = [session.outcome for session in self.sessions]
        return group_of(rewards, outcomes=outcomes, anchors=states).trajectories

    def policy(self, logits: np.ndarray) -> np.ndarray:
        table = logits.reshape(len(STATES), len(ACTIONS))
        weights = np.exp(table - table.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Probability of each session."""
        log_policy = np.log(self.policy(logits)).reshape(-1)
        return self.chance * np.exp((self.taken @ log_policy).sum(axis=1))

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Gradient of log pi of each session's turns: sessions x turns x logits."""
        expected = self.visited[..., None] * self.policy(logits)
        return self.taken - expected.reshape(self.taken.shape)

    def value(self, logits: np.ndarray) -> float:
        """J: the expected sum of upvotes and outcome."""
        return float(self.probabilities(logits) @ self.total)

    def gradient(self, logits: np.ndarray) -> np.ndarray:
        """The true gradient of J."""
        return (self.probabilities(logits) * self.total) @ self.scores(logits).sum(axis=1)


class Expectation:
    """An estimator's advantages on every possible group, to take exact expectations under any policy."""

    def __init__(self, market: Market, size: int, weigh: Weigh) -> None:
        self.market, self.size = market, size
        values = market.values()
        groups = list(itertools.combinations_with_replacement(range(len(values)), size))
        self.members = np.array(groups)
        self.orders = np.array([_orders(group) for group in groups])
        self.advantages = np.zeros((len(groups), size, market.taken.shape[1]))
        for place, group in enumerate(groups):
            siblings = TrajectoryGroup(trajectories=tuple(values[member] for member in group))
            for sibling, row in enumerate(weigh(siblings)):
                self.advantages[place, sibling, : len(row)] = row

    def gradient(self, logits: np.ndarray) -> np.ndarray:
        """Expected gradient: the mean over siblings of the sum over turns of advantage times score."""
        chances = self.orders * self.market.probabilities(logits)[self.members].prod(axis=1)
        weights = np.zeros(self.market.taken.shape[:2])
        for sibling in range(self.size):
            np.add.at(weights, self.members[:, sibling], chances[:, None] * self.advantages[:, sibling])
        return np.einsum("nt,ntp->p", weights, self.market.scores(logits)) / self.size

    def noise(self, logits: np.ndarray) -> float:
        """Standard deviation of one group's gradient over the length of its expectation."""
        chances = self.orders * self.market.probabilities(logits)[self.members].prod(axis=1)
        scores = self.market.scores(logits)
        square = 0.0
        for rows in np.array_split(np.arange(len(chances)), 1 + len(chances) // 20_000):
            each = np.einsum("gst,gstp->gp", self.advantages[rows], scores[self.members[rows]]) / self.size
            square += float(chances[rows] @ (each**2).sum(axis=1))
        expected = self.gradient(logits)
        return math.sqrt(max(0.0, square - float(expected @ expected))) / float(np.linalg.norm(expected))

    def learned(self, steps: int, rate: float = 0.05) -> np.ndarray:
        """Logits after following the normalised expected gradient from the uniform policy."""
        logits = np.zeros(self.market.taken.shape[2])
        for _ in range(steps):
            gradient = self.gradient(logits)
            length = float(np.linalg.norm(gradient))
            if length < 1e-9:
                break
            logits = logits + rate * gradient / length
        return logits


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def a_policy(seed: int = 0) -> np.ndarray:
    """Some policy that is neither uniform nor settled."""
    return np.random.default_rng(seed).normal(scale=0.7, size=len(STATES) * len(ACTIONS))


# --- what is not offered, to show why ----------------------------------------------------------------------


def centred(values: Sequence[float], eps: float | None = None) -> Sequence[float]:
    """The values minus their mean, divided by their sample deviation + `eps` where that is given."""
    return minus_mean("value", Pool.of_trajectories(values), ddof=1, eps=eps).differences()


def separate_streams(group: TrajectoryGroup) -> Advantages:
    """z(sum of turn rewards) + z(outcome), as GDPO-like recipes do."""
    rewards = [trajectory.rewards for trajectory in group.trajectories if trajectory.rewards is not None]
    turns = centred([sum(r or 0.0 for r in reward.turns or ()) for reward in rewards], eps=1e-6)
    outcomes = centred([reward.outcome or 0.0 for reward in rewards], eps=1e-6)
    return _spread(group, [a + b for a, b in zip(turns, outcomes, strict=True)])


def outcome_only(group: TrajectoryGroup) -> Advantages:
    """The outcome, centred; upvotes are ignored."""
    return _spread(
        group, centred([(t.rewards.outcome or 0.0) if t.rewards else 0.0 for t in group.trajectories])
    )


def prefixes(group: TrajectoryGroup, *, train_all: bool) -> Advantages:
    """N turns become N entries "up to turn k", compared with the other entries k."""
    entries = [
        list(itertools.accumulate(r or 0.0 for r in t.rewards.turns or ()))
        for t in group.trajectories
        if t.rewards
    ]
    for row, trajectory in zip(entries, group.trajectories, strict=True):
        row[-1] += (trajectory.rewards.outcome or 0.0) if trajectory.rewards else 0.0
    for turn in range(max(map(len, entries))):
        alive = [row for row in entries if len(row) > turn]
        for row, value in zip(alive, centred([row[turn] for row in alive]), strict=True):
            row[turn] = value
    if train_all:
        return [list(itertools.accumulate(reversed(row)))[::-1] for row in entries]
    return entries


def candidates() -> dict[str, Weigh]:
    """Everything that the table compares: name, and how it weighs turns."""

    def ours(name: str, **params: object) -> Weigh:
        return lambda group: estimate(name, group, **params)

    return {
        "turn_return": ours("turn_return"),
        "turn_return baseline=loo_total": ours("turn_return", baseline="loo_total"),
        "turn_return baseline=group_mean": ours("turn_return", baseline="group_mean"),
        "turn_return baseline=none": ours("turn_return", baseline="none"),
        "turn_return gamma=0.9": ours("turn_return", gamma=0.9),
        "turn_return scale=group_std": ours("turn_return", scale="group_std"),
        "rloo": ours("rloo"),
        "grpo norm_by_std=false": ours("grpo", norm_by_std=False),
        "grpo": ours("grpo"),
        "gigpo": ours("gigpo"),
        "gigpo mode=mean_std_norm": ours("gigpo", mode="mean_std_norm"),
        "turn_gae": ours("turn_gae"),
        "process_supervision": ours("process_supervision"),
        "mt_grpo": ours("mt_grpo"),
        "igpo": ours("igpo"),
        "igpo streams=separate": ours("igpo", streams="separate"),
        "rllm_per_step gamma=1": ours("rllm_per_step", gamma=1.0),
        "hgpo gamma=1": ours("hgpo", gamma=1.0),
        "gagpo gamma=1 lam=1": ours("gagpo", gamma=1.0, lam=1.0),
        "not offered: outcome only": outcome_only,
        "not offered: z(turns) + z(outcome)": separate_streams,
        "not offered: prefixes, all turns": partial(prefixes, train_all=True),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args(arguments)
    market, logits = Market(options.turns), a_policy()
    true = market.gradient(logits)
    write = sys.stdout.write
    write(f"{len(market.sessions)} sessions, groups of {options.group_size}, every group enumerated\n\n")
    write("| estimator | cosine | scale | noise | sold | J |\n|---|---|---|---|---|---|\n")
    for name, weigh in candidates().items():
        expectation = Expectation(market, options.group_size, weigh)
        gradient = expectation.gradient(logits)
        scale = float(gradient @ true / (true @ true))
        reached = market.probabilities(after := expectation.learned(options.steps))
        converts = float(reached @ [session.outcome for session in market.sessions])
        write(
            f"| {name} | {cosine(gradient, true):.4f} | {scale:.2f} | {expectation.noise(logits):.1f} "
            f"| {converts:.2f} | {market.value(after):.3f} |\n"
        )
        sys.stdout.flush()


def _spread(group: TrajectoryGroup, values: Sequence[float]) -> Advantages:
    return [[value] * len(t.turns) for value, t in zip(values, group.trajectories, strict=True)]


def _orders(group: Sequence[int]) -> int:
    return math.factorial(len(group)) // math.prod(map(math.factorial, Counter(group).values()))


if __name__ == "__main__":
    main()
