"""The first rollout alone: its result counts, and what fails alike ends the run."""

from dataclasses import replace

import pytest

from environments.data.tasks import GroupTask
from environments.run.worker_pool import MOST_ALIKE, AlikeFailuresError, first_alone
from environments.testing import group_of
from environments.trajectory import Failure, StopReason
from tests.environments.write_file import HELLO, ScalarWriteFile, made


def failed(where="env.py:1 in compute_reward", **fields):
    failure = Failure(
        sibling=0, stop_reason=None, error="E: x", traceback="the traceback", turns=0, error_class="E"
    )
    return replace(group_of([]), failures=(replace(failure, where=where, **fields),))


async def begun(groups):
    lines, results = [], iter(groups)

    async def roll_out(task):
        return next(results)

    tasks = [GroupTask(item=n, item_id=str(n)) for n in range(9)]
    return await first_alone(iter(tasks), roll_out, lines.append), lines


async def test_one_that_works_is_the_only_one_that_goes_alone():
    tasks, lines = await begun([group_of([[1.0]])])
    assert [(task.item_id, len(task.rolled_out)) for task in tasks] == [("0", 1)]
    assert lines == []


async def test_after_a_failure_of_the_environments_code_the_next_item_goes_alone():
    tasks, lines = await begun([failed(), group_of([[1.0]])])
    assert [task.item_id for task in tasks] == ["0", "1"]
    assert "the traceback" in lines[0]


async def test_a_failure_that_is_not_the_environments_lets_the_others_go():
    tasks, lines = await begun([failed(where=None, stop_reason=StopReason.POLICY_ERROR)])
    assert (len(tasks), lines) == (1, [])


@pytest.mark.parametrize("error", ["RewardError", "ConfigError", "RefusedSettingError"])
async def test_an_error_of_ours_about_the_environments_code_is_a_bug_of_it(error):
    of_ours = [failed(where=None, error_class=error, error=f"{error}: item {n}: no number") for n in range(3)]
    with pytest.raises(AlikeFailuresError, match=f"failed alike: {error}: item 2: no number"):
        await begun(of_ours)


async def test_equal_failures_end_the_run_and_are_told_once():
    with pytest.raises(
        AlikeFailuresError, match=f"first rollouts of {MOST_ALIKE} items failed alike: E at env"
    ):
        await begun([failed(), failed(where="other.py:2 in f"), failed(), failed()])


async def test_what_went_alone_is_not_rolled_out_again():
    async with made(seed=1) as env:
        (alone,) = (await env.rollout_group(HELLO, 1)).trajectories
        group = await env.rollout_group(replace(HELLO, rolled_out=(alone,)), 3)
    assert group.trajectories[0] is alone
    assert [trajectory.sibling for trajectory in group.trajectories] == [0, 1, 2]


async def test_a_wrong_value_of_a_hook_is_told_without_frames_of_ours():
    class Wrong(ScalarWriteFile):
        async def compute_reward(self, item, trajectory, ctx):
            return "1.0"

    async with made(Wrong) as env:
        (failure,) = (await env.rollout_group(HELLO, 1)).failures
    assert failure.traceback.splitlines() == [f"tools.errors.{failure.error}"]
