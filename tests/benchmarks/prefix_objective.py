"""What prefixes do to the objective: a chat in which turns get upvotes and the session may convert.

    python -m tests.benchmarks.prefix_objective

A seller chats with a customer for at most six turns: cold, warm, interested or ready. Chatting gets an upvote
of 0.1 and may warm the customer up or make an interested one ready; a pitch makes a warm one interested;
closing ends the session and converts, or not. The policy is tabular softmax and decides when to stop.

How an advantage per turn becomes a weight of each turn's log-probability is read from the rows of the real
views, as Atropos' example trainer reads them. Expectations are exact: all sessions are enumerated, and over
siblings an expected advantage has a closed form.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from environments.credit import Advantages, estimate
from environments.testing import group_of
from environments.trajectory import IGNORED, CreditedGroup, TrajectoryGroup
from environments.wire.views import VIEWS
from tests.benchmarks.credit_bias import Session, cosine, prefixes

STATES = ("cold", "warm", "interested", "ready")
ACTIONS = ("chat", "pitch", "close")
UPVOTE = 0.1
MOVES = {"chat": ((0, 1, 0.6), (2, 3, 0.5)), "pitch": ((0, 2, 0.1), (1, 2, 0.8))}
"""From a state to another, and how likely; otherwise the customer stays."""
CONVERTS = (0.0, 0.1, 0.5, 0.95)
LOGITS = len(STATES) * len(ACTIONS)


def sessions(turns: int, state: int = 0) -> Iterator[Session]:
    """Every session of at most `turns` turns."""
    for outcome, chance in ((1.0, CONVERTS[state]), (0.0, 1 - CONVERTS[state])):
        if chance:
            yield Session(steps=((state, 2),), rewards=(0.0,), outcome=outcome, chance=chance)
    for action, reward in ((0, UPVOTE), (1, 0.0)):
        if turns == 1:
            yield Session(steps=((state, action),), rewards=(reward,), outcome=0.0, chance=1.0)
            continue
        moves = {after: chance for before, after, chance in MOVES[ACTIONS[action]] if before == state}
        for after, chance in (*moves.items(), (state, 1 - sum(moves.values()))):
            for rest in sessions(turns - 1, after):
                yield replace(
                    rest,
                    steps=((state, action), *rest.steps),
                    rewards=(reward, *rest.rewards),
                    chance=chance * rest.chance,
                )


class Chat:
    """All sessions of one horizon, as arrays to take expectations over: sessions x turns."""

    def __init__(self, turns: int = 6) -> None:
        self.sessions, self.turns = tuple(sessions(turns)), turns
        count = len(self.sessions)
        self.taken = np.zeros((count, turns), dtype=int)
        self.visited = np.zeros((count, turns), dtype=int)
        self.alive = np.zeros((count, turns), dtype=bool)
        self.rewards = np.zeros((count, turns))
        """Of each turn; the last one earns the outcome, too."""
        for number, session in enumerate(self.sessions):
            length = len(session.steps)
            self.visited[number, :length], self.taken[number, :length] = zip(*session.steps, strict=True)
            self.alive[number, :length] = True
            self.rewards[number, :length] = session.rewards
            self.rewards[number, length - 1] += session.outcome
        self.length = self.alive.sum(axis=1)
        self.chance = np.array([session.chance for session in self.sessions])

    def policy(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities: states x actions."""
        table = logits.reshape(len(STATES), len(ACTIONS))
        weights = np.exp(table - table.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Of each session."""
        steps = np.where(self.alive, self.policy(logits)[self.visited, self.taken], 1.0)
        return self.chance * steps.prod(axis=1)

    def gradient(self, logits: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The expected sum over turns of weight times the gradient of log π: of logits."""
        mass = np.where(self.alive, self.probabilities(logits)[:, None] * weights, 0.0)
        table = np.zeros((len(STATES), len(ACTIONS)))
        np.add.at(table, (self.visited, self.taken), mass)
        return (table - table.sum(axis=1, keepdims=True) * self.policy(logits)).ravel()

    def to_go(self, values: np.ndarray) -> np.ndarray:
        """Sums of this and all later turns."""
        return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]

    def cumulative(self) -> np.ndarray:
        """What each entry "up to turn k" has earned."""
        return np.where(self.alive, np.cumsum(self.rewards, axis=1), 0.0)

    def group(self, members: Sequence[int]) -> TrajectoryGroup:
        """Sessions as siblings, as the real code takes them."""
        chosen = [self.sessions[member] for member in members]
        return group_of([each.rewards for each in chosen], outcomes=[each.outcome for each in chosen])


# --- advantages: of a group by the real code, and in expectation over siblings -----------------------------


