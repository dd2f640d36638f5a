"""An environment's life: set up, opened with its items, torn down however it ends."""

import asyncio
from pathlib import Path

import pytest

from tests.environments.write_file import HELLO, ITEMS, WriteFile, group_from, made
from tools.errors import ConfigError, DatasetError, RunError


class Opened(WriteFile):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.events = []

    async def setup(self):
        self.events.append("setup")

    async def load_items(self):
        self.events.append("items")
        return ITEMS

    async def load_eval_items(self):
        self.events.append("eval items")
        return ITEMS[:1]

    async def teardown(self):
        self.events.append("teardown")


async def test_an_environment_is_set_up_before_its_items_and_torn_down_after_its_rollouts():
    async with made(Opened) as env:
        assert env.events == ["setup", "items"]
        await env.run_group(env.tasks()[0])
    assert env.events == ["setup", "items", "teardown"]


async def test_an_environment_whose_items_cannot_be_loaded_is_torn_down():
    class Empty(Opened):
        async def load_items(self):
            return []

    env = made(Empty)
    with pytest.raises(DatasetError, match="has no items"):
        async with env:
            pass
    assert env.events == ["setup", "teardown"]


async def test_a_dataset_that_load_items_does_not_read_is_refused(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"id": 1}\n')

    class Reads(Opened):
        async def load_items(self):
            return Path(self.config.dataset_path).read_text().splitlines()

    async with made(Reads, dataset_path=str(tmp_path / "items.jsonl")) as env:
        assert env.tasks()
    with pytest.raises(ConfigError, match="did not read --env"):
        async with made(Opened, dataset_path=str(tmp_path / "items.jsonl")):
            pass


async def test_a_second_opening_that_is_refused_does_not_close_the_first_nor_keep_it_open():
    env = made(Opened)
    async with env:
        with pytest.raises(ConfigError, match="open already"):
            async with env:
                pass
        assert env.events == ["setup", "items"]
        await env.run_group(env.tasks()[0])
    assert env.events == ["setup", "items", "teardown"]


def test_what_a_class_states_may_be_a_property_that_reads_the_settings():
    class Chooses(WriteFile):
        tools = property(lambda self: WriteFile.tools if self.config.group_size == 3 else ())

    names = [tool.name for tool in made(Chooses, group_size=3).toolset.tools]
    assert names == [tool.name for tool in made(group_size=3).toolset.tools] != []
    assert made(Chooses, group_size=2).toolset.tools == ()


async def test_settings_that_a_subclass_changes_after_the_base_count_in_its_rollouts():
    class Shorter(WriteFile):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.config = self.config.model_copy(update={"max_turns": 1})

    credited = await group_from(made(Shorter))
    assert {len(each.turns) for each in credited.group.trajectories} == {1}


async def test_an_environment_can_be_opened_again():
    env = made(Opened)
    for _ in range(2):
        async with env:
            await env.run_group(env.tasks()[0])
    assert env.events.count("teardown") == 2


async def test_an_environment_that_is_not_open_gives_no_rollouts_and_no_tasks():
    with pytest.raises(ConfigError, match="is not set up yet; open it"):
        await made(Opened).run_group(HELLO)
    with pytest.raises(ConfigError, match="has no items yet; open it"):
        made().tasks()


def test_one_environment_may_serve_several_event_loops():
    env = made(group_size=4, max_concurrent_rollouts=1)
    groups = [asyncio.run(group_from(env)) for _ in range(2)]
    assert [len(credited.group.trajectories) for credited in groups] == [4, 4]


async def test_an_environment_that_is_open_is_not_opened_again():
    async with made(Opened) as env:
        with pytest.raises(ConfigError, match="is open already"):
            async with env:
                pass
        await env.run_group(env.tasks()[0])
    assert env.events.count("setup") == env.events.count("teardown") == 1


async def test_what_goes_wrong_first_is_not_hidden_by_a_teardown_that_fails_as_well(caplog):
    class Leaky(WriteFile):
        async def teardown(self):
            raise OSError("cannot close")

    with pytest.raises(ValueError, match="mine"):
        async with made(Leaky):
            raise ValueError("mine")
    assert "cannot close" in caplog.text
    with pytest.raises(RunError, match=r"teardown broke: OSError: cannot close \(test_env_lifecycle.py"):
        async with made(Leaky):
            pass
