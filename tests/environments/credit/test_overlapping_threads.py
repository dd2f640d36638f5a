"""Credit of turns that overlap in threads: the arithmetic by hand, and no bias, as in test_unbiased.

In the enumerated rollouts every clock depends on what was said: a longer answer is handed out later, so that
other threads have acted, and were paid, before its thread goes on.
"""

import random
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.credit import credited, estimate
from environments.record.prompt_response import returns_of
from environments.testing import group_of
from environments.trajectory import TurnClock
from tests.benchmarks.credit_bias import ACTIONS, Expectation, Market, Session, a_policy, cosine
from tests.environments.credit.test_properties import BUILT_IN, VARIANTS
from tests.environments.credit.test_unbiased import UNBIASED
from tools.errors import CreditError

REFUSED = [
    ("turn_gae", {"lam": 0.9}),
    ("turn_gae", {"values": [[0.0] * 3]}),
    *((name, {"singleton": "raw"}) for name in ("mt_grpo", "process_supervision", "igpo", "gagpo")),
]
NESTED = [(0, 1, 7), (2, 3, 4), (5, 6, 8)]
"""The first turn is scored after the second thread was paid, and has gone on."""
EARLY = [(0, 4, 5), (1, 2, 3), (6, 7, 8)]
"""The second turn is over before the first is answered; then the first thread goes on."""


def threads_of(clocks):
    """Threads that such turns may be of: each goes on with the first one whose last turn was scored."""
    ends, threads = [], []
    for asked, _, scored in clocks:
        thread = next((at for at, end in enumerate(ends) if end < asked), len(ends))
        ends[thread : thread + 1] = [scored]
        threads.append(thread)
    return threads


def clocked(group, *clocks, unfinished=None):
    """The group, its turns with these times of their request, hand-out and reward, and their threads."""
    trajectories = []
    for index, (each, row) in enumerate(zip(group.trajectories, clocks, strict=True)):
        missing = [0] * len(row) if unfinished is None else unfinished[index]
        turns = tuple(
            replace(
                turn,
                thread=thread,
                clock=TurnClock(requested=asked, handed_out=given, scored=scored, unfinished_before=lacking),
            )
            for turn, thread, (asked, given, scored), lacking in zip(
                each.turns, threads_of(row), row, missing, strict=True
            )
        )
        trajectories.append(replace(each, turns=turns))
    return replace(group, trajectories=tuple(trajectories))


def returns(rewards, clocks, outcome=None, **params):
    group = clocked(group_of([rewards], outcomes=[outcome]), clocks)
    (row,) = estimate("turn_return", group, baseline="none", **params)
    return row


# --- by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clocks", "gamma", "expected"),
    [
        # The third turn was requested before the first was scored, whose reward is part of its return.
        (NESTED, 1.0, [15.0, 15.0, 1 + 4 + 8]),
        # The first thread asks once: nothing is discounted. The second one discounts what its next turn saw.
        (NESTED, 0.5, [15.0, 2 + 0.5 * (1 + 4 + 8), 1 + 4 + 8]),
        (NESTED, 0.0, [15.0, 2.0, 13.0]),
        # All at once: three threads of one turn.
        ([(0, 3, 6), (1, 4, 7), (2, 5, 8)], 0.5, [15.0] * 3),
        # The second is over before the first is handed out, and was not before the first was requested.
        (EARLY, 1.0, [15.0, 15.0, 4 + 8]),
        (EARLY, 0.5, [1 + 2 + 0.5 * 12, 15.0, 12.0]),
    ],
)
def test_a_return_is_what_was_scored_after_the_request_discounted_by_the_threads_own_requests_between(
    clocks, gamma, expected
):
    assert returns([1.0, 2.0, 4.0], clocks, 8.0, gamma=gamma) == expected


def test_turns_that_several_threads_took_in_turn_are_compared_at_the_index_of_their_request():
    group = clocked(group_of([[1.0, 2.0, 4.0], [1.0, 0.0, 0.0]]), NESTED, [(0, 1, 2), (3, 4, 5), (6, 7, 8)])

    assert estimate("turn_return", group) == [[6.0, 7.0, 5.0], [-6.0, -7.0, -5.0]]


def test_a_request_that_was_cut_off_counts_in_the_index_of_those_after_it():
    group = group_of([[1.0], [2.0, 4.0]])
    group = clocked(group, [(1, 2, 3)], [(0, 5, 6), (1, 2, 3)], unfinished=[[1], [0, 0]])

    assert estimate("turn_return", group) == [[1.0 - 6.0], [6.0, 6.0 - 1.0]]


