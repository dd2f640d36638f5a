"""None"""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.policy.scripted import call, say
from environments.rewards.verdict.code_judge import right_text, run_checks
from environments.shipped.code_debug import CodeDebugEnv
from environments.shipped.code_debug.env import CodeDebugConfig, TurnFacts, progress_of, turn_signals
from environments.trajectory import Message, Trajectory, TrajectoryGroup
from tests.environments.written_policy import Written, rolled_out
from tests.tables import cases
from tools.errors import DatasetError


def open_env(env: type[CodeDebugEnv] = CodeDebugEnv, policy=None, **settings: object) -> CodeDebugEnv:
    return env(CodeDebugConfig(**settings), policy=policy)


async def play(
    *moves: Message,
    entry_point: str = "moving_average",
    env_cls: type[CodeDebugEnv] = CodeDebugEnv,
    **settings: object,
) -> Trajectory:
    env = open_env(env_cls, Written(*moves), **settings)
    return (await rolled_out(env, await item_of(entry_point)))[0]


def run(command: str) -> Message:
    return call("terminal", {"command": command})


async def write(text: str) -> Message:
    return call("write_file", {"path": "solution.py", "content": text})


async def item_of(entry_point: str) -> dict[str, str]:
    return next(item for item in await open_env().load_items() if item["entry_point"] == entry_point)


RUN, DONE = run("python3 test_example.py"), say("Done.")


async def test_a_flawless_session_earns_each_signal_where_it_is_due():
    fix = await write(right_text(await item_of("moving_average")))
    trajectory = await play(RUN, fix, DONE)
    assert trajectory.rewards is not None
    assert trajectory.rewards.turns == (0.3, 0.5, pytest.approx(0.16))


async def test_a_solution_that_is_gone_earns_nothing():
    assert (await play(run("rm solution.py"), DONE)).score == 0.0


async def test_a_partial_fix_earns_its_part():
    guard = "def percentage(part, whole):\n    return 0.0 if whole == 0 else 100.0 * part / whole\n"
    trajectory = await play(await write(guard), DONE, entry_point="percentage")
    assert trajectory.rewards is not None
    assert trajectory.rewards.turn_components[0]["test_signal"] == pytest.approx(0.5 * 0.75)


async def test_a_hang_seen_in_the_terminal_is_a_diagnosis():
    fix = await write(right_text(await item_of("binary_search")))
    trajectory = await play(RUN, fix, DONE, entry_point="binary_search", tool_timeout_s=1.5)
    assert trajectory.rewards is not None
    assert trajectory.rewards.turn_components[0]["diagnosis"] == pytest.approx(0.3)


HIDDEN = {
    "output to nowhere": "python3 test_example.py >/dev/null 2>&1",
    "output to nowhere, and another": "python3 test_example.py >/dev/null 2>&1; cat solution.py; date +%N",
    "output to a file": "python3 test_example.py >log 2>&1; false",
    "a call that prints nothing": "python3 -c 'from solution import moving_average as f\n"
    "try: f([2.0, 4.0], 2)\nexcept BaseException: pass'",
    "output in the middle": "yes | head -c 900000; python3 test_example.py 2>&1; yes | head -c 900000",
}


@cases("command", HIDDEN.values())
async def test_a_failure_that_was_not_seen_is_no_diagnosis(command):
    fix = await write(right_text(await item_of("moving_average")))
    trajectory = await play(run(command), fix, DONE)
    assert trajectory.rewards is not None
    assert [turn["diagnosis"] for turn in trajectory.rewards.turn_components] == [0.0] * 3


class Landing(CodeDebugEnv):
    """Has the fix of a job in the background land in the turns after the first, and then plays on."""

    async def score_turn(self, item, turn, ctx):
        if turn.index:
            landing = "touch /tmp/land; until cmp -s fixed.py solution.py; do sleep 0.02; done"
            await ctx.sandbox.exec(landing, timeout_s=60)
        await super().score_turn(item, turn, ctx)


async def test_no_way_around_a_turn_earns_more_than_the_honest_three():
    fixed = right_text(await item_of("moving_average"))
    see, put = "python3 test_example.py", f"cat >fixed.py <<'END'\n{fixed}\nEND\n"
    lands = "until test -e /tmp/land; do sleep 0.02; done; cp fixed.py solution.py"
    later = f"{put}({lands}) >/dev/null 2>&1 &\n{see}"
    ways = {
        "the fix lands while the agent ends": ((run(later), DONE), Landing, {}),
        "the fix lands in an idle turn": ((run(later), run("true"), DONE), Landing, {}),
        "the fix lands behind a second look": ((run(later), run(see), DONE), Landing, {}),
        "the rollout ends by its time": (
            (RUN, run(f"{put}cp fixed.py solution.py; sleep 60"), DONE),
            CodeDebugEnv,
            {"rollout_timeout_s": 10},
        ),
        "the rollout ends by its turns": ((RUN, await write(fixed)), CodeDebugEnv, {"max_turns": 2}),
    }  # fmt: skip
    earned = {
        name: (await play(*moves, env_cls=env_cls, **settings)).score
        for name, (moves, env_cls, settings) in ways.items()
    }
    assert {name: score for name, score in earned.items() if score > 0.96 + 1e-9} == {}
    assert earned["the fix lands while the agent ends"] == pytest.approx(0.5 + 0.2 * 0.9)


