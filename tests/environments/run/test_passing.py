"""Whether rollouts passed, as the environment says of each."""

from contextlib import nullcontext

from environments.data.tasks import GroupTask
from environments.run.passing import judged
from tests.environments.talking import Talking, made


async def test_what_it_changes_in_the_item_reaches_no_sibling():
    class Greedy(Talking):
        def passed(self, item, trajectory):
            return item.pop("answer") == "4"

    env, item = made(Greedy), {"id": "one", "answer": "4"}
    task = GroupTask(item=item, item_id="one")
    group = await judged(env, task, await env.rollout_group(task, 2), nullcontext)
    verdicts = tuple(trajectory.passed for trajectory in group.trajectories)
    assert (verdicts, item) == ((True, True), {"id": "one", "answer": "4"})
