"""A comparison of siblings that breaks, hangs or gives nonsense fails its group, and nothing else."""

import asyncio
import math
import sys
import threading

import pytest

from environments.credit import GroupRules, credited
from environments.record.recorder import read_groups
from environments.run.process_run import process
from tests.adversarial.misbehaviour import RAISED
from tests.environments.chat.chat_env import chat, group_of_chat
from tests.environments.write_file import quiet
from tests.tables import cases, seldom


class Exits:
    def __iter__(self):
        sys.exit(0)


NONSENSE = {
    "too few": [1.0],
    "NaN": [0.0, math.nan, 0.0, 0.0],
    "more than can be squared": [0.0, 1e101, 0.0, 0.0],
    "a mapping": {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0},
    "what exits when it is read": Exits(),
}


def giving(given):
    async def score_group(self, item, trajectories, ctx):
        return given

    return score_group


@cases("given", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_fails_the_group_and_loses_no_rollout(given):
    failed = await group_of_chat(score_group=giving(given))
    assert failed.status == "failed"
    assert failed.reason.startswith("score_group broke: ")
    assert len(failed.group.trajectories) == 4
    assert not any(map(any, failed.advantages))
    assert {each.rewards.group for each in failed.group.trajectories} == {None}


@pytest.mark.parametrize(
    "raised", seldom(RAISED, ["an error", "SystemExit", "CancelledError", "StopIteration"])
)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
async def test_whatever_it_raises_fails_the_group_alone(raised, plain):
    def score_group(self, item, trajectories, ctx):
        raise raised()

    async def awaited(self, item, trajectories, ctx):
        raise raised()

    failed = await group_of_chat(score_group=score_group if plain else awaited)
    assert failed.status == "failed"
    assert len(failed.group.trajectories) == 4


@pytest.mark.parametrize("hook", ["async", "def"])
async def test_one_that_hangs_fails_its_group_by_name_when_its_time_is_up(hook):
    release = asyncio.Event()

    async def score_group(self, item, trajectories, ctx):
        await release.wait()

    def blocked(self, item, trajectories, ctx):
        threading.Event().wait()

    hooks = {"async": score_group, "def": blocked}
    failed = await group_of_chat(score_group=hooks[hook], hook_timeout_s=2.0)
    assert failed.status == "failed"
    assert "score_group took longer than 2 s (--env.hook_timeout_s)" in failed.reason


async def test_one_that_breaks_for_one_item_costs_that_group_and_is_done_again(tmp_path):
    broken = {"b"}

    async def score_group(self, item, trajectories, ctx):
        if item["id"] in broken:
            raise ZeroDivisionError("no judge")
        return [0.0] * len(trajectories)

    path = tmp_path / "r.jsonl"
    settings = {"score_group": score_group, "data_path_to_save_groups": str(path)}
    assert await process(chat(**settings), quiet()) == 0
    groups = {each.group.item_id: each for each in read_groups(path)}
    assert {name for name, each in groups.items() if each.status == "failed"} == {"b"}
    assert groups["b"].reason.startswith("score_group broke: ZeroDivisionError: no judge (test_hostile_group")
    assert [len(each.group.trajectories) for each in groups.values()] == [4, 4, 4]
    broken.clear()
    assert await process(chat(**settings), quiet()) == 0
    assert [each.group.item_id for each in read_groups(path)][3:] == ["b"]


async def test_a_recorded_group_whose_comparison_broke_is_not_credited_afterwards(tmp_path):
    path = tmp_path / "r.jsonl"
    await process(chat(score_group=giving([]), data_path_to_save_groups=str(path)), quiet())
    for recorded in read_groups(path):
        for missing in ("drop", 0.0):
            again = credited(
                recorded.group, "turn_return", policy="p", rules=GroupRules(missing_outcome=missing)
            )
            assert (again.status, again.reason) == ("failed", recorded.reason)
