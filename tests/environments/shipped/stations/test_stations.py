"""What `stations` pays, by its tasks."""

import pytest

from environments.shipped.stations.env import RIGHT_KEY, STATIONS, StationsConfig, StationsEnv


async def one_group(**settings):
    async with StationsEnv(StationsConfig(max_items=1, **settings)) as env:
        return (await env.run_group(env.tasks()[0])).group.trajectories


async def test_a_wrong_key_ends_the_rollout_and_earns_nothing():
    for trajectory in await one_group(scripted_skill=0.3, seed=1):
        rewards = list(trajectory.rewards.turns)
        if trajectory.end_reason == "a wrong key":
            assert rewards == [1 / STATIONS] * (len(rewards) - 1) + [0.0]
        else:
            assert rewards == [1 / STATIONS] * STATIONS


@pytest.mark.parametrize("task", ["independent", "delayed", "shuffled"])
async def test_other_tasks_go_on_to_the_last_sign_and_pay_as_much_in_all(task):
    paid = await one_group(task=task, scripted_skill=0.5)
    pressed = await one_group(task="independent", scripted_skill=0.5)
    assert [len(each.turns) for each in paid] == [STATIONS] * 4
    assert [each.score for each in paid] == pytest.approx([each.score for each in pressed])


async def test_a_delayed_reward_is_paid_at_the_last_turn_alone():
    for trajectory in await one_group(task="delayed", scripted_skill=0.5):
        assert set(trajectory.rewards.turns[:-1]) == {0.0}


async def test_a_turn_is_taken_in_the_state_of_its_sign():
    (first, *_) = await one_group(scripted_skill=1.0)
    keys = [turn.message.tool_calls[0].arguments for turn in first.turns]
    assert keys == [f'{{"key": "{RIGHT_KEY[turn.anchor]}"}}' for turn in first.turns]
