"""A customer that a model server plays, over real HTTP."""

from environments.config import UserConfig
from environments.policy.scripted import Choice, say
from environments.rollout.simulated_user import SimulatedUser
from environments.shipped.retail import RetailEnv
from environments.shipped.retail.env import RetailConfig
from tests.environments.policy.chat_server import Server, failed
from tests.environments.policy.text_server import playing, said
from tests.equipment.running_server import running_server
from tests.tables import cases


async def rolled_out(*servers, items=3):
    """The first tasks once each, by a flawless agent."""
    config = RetailConfig(scripted_skill=1.0, max_items=items)
    async with RetailEnv(config, servers) as env:
        return [await env.rollout_group(task, 1) for task in env.tasks()]


async def test_a_served_customer_says_what_the_scripted_one_says():
    async with playing(RetailEnv, "user") as url:
        served = await rolled_out(UserConfig(base_url=url, model_name="m"))
    scripted = await rolled_out()
    assert [group.failures for group in served] == [()] * 3
    for left, right in zip(served, scripted, strict=True):
        assert left.trajectories[0].messages == right.trajectories[0].messages
        assert left.trajectories[0].rewards == right.trajectories[0].rewards


SABOTAGES = {
    "a story in 10,000 words": said("Once upon a time", finish_reason="length"),
    "a refusal": said("", refusal="I cannot write that."),
    "silence": said(""),
    "only a vote for nothing": said(" \n "),
    "more than the context": failed(400, "This model's maximum context length is 10 tokens"),
    "what the server filters": failed(400, "content_filter"),
}


@cases("answer", SABOTAGES.values(), ids=SABOTAGES)
async def test_an_agent_that_makes_its_customer_speechless_is_scored_like_one_that_solves_nothing(answer):
    async with running_server(Server(answer).app) as url:
        (group,) = await rolled_out(UserConfig(base_url=url, model_name="m"), items=1)
    (trajectory,) = group.trajectories
    assert (trajectory.end_reason, trajectory.rewards.outcome) == (SimulatedUser.UNUSABLE, 0.0)


async def test_an_agent_that_only_puts_its_customers_off_is_paid_in_no_task():
    class PutsOff(RetailEnv):
        def scripted_choices(self, item, messages, tools, skill):
            return [Choice(probability=1.0, message=say("Please wait."))]

    async with PutsOff(RetailConfig()) as env:
        groups = [await env.rollout_group(task, 1) for task in env.tasks()]
    assert {each.end_reason for group in groups for each in group.trajectories} == {
        SimulatedUser.OUT_OF_REPLIES
    }
    assert {each.score for group in groups for each in group.trajectories} == {0.0}
