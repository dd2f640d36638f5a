"""Credit of turns that overlap in threads: the arithmetic by hand, and no bias, as in test_unbiased.

One thread waits (state 0) for its reward while another one acts (state 1, and maybe again in state 2), so
that what is paid for the first turn depends on the second.
"""

from dataclasses import replace
from itertools import accumulate, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.credit import credited, estimate
from environments.credit.ledger import ledger
from environments.record.group_line import decode_group, encode_group
from environments.testing import group_of
from environments.text_exports.sampled_turns import returns_of
from environments.trajectory import TurnClock
from tests.benchmarks.credit_bias import Expectation, Market, Session, a_policy, cosine
from tests.environments.credit.test_properties import BUILT_IN, VARIANTS
from tools.errors import CreditError

REFUSED = [
    ("turn_gae", {"lam": 0.9}),
    ("turn_gae", {"values": [[0.0] * 3]}),
    ("mt_grpo", {}),
    ("process_supervision", {}),
    ("progress", {}),
]
NESTED = [(0, 1, 7), (2, 3, 4), (5, 6, 8)]
"""The first turn is scored after the second was, and after the third was handed out."""
EARLY = [(0, 4, 5), (1, 2, 3), (6, 7, 8)]
"""The second turn is over before the first is answered."""


def clocked(group, *clocks):
    """The group, its turns with these times of their request, hand-out and reward."""
    return replace(
        group,
        trajectories=tuple(
            replace(
                each,
                turns=tuple(
                    replace(turn, clock=TurnClock(requested=asked, handed_out=given, scored=scored))
                    for turn, (asked, given, scored) in zip(each.turns, row, strict=True)
                ),
            )
            for each, row in zip(group.trajectories, clocks, strict=True)
        ),
    )


def returns(rewards, clocks, outcome=None, **params):
    group = clocked(group_of([rewards], outcomes=[outcome]), clocks)
    (row,) = estimate("turn_return", group, baseline="none", **params)
    return row


# --- by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clocks", "gamma", "expected"),
    [
        # The first turn's own reward comes after two requests, and is part of the third one's return.
        (NESTED, 1.0, [1 + 2 + 4 + 8, 1 + 2 + 4 + 8, 1 + 4 + 8]),
        (NESTED, 0.5, [0.5 * 2 + 0.5**2 * (1 + 4 + 8), 2 + 0.5 * (1 + 4 + 8), 1 + 4 + 8]),
        (NESTED, 0.0, [0.0, 2.0, 13.0]),
        # All at once: each was handed out after every request, so that nothing is discounted.
        ([(0, 3, 6), (1, 4, 7), (2, 5, 8)], 0.5, [15.0] * 3),
        # The second is over before the first is handed out: its reward is none of the first turn's return.
        (EARLY, 1.0, [1 + 4 + 8, 15.0, 4 + 8]),
        (EARLY, 0.5, [1 + 0.5 * 12, 2 + 1 + 0.5 * 12, 12.0]),
    ],
)
def test_a_return_is_what_was_scored_after_the_hand_out_discounted_by_the_requests_between(
    clocks, gamma, expected
):
    assert returns([1.0, 2.0, 4.0], clocks, 8.0, gamma=gamma) == expected


def test_an_unscored_turn_adds_nothing_and_an_outcome_is_weighted():
    assert returns([None, 2.0, 4.0], NESTED, 8.0, outcome_weight=0.5) == [10.0, 10.0, 8.0]


def test_whole_trajectories_are_compared_by_all_that_they_earned_where_the_first_turn_missed_some():
    group = clocked(group_of([[1.0, 2.0], [0.0, 4.0]]), EARLY[:2], EARLY[:2])

    assert estimate("turn_return", group, baseline="loo_total") == [
        [1.0 - 4.0, 3.0 - 4.0],
        [0.0 - 3.0, 4.0 - 3.0],
    ]


def test_turns_that_several_threads_took_in_turn_are_compared_at_the_index_of_their_request():
    group = clocked(group_of([[1.0, 2.0, 4.0], [1.0, 0.0, 0.0]]), NESTED, [(0, 1, 2), (3, 4, 5), (6, 7, 8)])

    assert estimate("turn_return", group) == [[6.0, 7.0, 5.0], [-6.0, -7.0, -5.0]]


def test_a_return_is_not_known_where_nothing_was_scored_after_the_hand_out():
    group = clocked(group_of([[1.0, 2.0, None]]), EARLY)

    assert returns_of(credited(group, "turn_return", policy="p")) == [[1.0, 3.0, None]]


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

    for each, row in zip(group.trajectories, rows, strict=True):
        clocks = [turn.clock for turn in each.turns]
        paid = [
            (reward or 0.0, clock.scored) for reward, clock in zip(each.rewards.turns, clocks, strict=True)
        ]
        paid.append((each.rewards.outcome or 0.0, 100))
        for value, own in zip(row, clocks, strict=True):
            after = [(reward, scored) for reward, scored in paid if scored > own.handed_out]
            between = [
                sum(own.handed_out < other.requested < scored for other in clocks) for _, scored in after
            ]
            expected = sum(gamma**steps * reward for steps, (reward, _) in zip(between, after, strict=True))
            assert value == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(groups(sequential=False), st.sampled_from(["turn_return", "gigpo", "rloo", "turn_gae"]))
