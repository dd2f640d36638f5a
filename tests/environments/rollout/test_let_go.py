"""A rollout that broke holds nothing on: what it had read is freed with it, at once."""

import gc
import weakref

import pytest

from environments.data.tasks import GroupTask
from environments.rollout.failures import let_go
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


def test_errors_that_lead_to_each_other_end():
    one, other = ValueError(1), ExceptionGroup("2", [ValueError(2)])
    one.__cause__, other.__context__ = other, one
    let_go(one)
    assert one.__traceback__ is None
