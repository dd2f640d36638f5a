"""The share that is held out for evaluation: decided by ids alone, and never rolled out in training."""

import pytest

from environments.rollout.hooks import Hooks
from environments.rollout.items.tasks import is_held_out
from tests.environments.counted_items import Counted, counted
from tools.errors import ConfigError, DatasetError

IDS = [f"item {n}" for n in range(2000)]


def held_out(share, ids=IDS):
    return {each for each in ids if is_held_out(each, share)}


def test_it_is_about_the_share_that_was_asked_for():
    assert len(held_out(0.1)) == pytest.approx(200, abs=45)


def test_a_larger_share_holds_out_what_a_smaller_one_does():
    assert held_out(0.1) < held_out(0.3)


async def ids_of(*, evaluation, **fields):
    env = counted(**fields)
    async with env.opened(evaluation=evaluation):
        return set(env.item_ids)


async def test_process_and_evaluate_have_no_item_in_common_and_leave_none_out():
    train = await ids_of(evaluation=False, eval_share=0.4)
    test = await ids_of(evaluation=True, eval_share=0.4)
    assert not train & test
    assert len(train | test) == Counted.size


async def test_the_seed_of_a_run_does_not_move_an_item_into_another_runs_evaluation():
    assert await ids_of(evaluation=True, eval_share=0.4, seed=1) == await ids_of(
        evaluation=True, eval_share=0.4, seed=2
    )


async def test_fewer_items_leave_the_others_where_they_are():
    few = await ids_of(evaluation=True, eval_share=0.4, max_items=8)
    assert few == {each for each in await ids_of(evaluation=True, eval_share=0.4) if int(each[1:]) < 8}


async def test_a_share_that_holds_nothing_out_is_refused():
    with pytest.raises(DatasetError, match=r"eval_share 1e-09 of 10 items: none is held out"):
        await ids_of(evaluation=True, eval_share=1e-9)


async def test_evaluation_items_of_its_own_and_a_held_out_share_are_refused():
    class Own(Counted):
        load_eval_items = Counted.load_items

    assert Own.load_eval_items is not Hooks.load_eval_items
    with pytest.raises(ConfigError, match="writes load_eval_items"):
        counted(Own, eval_share=0.1)