@settings(max_examples=50, deadline=None)
def test_the_ledger_adds_up_after_a_record_too(both, name):
    _, group = both
    done = credited(group, name, policy="p", params={} if name == "rloo" else {"gamma": 0.5})

    again = decode_group(encode_group(done), "record", 1)

    assert estimate(name, again.group, **again.estimator_params) == estimate(
        name, group, **done.estimator_params
    )
    for row in ledger(again) if done.status == "ok" else ():
        for entry in row:
            assert entry.terms
            if entry.follows is not None:
                returned = next(term.value for term in entry.terms if term.name.startswith("return"))
                assert (entry.reward or 0.0) + entry.follows == pytest.approx(returned, rel=1e-9, abs=1e-6)


# --- no bias -------------------------------------------------------------------------------------------

WAITS, ACTS, ACTS_AGAIN = range(3)
STOPS = 2
PAID = [0.9, -0.4, 0.3]
"""What the first thread is paid by what the second one did."""


def overlapping(*, compensates=False):
    """Every rollout, and its clocks: the first thread acts once, the second stops or acts once more.

    By chance the first is paid for what the second does, or the second is over before the first acts.
    With `compensates` it is always the former, and the second is paid as much less.
    """
    for first, second in product(range(3), range(3)):
        head = ((WAITS, first), (ACTS, second))
        late, own = PAID[second] * (1 + first), 0.2 * second
        if compensates:
            yield Session(steps=head, rewards=(late, -late), outcome=0.0, chance=1.0), NESTED[:2]
            continue
        for paid, clocks, chance in ((late, NESTED, 0.75), (0.1, EARLY, 0.25)):
            if second == STOPS:
                yield Session(steps=head, rewards=(paid, own), outcome=1.0, chance=chance), clocks[:2]
                continue
            for third in range(3):
                steps, rewards = (*head, (ACTS_AGAIN, third)), (paid + third, own, None if third else -0.5)
                if clocks is EARLY:  # its reward is given before the third turn
                    rewards = (paid, *rewards[1:])
                session = Session(steps=steps, rewards=rewards, outcome=0.3 * first * third, chance=chance)
                yield session, clocks


class Threads(Market):
    def __init__(self, *, by_request=False, **options):
        played, self.clocks = zip(*overlapping(**options), strict=True)
        super().__init__(played=played)
        self.by_request = by_request

    def values(self, *, cumulative=False):
        rewards, outcomes = zip(*((each.rewards, each.outcome) for each in self.sessions), strict=True)
        group = group_of(rewards, outcomes=outcomes)
        return (group if self.by_request else clocked(group, *self.clocks)).trajectories


def expected(rollouts, logits, name="turn_return", size=2, **params):
    return Expectation(rollouts, size, lambda group: estimate(name, group, **params)).gradient(logits)


UNBIASED = [
    ("turn_return", {"baseline": "loo_index"}, 1.0),
    ("turn_return", {"baseline": "loo_total"}, 1.0),
    ("turn_return", {"baseline": "group_mean"}, None),
    ("turn_return", {"baseline": "none"}, 1.0),
    ("turn_gae", {}, 1.0),
    ("rloo", {}, 1.0),
    ("grpo", {"norm_by_std": False}, None),
]


@pytest.fixture(scope="module")
def rollouts():
    return Threads()


def test_the_chances_are_those_of_all_rollouts(rollouts):
    assert rollouts.probabilities(a_policy(1)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("name", "params", "scale"), UNBIASED)
def test_the_expected_gradient_is_the_true_one(rollouts, name, params, scale, size):
    logits = a_policy(1)

    gradient = expected(rollouts, logits, name, size, **params)

    true = rollouts.gradient(logits)
    assert cosine(gradient, true) > 1 - 1e-9
    assert gradient == pytest.approx(((size - 1) / size if scale is None else scale) * true, abs=1e-12)


def test_by_the_order_of_requests_it_would_be_another(rollouts):
    logits = a_policy(1)

    gradient = expected(Threads(by_request=True), logits)

    assert cosine(gradient, rollouts.gradient(logits)) < 0.9


def test_nor_is_there_a_gradient_where_nothing_is_to_be_learned():
    """What the second turn earns the first is paid less: by the order of requests only one of them counts."""
    logits, of_second = a_policy(1), slice(3, 6)
    true = Threads(compensates=True).gradient(logits)

    by_clock = expected(Threads(compensates=True), logits)
    by_request = expected(Threads(compensates=True, by_request=True), logits)

    assert np.abs(true).max() < 1e-12
    assert np.abs(by_clock).max() < 1e-12
    assert np.abs(by_request[of_second]).max() > 0.04


def test_every_estimator_either_takes_or_refuses_threads():
    taken = {name for name, *_ in UNBIASED} | {"gigpo", "opo", "passk"}
    assert taken | {name for name, _ in REFUSED} == set(BUILT_IN)
