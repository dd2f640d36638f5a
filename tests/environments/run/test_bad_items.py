"""A bad item is recorded and passed over: it never keeps a run from its start, its end or its next start."""

import io
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from environments.config import AgentEnvConfig
from environments.record.recorder import Recorder, read_groups
from environments.run.evaluation_run import evaluate
from environments.run.process_run import MAX_TRIES, process
from tools.errors import ImageUnavailable, PolicyError, RunError, SandboxError
from turnwise import AgentEnv, Choice, say
from turnwise.rewards import rank_rewards

ITEMS = 12
GIVEN_UP = f"given up after {MAX_TRIES} starts, until --fresh"


class SomeBad(AgentEnv):
    """Every rollout of a bad item breaks in the code of the environment."""

    name = "some_bad"
    sandbox = "none"
    bad = frozenset()

    def load_items(self):
        return [{"id": number} for number in range(ITEMS)]

    def format_prompt(self, item):
        return str({}[item["id"]]) if item["id"] in self.bad else "Go."

    def compute_reward(self, item, trajectory, ctx):
        return float(item["id"])

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("gone"))]


def with_bad(bad):
    return type("SomeBad", (SomeBad,), {"bad": frozenset(bad)})


async def started(cls, path, **changes):
    """The exit code of one start, and what it showed."""
    console = Console(file=io.StringIO(), width=200)
    settings = {"group_size": 2, "max_concurrent_rollouts": 2, **changes}
    config = AgentEnvConfig(data_path_to_save_groups=str(path), **settings)
    return await process(cls(config), console), console.file.getvalue()


async def evaluated(cls, path):
    """The same of an evaluation."""
    console = Console(file=io.StringIO(), width=200)
    config = AgentEnvConfig(eval_rollouts=2, max_concurrent_rollouts=2, data_dir_to_save_evals=str(path))
    return await evaluate(cls(config), console), console.file.getvalue()


async def finished(cls, path):
    """Start again and again, as a user does, until it ends with 0."""
    for _ in range(ITEMS):
        code, shown = await started(cls, path)
        if code == 0:
            return shown
    raise AssertionError(shown)


def came_of(path):
    """What the record says of each item in the end, but for tries and times."""
    groups = {each.group.item_id: each for each in read_groups(path)}
    return {
        name: (each.status, [t.score for t in each.group.trajectories])
        for name, each in sorted(groups.items())
    }


class Killed(RunError):
    """The end of a process after a line was written."""


def killed_after(patch, lines):
    append, left = Recorder.append_line, [lines]

    def append_line(recorder, line):
        append(recorder, line)
        left[0] -= 1
        if left[0] == 0:
            raise Killed("here")

    patch.setattr(Recorder, "append_line", append_line)


