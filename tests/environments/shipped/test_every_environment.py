"""Each shipped environment rolls out its first item with a scripted agent that knows the task."""

import pytest

from environments.run.discovery import find_environment
from tests.equipment.shipped import WITH_ITEMS


@pytest.mark.parametrize("name", WITH_ITEMS)
async def test_a_good_player_of_an_environment_is_rewarded(name):
    cls = find_environment(name)
    async with cls(cls.env_config_cls(max_items=1, scripted_skill=1.0)) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
    assert [failure.error for failure in group.failures] == []
    assert group.trajectories[0].score > 0
