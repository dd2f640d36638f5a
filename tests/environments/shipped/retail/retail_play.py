"""Rollouts of `retail` in which the agent says what a test wants."""

from environments.policy.scripted import say
from environments.rollout.items.tasks import GroupTask
from environments.shipped.retail import RetailEnv
from environments.shipped.retail.env import RetailConfig
from environments.shipped.retail.shop import load_rows
from tests.environments.written_policy import Written

TASKS = {task["id"]: task for task in load_rows("tasks")}
BYE = say("Is there anything else?")


async def play(task, *messages, env=RetailEnv, scripted=False, **settings):
    """One rollout in which the agent says these messages, one a turn, then goodbye."""
    policy = None if scripted else Written(*messages, BYE)
    async with env(RetailConfig(**settings), policy=policy) as opened:
        group = await opened.rollout_group(GroupTask(item=TASKS[task], item_id=task), 1)
    assert group.failures == ()
    return group.trajectories[0]