@pytest.mark.timeout(600)
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(bad=st.sets(st.integers(0, ITEMS - 1), max_size=ITEMS - 1), kill=st.integers(1, ITEMS))
async def test_wherever_a_run_is_killed_the_record_is_that_of_one_go(tmp_path_factory, bad, kill):
    cls, folder = with_bad(bad), tmp_path_factory.mktemp("run")
    await finished(cls, folder / "one.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, kill)
        await started(cls, folder / "killed.jsonl")
    await finished(cls, folder / "killed.jsonl")
    one = came_of(folder / "one.jsonl")
    assert came_of(folder / "killed.jsonl") == one
    assert {name for name, (status, _) in one.items() if status == "failed"} == set(map(str, bad))


async def test_three_bad_items_in_a_row_are_passed_over_by_a_run_that_goes_on(tmp_path):
    await started(SomeBad, tmp_path / "r.jsonl", total_steps=2)
    code, shown = await started(with_bad({2, 3, 4, 5}), tmp_path / "r.jsonl", total_steps=ITEMS)
    assert (code, "4 of 12 groups failed; the same command tries them once more" in shown) == (0, True)


async def test_the_first_ones_come_from_different_places_of_the_dataset(tmp_path):
    code, shown = await started(with_bad({0, 1, 2, 3}), tmp_path / "r.jsonl")
    assert (code, shown.count("Traceback")) == (0, 1)


async def test_a_bad_first_item_of_a_run_with_branches_is_recorded_and_passed_over(tmp_path):
    changes = {"group_size": 4, "branches": 2, "branch_at": 1, "estimator": "rloo"}
    code, _ = await started(with_bad({0}), tmp_path / "r.jsonl", **changes)
    groups = list(read_groups(tmp_path / "r.jsonl"))
    assert (code, len(groups)) == (0, ITEMS)
    assert [each.group.item_id for each in groups if each.status == "failed"] == ["0"]


async def test_where_nothing_has_ever_worked_three_alike_end_it_and_are_in_the_record(tmp_path):
    code, shown = await started(with_bad(range(ITEMS)), tmp_path / "r.jsonl")
    assert (code, sorted(came_of(tmp_path / "r.jsonl"))) == (1, ["0", "4", "8"])
    assert "the first rollouts of 3 items failed alike: KeyError at test_bad_items.py" in shown


async def test_a_bad_item_is_given_up_by_name_after_so_many_starts(tmp_path):
    cls = with_bad({3})
    shown = [(await started(cls, tmp_path / "r.jsonl"))[1] for _ in range(MAX_TRIES + 1)]
    assert [GIVEN_UP in each for each in shown] == [False] * (MAX_TRIES - 1) + [True] * 2
    assert shown[-1].startswith("nothing to roll out: 11 of 12 groups are already in ")
    assert shown[-1].endswith(f"1 of 12 groups failed; {GIVEN_UP}: 3\n")
    tries = [each for each in read_groups(tmp_path / "r.jsonl") if each.group.item_id == "3"]
    assert len(tries) == MAX_TRIES


async def test_a_record_in_which_all_was_given_up_is_no_success(tmp_path):
    codes = [(await started(with_bad({0}), tmp_path / "r.jsonl", max_items=1))[0] for _ in range(5)]
    assert codes == [1] * 5


async def test_what_a_former_version_of_the_code_broke_is_tried_again(tmp_path):
    for _ in range(MAX_TRIES):
        await started(with_bad({0}), tmp_path / "r.jsonl", max_items=1)
    # A setting, since these classes share their code.
    code, shown = await started(SomeBad, tmp_path / "r.jsonl", max_items=1, max_turns=3)
    assert (code, GIVEN_UP in shown) == (0, False)


@pytest.mark.parametrize(
    ("error", "is_given_up"),
    [
        (PolicyError("http://m/v1 gave no answer (tried 4 times): connection refused"), False),
        (SandboxError("no engine"), False),
        (PolicyError("http://m/v1 answered 400: a prompt with an image"), True),
        (ImageUnavailable("no such image"), True),
    ],
)
async def test_an_outage_is_no_fault_of_the_items_that_met_it(tmp_path, error, is_given_up):
    class Meets(SomeBad):
        def format_prompt(self, item):
            if item["id"] == 3:
                raise error
            return "Go."

    shown = [(await started(Meets, tmp_path / "r.jsonl"))[1] for _ in range(MAX_TRIES)]
    assert (GIVEN_UP in shown[-1], "once more" in shown[-1]) == (is_given_up, not is_given_up)


class Wrong(SomeBad):
    """Gives no number, made by what knows neither hook nor item."""

    bad = frozenset(range(1, ITEMS))

    def format_prompt(self, item):
        return "Go."

    def compute_reward(self, item, trajectory, ctx):
        return rank_rewards([float("nan")])[0] if item["id"] in self.bad else 1.0


class Lost(Wrong):
    """Has a reward of the wrong type."""

    def compute_reward(self, item, trajectory, ctx):
        return f"{item} earned much" if item["id"] in self.bad else 1.0


@pytest.mark.parametrize(
    ("cls", "counted", "logged"),
    [
        (with_bad(range(1, ITEMS)), "KeyError: … (test_bad_items.py:", r"item 1, rollout [01] dropped: Key"),
        (Wrong, "RewardError: compute_reward: rank_rewards compares finite numbers",
         r"RewardError: item '1': compute_reward: rank_rewards compares finite numbers, got \[nan\]"),
        (Lost, "RewardError: compute_reward: a reward is a finite number",
         "RewardError: environment 'some_bad', item '1': compute_reward: a reward is a finite number"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("run", [started, evaluated])
async def test_a_bug_that_all_rollouts_share_is_one_line_and_a_count(
    tmp_path, caplog, run, cls, counted, logged
):
    _, shown = await run(cls, tmp_path / "r.jsonl")
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert re.search(logged, line)
    assert re.search(rf"^dropped rollouts +22x {re.escape(counted)}", shown, re.MULTILINE)