async def test_files_left_in_the_workspace_do_not_help():
    shadow = run(
        "echo 'raise SystemExit(0)' > sitecustomize.py; cp sitecustomize.py harness.py; echo > solution.py"
    )
    assert (await play(shadow, DONE)).score == 0.0


async def test_hidden_checks_are_not_in_the_sandbox():
    hidden = "f([2.0, 4.0], 2)"
    assert hidden in (await item_of("moving_average"))["test"]
    trajectory = await play(run(f"grep -rlF '{hidden}' . /tmp /home /root /opt 2>&-; true"), DONE)
    assert trajectory.turns[0].tool_results[0].content == "[no output]\n[exit code: 0]"


async def groups(skill: float, count: int) -> list[TrajectoryGroup]:
    async with open_env(scripted_skill=skill) as env:
        return [await env.rollout_group(task, 4) for task in env.tasks()[:count]]


async def test_a_skilled_agent_does_better_than_a_clumsy_one():
    def mean(played: list[TrajectoryGroup]) -> float:
        scores = [trajectory.score for group in played for trajectory in group.trajectories]
        return sum(scores) / len(scores)

    assert mean(await groups(1.0, 2)) > 0.7 > 0.5 > mean(await groups(0.0, 2))


async def test_a_dataset_of_the_same_schema_can_replace_the_embedded_one(tmp_path):
    item = {**(await item_of("rotate")), "task_id": "own/1"}
    (tmp_path / "own.jsonl").write_text(json.dumps(item) + "\n")
    env = open_env(dataset_path=str(tmp_path / "own.jsonl"))
    assert [loaded["task_id"] for loaded in await env.load_items()] == ["own/1"]


async def test_a_dataset_without_tests_is_refused(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"task_id": "own/1", "prompt": "def f(): ..."}\n')
    with pytest.raises(DatasetError):
        await open_env(dataset_path=str(tmp_path / "own.jsonl")).load_items()


def test_the_weights_are_settings_and_add_up_to_at_most_one():
    assert CodeDebugConfig(weight_diagnosis=0.0).weight_test_signal == 0.5
    with pytest.raises(ValidationError, match=r"add up to 1\.2"):
        CodeDebugConfig(weight_diagnosis=0.5)


async def test_examples_that_hang_end_themselves():
    trajectory = await play(RUN, DONE, entry_point="binary_search")
    (result,) = trajectory.turns[0].tool_results
    assert (result.exit_code, result.timed_out) == (154, False)


async def test_equal_solutions_of_siblings_are_judged_once(monkeypatch):
    asked = []

    async def counted(verify, task, solution, limits):
        asked.append(solution)
        return await run_checks(verify, task, solution, limits)

    monkeypatch.setattr("environments.rewards.verdict.code_judge.run_checks", counted)
    fixed = right_text(await item_of("moving_average"))
    env = open_env(policy=Written(await write(fixed), DONE))
    siblings = await rolled_out(env, await item_of("moving_average"), 3)
    assert [each.score for each in siblings] == [pytest.approx(0.68)] * 3
    assert len(asked) == 2


FRACTION = st.floats(min_value=0, max_value=1)
FACTS = st.lists(
    st.builds(
        TurnFacts, fraction=FRACTION, changed=st.booleans(), reproduced=st.booleans(), called=st.booleans()
    ),
    min_size=1,
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
    assert given_in_all == pytest.approx(0.5 * progress_of(facts[-1].fraction, start))


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


def test_diagnosis_goes_to_the_first_turn_that_saw_the_failure():
    facts = [TurnFacts(fraction=0.5), *[TurnFacts(fraction=0.5, reproduced=True)] * 2, MENDED]
    assert column("diagnosis", 0.5, facts) == [0.0, 0.3, 0.0, 0.0]


def test_seeing_the_failure_after_the_first_change_is_no_diagnosis():
    facts = [TurnFacts(fraction=0.5, changed=True), TurnFacts(fraction=0.5, reproduced=True), MENDED]
    assert column("diagnosis", 0.5, facts) == [0.0] * 3


def test_efficiency_is_given_on_the_last_turn_for_the_turns_not_needed():
    facts = [TurnFacts(fraction=0.5), MENDED, TurnFacts(fraction=1.0, called=False)]
    assert column("efficiency", 0.5, facts) == [0.0, 0.0, pytest.approx(0.2 * 0.8)]
