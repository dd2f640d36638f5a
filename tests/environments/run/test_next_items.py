"""`next_items`: asked for what to roll out next, and taken up again from the record."""

import pytest

from environments.record.recorder import read_groups
from environments.rollout.items.tasks import PastGroup
from environments.run.process_run import NextItemsTasks, process
from tests.environments.counted_items import Counted, counted, shown_console
from tools.errors import ConfigError


class Curriculum(Counted):
    """The first two items until one of them passed, then the third once."""

    asked: list

    def next_items(self, history):
        type(self).asked.append(([(each.item_id, each.epoch) for each in history], history.in_flight))
        if any(each.item_id == "i2" for each in history) or "i2" in history.in_flight:
            return None
        passed = any(each.mean_score == 1.0 for each in history)
        return ["i2"] if passed else ["i0", "i1"]


def curriculum(tmp_path, cls=Curriculum, **fields):
    cls.asked = []
    fields.setdefault("max_concurrent_rollouts", 1)
    fields.setdefault("total_steps", 50)
    fields |= {"group_size": 1, "estimator_params": {"singleton": "raw"}}
    return counted(cls, data_path_to_save_groups=str(tmp_path / "r.jsonl"), **fields)


def keys(tmp_path):
    return [(each.group.item_id, each.group.epoch) for each in read_groups(tmp_path / "r.jsonl")]


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr("environments.run.group_source.groups_at_once", lambda *_: 1)


async def test_what_comes_next_follows_from_what_came_out_until_nothing_is_asked_for_or_in_flight(tmp_path):
    env = curriculum(tmp_path, scripted_skill=1.0, min_group_size=1)
    assert await process(env, shown_console()) == 0
    assert keys(tmp_path) == [("i0", 0), ("i1", 0), ("i2", 0)]
    assert env.asked[-1] == ([("i0", 0), ("i1", 0), ("i2", 0)], ())


@pytest.mark.parametrize(("total", "groups"), [(5, 5), (-1, 10)])
async def test_total_steps_bound_what_is_asked_for(tmp_path, total, groups):
    env = curriculum(tmp_path, scripted_skill=0.0, min_group_size=1, total_steps=total)
    assert await process(env, shown_console()) == 0
    assert len(keys(tmp_path)) == groups


async def test_a_run_that_is_taken_up_again_hands_the_hook_what_the_record_has(tmp_path):
    await process(curriculum(tmp_path, scripted_skill=0.0, min_group_size=1, total_steps=3), shown_console())
    env = curriculum(tmp_path, scripted_skill=0.0, min_group_size=1, total_steps=6)
    assert await process(env, shown_console()) == 0
    assert env.asked[0][0] == [("i0", 0), ("i1", 0), ("i0", 1)]
    assert sorted(keys(tmp_path)) == [("i0", 0), ("i0", 1), ("i0", 2), ("i0", 3), ("i1", 0), ("i1", 1)]


async def test_a_group_that_was_lost_in_flight_leaves_no_gap(tmp_path):
    class Same(Curriculum):
        def next_items(self, history):
            return ["i1"]

    await process(curriculum(tmp_path, Same, min_group_size=1, total_steps=4), shown_console())
    record = tmp_path / "r.jsonl"
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    await process(curriculum(tmp_path, Same, min_group_size=1, total_steps=4), shown_console())
    assert sorted(keys(tmp_path)) == [("i1", 0), ("i1", 1), ("i1", 2), ("i1", 3)]


async def test_with_groups_in_flight_nothing_means_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("environments.run.group_source.groups_at_once", lambda *_: 4)

    class OneByOne(Curriculum):
        def next_items(self, history):
            type(self).asked.append(len(history))
            return [f"i{len(history)}"] if not history.in_flight and len(history) < 3 else None

    env = curriculum(tmp_path, OneByOne, min_group_size=1, max_concurrent_rollouts=4)
    assert await process(env, shown_console()) == 0
    assert keys(tmp_path) == [("i0", 0), ("i1", 0), ("i2", 0)]


@pytest.mark.parametrize("setting", [{"shuffle": True}, {"weight_field": "share"}], ids=["shuffle", "weight"])
def test_two_who_say_what_comes_next_are_refused(tmp_path, setting):
    with pytest.raises(
        ConfigError, match=r"writes next_items, which says what comes next; leave out --env\."
    ):
        curriculum(tmp_path, **setting)


@pytest.mark.parametrize(("status", "held"), [("ok", 1), ("no_credit", 1), ("failed", 0)])
async def test_a_failed_group_of_an_earlier_run_is_not_finished(tmp_path, status, held):
    past = PastGroup(item_id="i0", epoch=0, status=status, scores=(), lost=1)
    async with curriculum(tmp_path) as env:
        asked = NextItemsTasks(env, None, most=5, past=[past], say=lambda _: None)
        assert (asked.done, asked.count_recorded()) == (held, held)
