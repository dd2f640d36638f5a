import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.code_debug_env.signals import TurnFacts, progress, reproduced_failure, turn_signals
from environments.trajectory import Message, Span, Turn
from tools.calls import ToolCall, ToolResult

FRACTION = st.floats(min_value=0, max_value=1)
FACTS = st.lists(
    st.builds(TurnFacts, fraction=FRACTION, changed=st.booleans(), reproduced=st.booleans()), min_size=1
)
START = st.floats(min_value=0, max_value=1)


def total(start: float, facts: list[TurnFacts], max_turns: int) -> float:
    return math.fsum(math.fsum(signals.values()) for signals in turn_signals(start, facts, max_turns))


def column(name: str, start: float, facts: list[TurnFacts], max_turns: int = 10) -> list[float]:
    return [signals[name] for signals in turn_signals(start, facts, max_turns)]


@given(START, FACTS, st.integers(min_value=1, max_value=30))
def test_a_session_gives_between_0_and_1(start: float, facts: list[TurnFacts], max_turns: int):
    assert -1e-9 <= total(start, facts, max_turns) <= 1 + 1e-9


@given(START, FACTS)
def test_the_test_rewards_add_up_to_the_final_progress(start: float, facts: list[TurnFacts]):
    given_in_all = math.fsum(column("test_signal", start, facts))
    assert given_in_all == pytest.approx(0.5 * progress(facts[-1].fraction, start))


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
def test_without_progress_speed_is_worth_nothing(start: float, reproduced: list[bool]):
    facts = [TurnFacts(fraction=start, reproduced=value) for value in reproduced]
    assert set(column("efficiency", start, facts)) == {0.0}


def test_breaking_what_was_mended_costs_what_it_gave():
    facts = [TurnFacts(fraction=f, changed=True) for f in (0.75, 0.5, 1.0)]
    assert column("test_signal", 0.5, facts) == [0.25, -0.25, 0.5]


def test_falling_below_the_start_is_no_less_than_nothing():
    assert column("test_signal", 0.5, [TurnFacts(fraction=0.1, changed=True)]) == [0.0]


def test_diagnosis_goes_to_the_first_turn_that_saw_the_failure():
    facts = [TurnFacts(fraction=0.5), *[TurnFacts(fraction=0.5, reproduced=True)] * 2]
    assert column("diagnosis", 0.5, facts) == [0.0, 0.3, 0.0]


def test_seeing_the_failure_after_the_first_change_is_no_diagnosis():
    facts = [TurnFacts(fraction=0.5, changed=True), TurnFacts(fraction=0.5, reproduced=True)]
    assert column("diagnosis", 0.5, facts) == [0.0, 0.0]


def test_seeing_the_failure_while_changing_the_code_is_no_diagnosis():
    assert column("diagnosis", 0.5, [TurnFacts(fraction=0.5, changed=True, reproduced=True)]) == [0.0]


def test_efficiency_is_given_on_the_last_turn_for_the_turns_not_needed():
    facts = [TurnFacts(fraction=0.5), TurnFacts(fraction=1.0, changed=True), TurnFacts(fraction=1.0)]
    assert column("efficiency", 0.5, facts) == [0.0, 0.0, pytest.approx(0.2 * 0.8)]


TRACE = 'Traceback (most recent call last):\n  File "/workspace/solution.py", line 3, in f\n'


def turn_of(command: str, content: str, **result: object) -> Turn:
    call = ToolCall(id="c", name="terminal", arguments=f'{{"command": "{command}"}}')
    answer = ToolResult(call_id="c", name="terminal", content=content, **{"exit_code": 1, **result})  # pyright: ignore
    message = Message(role="assistant", tool_calls=(call,))
    return Turn(index=0, message=message, tool_results=(answer,), span=Span(row=0, start=0, end=1))


@pytest.mark.parametrize(
    "content",
    [
        TRACE,
        'File "/workspace/test_example.py", line 9, in <module>\nAssertionError',
        "solution.py:12: AssertionError",
    ],
)
def test_a_traceback_into_the_task_reproduces_the_failure(content: str):
    assert reproduced_failure(turn_of("python3 test_example.py", content), hangs=False)


@pytest.mark.parametrize(
    ("command", "content", "result"),
    [
        ("python3 test_example.py", TRACE, {"exit_code": 0}),
        ("python3 test_example.py", "all examples pass", {}),
        ("cat solution.py; false", "def f(): ...", {}),
        ("python3 other.py", 'File "/workspace/other.py", line 3, in f', {}),
        ("echo File solution.py:3; false", "File solution.py:3", {}),
        ("python3 test_example.py", TRACE, {"error": "tool_error", "exit_code": None}),
        ("python3 test_example.py", "", {"timed_out": True}),
    ],
)
def test_other_results_do_not(command: str, content: str, result: dict[str, object]):
    assert not reproduced_failure(turn_of(command, content, **result), hangs=False)


def test_a_stopped_command_reproduces_a_hang():
    stopped = turn_of("python3 test_example.py", "", timed_out=True, exit_code=137)
    assert reproduced_failure(stopped, hangs=True)


def test_a_stopped_command_that_has_nothing_to_do_with_the_task_does_not():
    assert not reproduced_failure(turn_of("sleep 100", "", timed_out=True, exit_code=137), hangs=True)


def test_the_traceback_of_another_tool_does_not_count():
    turn = turn_of("python3 test_example.py", TRACE)
    other = ToolCall(id="c", name="read_file", arguments="{}")
    message = Message(role="assistant", tool_calls=(other,))
    moved = Turn(index=0, message=message, tool_results=turn.tool_results, span=turn.span)
    assert not reproduced_failure(moved, hangs=False)
