"""Which groups are tried once more, with what, and when the model server is asked."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from environments.record.origin import RunOrigin
from environments.rollout.items.tasks import GroupTask
from environments.run.group_source import Finishing, finish_group
from environments.serve.serve_loop import GroupTries, ModelWatch, Rollouts
from environments.testing import group_of
from environments.trajectory import Failure, StopReason
from tests.environments.record.recorded import credited

LOST = Failure(
    sibling=0, stop_reason=StopReason.POLICY_ERROR, error="PolicyError: gone", traceback="", turns=0
)
GROUP = group_of([[1.0], [0.0]])
CUT = tuple(replace(each, stop_reason=StopReason.TIME_BUDGET) for each in GROUP.trajectories)
FINISHING = Finishing(fingerprint=None)
WHOLE = finish_group(credited(GROUP), FINISHING)
LOST_ITS_MODEL = finish_group(credited(replace(GROUP, failures=(LOST,)), status="failed"), FINISHING)
OUT_OF_TIME = finish_group(credited(replace(GROUP, trajectories=CUT)), FINISHING)


@pytest.fixture
def ran():
    """Runs a task whose tries give one group after the other, and shows what was asked meanwhile."""

    async def ran(*groups, rolled_out=(), is_cancelled=False):
        left, asked = list(groups), []

        async def probe():
            asked.append("probe")

        class Source:
            async def first(self, task):
                raise AssertionError("a try rolls out the whole group")

            async def run(self, task, *, max_row_tokens):
                assert max_row_tokens == 9
                asked.append(task.rolled_out)
                if is_cancelled:
                    asyncio.current_task().cancel()
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(0)
                return left.pop(0)

        rollouts = Rollouts(
            tasks=lambda _: [],
            source=Source(),
            finishing=FINISHING,
            withhold_stale=None,
            probe=probe,
            origin=RunOrigin(env="toy", policy="p", estimator="e"),
        )
        model = ModelWatch(probe, asyncio.Event(), lambda _: None)
        tries = GroupTries(rollouts, model, None, lambda: 9, lambda _: None)
        task = GroupTask(item={}, item_id="a", rolled_out=rolled_out)
        return await asyncio.create_task(tries.run(task)), asked

    return ran


async def test_the_second_try_of_a_group_rolls_out_anew_what_went_alone(ran):
    group, asked = await ran(LOST_ITS_MODEL, WHOLE, rolled_out=(LOST,))
    assert group == WHOLE
    assert asked == [(LOST,), "probe", ()]


async def test_a_group_that_ended_by_its_time_asks_whether_the_model_server_is_there(ran):
    assert await ran(OUT_OF_TIME) == (OUT_OF_TIME, [(), "probe"])


async def test_a_whole_group_asks_nothing(ran):
    assert await ran(WHOLE) == (WHOLE, [()])


async def test_a_group_that_ended_while_we_stop_is_kept_if_it_is_a_fair_sample_and_no_try_follows(ran):
    assert await ran(WHOLE, is_cancelled=True) == (WHOLE, [()])
    assert await ran(LOST_ITS_MODEL, is_cancelled=True) == (None, [()])
