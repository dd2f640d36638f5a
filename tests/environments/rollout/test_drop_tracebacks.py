"""A rollout that is over holds nothing on: what it had read is freed with it, at once."""

import gc
import weakref

import pytest

from environments.rollout.boundary import drop_tracebacks
from environments.rollout.items.tasks import GroupTask
from environments.shipped.word_guess.env import WordGuessEnv
from tests.environments.write_file import HELLO, WriteFile, made
from tools.errors import PolicyError


class Held:
    """What a frame holds."""


HELD = []


class Lost:
    name = "lost"

    async def complete(self, request):
        held = Held()
        HELD.append(weakref.ref(held))
        try:
            raise KeyError(0)
        except KeyError as error:
            raise PolicyError("lost") from error


class Breaking(WriteFile):
    def format_prompt(self, item):
        held = Held()
        HELD.append(weakref.ref(held))
        raise ValueError(0)


@pytest.fixture(autouse=True)
def no_collections():
    HELD.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("cls", "policy"), [(WriteFile, Lost()), (Breaking, None)], ids=["policy", "environment"]
)
async def test_what_a_lost_rollout_had_read_is_freed_at_once(cls, policy):
    async with made(cls, policy=policy) as env:
        group = await env.rollout_group(GroupTask(item=HELLO.item, item_id="0"), 2)
    assert len(group.failures) == len(HELD) == 2
    assert "line" in group.failures[0].traceback
    assert [held() for held in HELD] == [None, None]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"condenser": ["trim_tool_output", "keep_last_turns"], "condenser_turns": 1},
        {"condenser": ["fit_context"], "condenser_tokens": 300},
        {"condenser": ["summarise"], "condenser_turns": 1},
        {"condenser": ["summarise"], "condenser_turns": 1, "token_budget": 20},
        {"max_token_length": 330},
        {"profile": True},
    ],
    ids=["plain", "last", "fit", "summary", "no tokens left", "overflow", "profile"],
)
async def test_a_finished_rollout_leaves_nothing_to_the_collector(settings):
    config, servers = WordGuessEnv.config_init()
    config = type(config)(**config.model_dump(exclude_unset=True) | settings)
    async with WordGuessEnv(config, servers) as env:
        await env.rollout_group(env.tasks()[0], 2)  # what is made once
        gc.collect()
        group = await env.rollout_group(env.tasks()[0], 2)
        assert len(group.trajectories) == 2
        del group
        assert gc.collect() == 0


def test_errors_that_lead_to_each_other_end():
    one, other = ValueError(1), ExceptionGroup("2", [ValueError(2)])
    one.__cause__, other.__context__ = other, one
    drop_tracebacks(one)
    assert one.__traceback__ is None
