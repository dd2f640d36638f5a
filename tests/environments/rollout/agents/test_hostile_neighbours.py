"""Whatever a program does to the endpoint, the rollouts of others end as they do without it."""

import asyncio
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments.record.group_line import encode_group
from tests.environments.rollout.agents.neighbours import ATTACKS, HONEST, roll_out_beside

ALWAYS = (
    "unfinished_bodies", "idle_connections", "slow_headers", "garbage", "unread_streams", "resets",
    "unknown_fields", "long_names", "chunks",
)  # fmt: skip
"""The others run with `--soak`."""
OPEN_FILES = 300
MORE_MEMORY_MB = 300


@contextmanager
def few_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def results(credited):
    return [(each.stop_reason, each.rewards) for each in credited.group.trajectories]


@pytest.fixture(scope="module")
def alone():
    """How the honest rollouts end without a neighbour."""
    credited, _ = asyncio.run(roll_out_beside(None))
    return results(credited)


@pytest.mark.parametrize(
    "attack", [each if each in ALWAYS else pytest.param(each, marks=pytest.mark.soak) for each in ATTACKS]
)
def test_a_hostile_neighbour_changes_no_end_and_no_reward(attack, alone, caplog):
    with few_open_files():
        beside, hostile = asyncio.run(roll_out_beside(attack, rollout_timeout_s=150))
    assert results(beside) == alone
    assert len(alone) == HONEST
    assert len(encode_group(hostile)) < 70 << 20
    assert not [record for record in caplog.records if record.exc_info]


def memory_mb():
    resident = Path("/proc/self/statm").read_text().split()[1]
    return int(resident) * resource.getpagesize() >> 20


def test_unfinished_bodies_are_not_kept_in_memory():
    async def most():
        highest = before = memory_mb()
        rolling = asyncio.create_task(roll_out_beside("unfinished_bodies", rollout_timeout_s=150))
        while not rolling.done():
            highest = max(highest, memory_mb())
            await asyncio.wait({rolling}, timeout=0.02)
        await rolling
        return highest - before

    assert asyncio.run(most()) < MORE_MEMORY_MB