def test_a_return_is_not_known_where_nothing_was_scored_after_the_request():
    group = clocked(group_of([[1.0, 2.0, None]]), EARLY)

    assert returns_of(credited(group, "turn_return", policy="p")) == [[3.0, 3.0, None]]


@pytest.mark.parametrize(("name", "params"), REFUSED)
def test_what_needs_a_next_turn_refuses_overlapping_ones_and_names_what_does_not(name, params):
    group = clocked(group_of([[1.0, 2.0, 4.0]], outcomes=[1.0]), NESTED)

    with pytest.raises(CreditError, match=rf"^{name}.* several threads: use turn_return, rloo or grpo$"):
        estimate(name, group, **params)


def test_clocks_of_some_turns_only_are_refused():
    group = clocked(group_of([[1.0, 2.0, 4.0]]), NESTED)
    (each,) = group.trajectories
    half = replace(each, turns=(replace(each.turns[0], clock=None), *each.turns[1:]))

    with pytest.raises(CreditError, match="clocks on 2 of 3 turns"):
        estimate("turn_return", replace(group, trajectories=(half,)))


# --- any clocks ----------------------------------------------------------------------------------------

NUMBERS = st.floats(-1e6, 1e6)


@st.composite
def groups(draw, *, sequential):
    """Ragged groups without clocks and with; each turn waits for the one before where `sequential`."""
    rewards = draw(st.lists(st.lists(st.none() | NUMBERS, max_size=5), min_size=1, max_size=4))
    states = [[draw(st.sampled_from("ab")) for _ in row] for row in rewards]
    outcomes = [draw(st.none() | NUMBERS) for _ in rewards]
    group = group_of(rewards, outcomes=outcomes, anchors=states)
    rows = []
    for row in rewards:
        if sequential:
            ticks = [*accumulate(draw(st.integers(1, 3)) for _ in range(3 * len(row)))]
            rows.append([ticks[at : at + 3] for at in range(0, len(ticks), 3)])
        else:
            ticks = draw(st.permutations(range(3 * len(row))))
            rows.append(sorted(sorted(ticks[at : at + 3]) for at in range(0, len(ticks), 3)))
    return group, clocked(group, *rows)


def own_parts(group):
    """Per trajectory its turns' rewards and clocks, and what each of its turns' thread asked when."""
    for each in group.trajectories:
        clocks = [turn.clock for turn in each.turns]
        threads = [turn.thread for turn in each.turns]
        yield each, [reward or 0.0 for reward in each.rewards.turns], clocks, threads


@given(groups(sequential=True), st.sampled_from(VARIANTS))
@settings(max_examples=100, deadline=None)
def test_clocks_of_turns_that_do_not_overlap_change_no_bit(both, variant):
    group, with_clocks = both
    name, params = variant

    assert estimate(name, with_clocks, **params) == estimate(name, group, **params)


@given(groups(sequential=False), st.sampled_from([1.0, 0.5, 0.0]))
@settings(max_examples=100, deadline=None)
def test_returns_are_the_sums_that_the_definition_states(both, gamma):
    _, group = both

    rows = estimate("turn_return", group, baseline="none", gamma=gamma)

    for (each, rewards, clocks, threads), row in zip(own_parts(group), rows, strict=True):
        paid = [(reward, clock.scored) for reward, clock in zip(rewards, clocks, strict=True)]
        paid.append((each.rewards.outcome or 0.0, 100))
        for value, own, thread in zip(row, clocks, threads, strict=True):
            after = [(reward, scored) for reward, scored in paid if scored > own.requested]
            asked = [clock.requested for clock, other in zip(clocks, threads, strict=True) if other == thread]
            between = [sum(own.requested < time < scored for time in asked) for _, scored in after]
            expected = sum(gamma**steps * reward for steps, (reward, _) in zip(between, after, strict=True))
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-6)


# --- no bias -------------------------------------------------------------------------------------------

FIRST, SECOND, LATER = range(3)
"""States: the first turn of either thread, and any later turn."""
STOPS = 2