def turn_return_expected(chat: Chat, logits: np.ndarray, size: int) -> np.ndarray:
    """`turn_return` with `loo_index`: less the mean return of those who reached the turn, if anybody did."""
    returns = chat.to_go(chat.rewards)
    reached, level = _at_each_turn(chat, logits, returns)
    return returns - (1 - (1 - reached) ** (size - 1)) * level


def entries_expected(chat: Chat, logits: np.ndarray, size: int) -> np.ndarray:
    """Entries "up to turn k", centred among the entries k of their group."""
    values = chat.cumulative()
    reached, level = _at_each_turn(chat, logits, values)
    others = np.arange(size)[:, None]
    chances = np.array([math.comb(size - 1, count) for count in range(size)])[:, None]
    chances = chances * reached**others * (1 - reached) ** (size - 1 - others)
    return (chances * others / (others + 1)).sum(axis=0) * (values - level)


def _at_each_turn(chat: Chat, logits: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chance to reach each turn, and the mean of values there."""
    chances = chat.probabilities(logits)[:, None] * chat.alive
    reached = chances.sum(axis=0)
    return reached, (chances * values).sum(axis=0) / reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to weigh turns: advantages, and the view in which a trainer gets them."""

    expected: Callable[[Chat, np.ndarray, int], np.ndarray]
    weigh: Callable[[TrajectoryGroup], Advantages]
    view: str
    weighting: str = "once"


_TURN_RETURN = partial(Arm, expected=turn_return_expected, weigh=lambda group: estimate("turn_return", group))
_ENTRIES = partial(Arm, expected=entries_expected, weigh=partial(prefixes, train_all=False))
ARMS = {
    "`turn_return`, `turn_rows`": _TURN_RETURN(view="turn_rows"),
    "weighted prefixes: `turn_return`, `prefix_rows` `once`": _TURN_RETURN(view="prefix_rows"),
    "`turn_return`, `prefix_rows` `repeated`": _TURN_RETURN(view="prefix_rows", weighting="repeated"),
    "prefixes: entries, all tokens": _ENTRIES(view="prefix_rows", weighting="repeated"),
    "prefixes: entries, last turn only": _ENTRIES(view="turn_rows"),
}


def weights_on_the_wire(group: TrajectoryGroup, advantages: Advantages, arm: Arm) -> list[list[float]]:
    """What a mean over each row's tokens weighs each turn's log-probability with, from the view's rows."""
    credited = CreditedGroup(
        group=group, advantages=tuple(map(tuple, advantages)), policy="tabular", estimator="arm"
    )
    weights = [[0.0] * len(each.turns) for each in group.trajectories]
    # A row's own group has no name of its trajectory: rows are in order, one per turn.
    siblings = [number for number, each in enumerate(group.trajectories) for _ in each.turns]
    for sibling, shown in zip(siblings, VIEWS[arm.view](credited, 1, arm.weighting), strict=True):
        (row,) = shown.rows
        trained = sum(label != IGNORED for label in row.mask)
        for turn in group.trajectories[sibling].turns:
            label = row.mask[turn.span.start] if turn.span.start < len(row.mask) else IGNORED
            if label != IGNORED:
                weights[sibling][turn.index] += row.score / trained
    return weights


@cache
def _view_as_matrix(view: str, weighting: str, turns: int) -> np.ndarray:
    """Weights of a session of `turns` turns are its advantages times this; read from the view."""
    arm, units = _TURN_RETURN(view=view, weighting=weighting), np.eye(turns)
    return np.array(weights_on_the_wire(group_of([[0.0] * turns] * turns), units.tolist(), arm))


def expected_weights(chat: Chat, arm: Arm, logits: np.ndarray, size: int) -> np.ndarray:
    """Of each turn of each session, in expectation over its siblings."""
    advantages = np.where(chat.alive, arm.expected(chat, logits, size), 0.0)
    weights = np.zeros_like(advantages)
    for turns in range(1, chat.turns + 1):
        these = chat.length == turns
        weights[these, :turns] = advantages[these, :turns] @ _view_as_matrix(arm.view, arm.weighting, turns)
    return weights


def expected_gradient(chat: Chat, arm: Arm, logits: np.ndarray, size: int) -> np.ndarray:
    return chat.gradient(logits, expected_weights(chat, arm, logits, size))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--group-size", type=int, default=4)
    options = parser.parse_args(arguments)
    chat, logits, size = Chat(options.turns), np.zeros(LOGITS), options.group_size
    true = chat.gradient(logits, chat.to_go(chat.rewards))
    write = sys.stdout.write
    write(f"{len(chat.sessions)} sessions, groups of {size}; gradients of the uniform policy\n\n")
    write("| weights | cosine | scale |\n|---|---|---|\n")
    for name, arm in ARMS.items():
        gradient = expected_gradient(chat, arm, logits, size)
        write(f"| {name} | {cosine(gradient, true):.4f} | {gradient @ true / (true @ true):.2f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
