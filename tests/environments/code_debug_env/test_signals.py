import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.code_debug_env.env import CodeDebugConfig, TurnFacts, mended, turn_signals

FRACTION = st.floats(min_value=0, max_value=1)
FACTS = st.lists(
    st.builds(TurnFacts, fraction=FRACTION, changed=st.booleans(), reproduced=st.booleans()), min_size=1
)
START = st.floats(min_value=0, max_value=1)
MENDED = TurnFacts(fraction=1.0, changed=True)


def total(start: float, facts: list[TurnFacts], max_turns: int) -> float:
    return math.fsum(
        math.fsum(signals.values())
        for signals in turn_signals(start, facts, CodeDebugConfig(max_turns=max_turns))
    )


def column(name: str, start: float, facts: list[TurnFacts], max_turns: int = 10) -> list[float]:
    return [signals[name] for signals in turn_signals(start, facts, CodeDebugConfig(max_turns=max_turns))]


@given(START, FACTS, st.integers(min_value=1, max_value=30))
def test_a_session_gives_between_0_and_1(start: float, facts: list[TurnFacts], max_turns: int):
    assert -1e-9 <= total(start, facts, max_turns) <= 1 + 1e-9


@given(START, FACTS)
def test_the_test_rewards_add_up_to_the_final_progress(start: float, facts: list[TurnFacts]):
    given_in_all = math.fsum(column("test_signal", start, facts))
    assert given_in_all == pytest.approx(0.5 * mended(facts[-1].fraction, start))


@given(START, FACTS, st.data())
def test_a_turn_that_does_nothing_never_gains(start: float, facts: list[TurnFacts], data: st.DataObject):
    place = data.draw(st.integers(min_value=0, max_value=len(facts)))
    before = facts[place - 1].fraction if place else start
    longer = [*facts[:place], TurnFacts(fraction=before), *facts[place:]]
    assert total(start, longer, 10) <= total(start, facts, 10) + 1e-9


@given(START, FACTS)
def test_diagnosis_is_given_at_most_once(start: float, facts: list[TurnFacts]):
    assert sum(value > 0 for value in column("diagnosis", start, facts)) <= 1


@given(START, st.lists(st.booleans(), min_size=1))
def test_without_progress_speed_and_diagnosis_are_worth_nothing(start: float, reproduced: list[bool]):
    facts = [TurnFacts(fraction=start, reproduced=value) for value in reproduced]
    assert {*column("efficiency", start, facts), *column("diagnosis", start, facts)} == {0.0}


def test_breaking_what_was_mended_costs_what_it_gave():
    facts = [TurnFacts(fraction=f, changed=True) for f in (0.75, 0.5, 1.0)]
    assert column("test_signal", 0.5, facts) == [0.25, -0.25, 0.5]


def test_falling_below_the_start_is_no_less_than_nothing():
    assert column("test_signal", 0.5, [TurnFacts(fraction=0.1, changed=True)]) == [0.0]


def test_diagnosis_goes_to_the_first_turn_that_saw_the_failure():
    facts = [TurnFacts(fraction=0.5), *[TurnFacts(fraction=0.5, reproduced=True)] * 2, MENDED]
    assert column("diagnosis", 0.5, facts) == [0.0, 0.3, 0.0, 0.0]


def test_diagnosis_is_worth_as_much_as_was_mended():
    facts = [TurnFacts(fraction=0.5, reproduced=True), TurnFacts(fraction=0.75, changed=True)]
    assert column("diagnosis", 0.5, facts) == [0.15, 0.0]


def test_seeing_the_failure_after_the_first_change_is_no_diagnosis():
    facts = [TurnFacts(fraction=0.5, changed=True), TurnFacts(fraction=0.5, reproduced=True), MENDED]
    assert column("diagnosis", 0.5, facts) == [0.0] * 3


def test_seeing_the_failure_while_changing_the_code_is_no_diagnosis():
    facts = [TurnFacts(fraction=0.5, changed=True, reproduced=True), MENDED]
    assert column("diagnosis", 0.5, facts) == [0.0, 0.0]


def test_efficiency_is_given_on_the_last_turn_for_the_turns_not_needed():
    facts = [TurnFacts(fraction=0.5), TurnFacts(fraction=1.0, changed=True), TurnFacts(fraction=1.0)]
    assert column("efficiency", 0.5, facts) == [0.0, 0.0, pytest.approx(0.2 * 0.8)]