class World:
    """Two threads of at most two turns. Every time and every reward depends on all that was said by then."""

    def __init__(self, seed, *, pays=None):
        dice = random.Random(seed)
        self.pays = pays
        self.begins = (0.0, dice.uniform(0.1, 1.0))
        # How long each answer takes to write, and what it leads to takes to end.
        self.takes = [[dice.uniform(0.1, 3.0) for _ in ACTIONS] for _ in range(3)]
        self.results = [[dice.uniform(0.1, 3.0) for _ in ACTIONS] for _ in range(3)]
        self.own = [[dice.uniform(-1.0, 1.0) for _ in ACTIONS] for _ in range(3)]
        self.after = [[dice.uniform(-1.0, 1.0) for _ in ACTIONS] for _ in ACTIONS]

    def rollouts(self, said=()):
        """Every rollout that goes on like this."""
        rollout = self.play(said)
        if rollout is not None:
            yield rollout
            return
        for action in range(len(ACTIONS)):
            yield from self.rollouts((*said, action))

    def play(self, said):
        """The rollout in which this is said, in the order of requests; `None`: more is asked."""
        events = [(time, "request", thread, thread) for thread, time in enumerate(self.begins)]
        steps, clocks, rewards, counts = [], [], [], [0, 0]
        tick = 0
        while events:
            tick += 1
            time, event, thread, turn = heappop(events)
            if event == "request":
                if len(steps) == len(said):
                    return None
                turn, state = len(steps), LATER if counts[thread] else (FIRST, SECOND)[thread]
                action = said[turn]
                steps.append((state, action))
                clocks.append([tick, None, None])
                rewards.append(None)
                counts[thread] += 1
                heappush(events, (time + self.takes[state][action], "hand-out", thread, turn))
                continue
            state, action = steps[turn]
            if event == "hand-out":
                clocks[turn][1] = tick
                heappush(events, (time + self.results[state][action], "reward", thread, turn))
                continue
            clocks[turn][2] = tick
            if action or state != LATER:  # what is said last by then decides what is paid
                rewards[turn] = self.own[state][action] + self.after[action][steps[-1][1]]
            if action != STOPS and counts[thread] < 2:
                heappush(events, (time, "request", thread, turn))
        outcome = self.own[steps[-1][0]][steps[0][1]] * len(steps)
        if self.pays is not None:
            outcome = self.pays - sum(reward or 0.0 for reward in rewards)
        return Session(steps=tuple(steps), rewards=tuple(rewards), outcome=outcome, chance=1.0), clocks, None


class Threads(Market):
    def __init__(self, played):
        played, self.clocks, self.unfinished = zip(*played, strict=True)
        super().__init__(played=played)

    def values(self):
        rewards, outcomes = zip(*((each.rewards, each.outcome) for each in self.sessions), strict=True)
        unfinished = [each or [0] * len(row) for each, row in zip(self.unfinished, self.clocks, strict=True)]
        return clocked(group_of(rewards, outcomes=outcomes), *self.clocks, unfinished=unfinished).trajectories


def expected(rollouts, logits, name="turn_return", size=2, **params):
    return Expectation(rollouts, size, lambda group: estimate(name, group, **params)).gradient(logits)


@pytest.fixture(scope="module")
def worlds():
    return [Threads(World(seed).rollouts()) for seed in range(3)]


def test_the_chances_are_those_of_all_rollouts_and_their_clocks_depend_on_what_was_said(worlds):
    for world in worlds:
        assert world.probabilities(a_policy(1)).sum() == pytest.approx(1.0)
        assert len({str(clocks) for clocks in world.clocks}) > 5


@pytest.mark.parametrize(("name", "params", "scale"), UNBIASED.values())
def test_the_expected_gradient_is_the_true_one(worlds, name, params, scale):
    logits = a_policy(1)

    for world in worlds:
        gradient, true = expected(world, logits, name, **params), world.gradient(logits)
        assert cosine(gradient, true) > 1 - 1e-9
        assert gradient == pytest.approx((0.5 if scale is None else scale) * true, abs=1e-12)


def first_wins():
    """The second thread may end the rollout while the first one's completion is still being sampled."""
    for action in range(len(ACTIONS)):
        head, paid = ((SECOND, action),), (0.2 * action,)
        if action == STOPS:
            yield Session(steps=head, rewards=paid, outcome=1.0, chance=1.0), [(1, 2, 3)], [1]
            continue
        for slow in range(len(ACTIONS)):
            session = Session(
                steps=((FIRST, slow), *head), rewards=(0.5 * slow, *paid), outcome=0.3 * action, chance=1.0
            )
            yield session, [(0, 4, 5), (1, 2, 3)], None


def test_a_turn_that_cuts_others_off_does_not_choose_what_it_is_compared_with():
    logits, of_second = a_policy(1), slice(3, 6)
    rollouts = Threads(first_wins())

    gradient, true = expected(rollouts, logits)[of_second], rollouts.gradient(logits)[of_second]

    assert gradient == pytest.approx(true, abs=1e-12)
    assert np.abs(true).max() > 0.01


def test_every_estimator_either_takes_or_refuses_threads():
    taken = {name for name, *_ in UNBIASED.values()} | {"gigpo", "opo", "passk"}
    taken |= {"rllm_per_step", "hgpo", "rtmc", "salt", "tree_grpo"}
    assert taken | {name for name, _ in REFUSED} == set(BUILT_IN)
