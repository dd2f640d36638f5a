"""A critic's values: the hook `values`, their way into credit, and what a record keeps of them."""

import pytest

from environments.credit import credited
from environments.record.group_line import decode_group, encode_group
from environments.record.recorder import read_groups
from environments.run.process_run import process
from tests.environments.chat.chat_env import TASK, chat, group_of_chat
from tests.environments.write_file import quiet
from tests.tables import cases
from tools.errors import CreditError

GAE = {"estimator": "turn_gae", "group_size": 2}


def falling(self, item, trajectory):
    return [1.0 / (1 + turn.index) for turn in trajectory.turns]


async def test_the_values_of_the_hook_are_those_that_turn_gae_subtracts():
    done = await group_of_chat(values=falling, estimator_params={"lam": 0.5}, **GAE)

    rows = [[1.0 / (1 + turn.index) for turn in each.turns] for each in done.group.trajectories]
    params = {"lam": 0.5, "values": rows}
    assert done.advantages == credited(done.group, "turn_gae", policy="p", params=params).advantages
    assert done.advantages != (await group_of_chat(estimator_params={"lam": 0.5}, **GAE)).advantages


async def test_a_hook_that_waits_may_give_any_sequence_of_numbers():
    async def values(self, item, trajectory):
        return tuple(0 for _ in trajectory.turns)

    done = await group_of_chat(values=values, **GAE)

    assert {turn.value for each in done.group.trajectories for turn in each.turns} == {0.0}


async def test_a_record_keeps_values_so_that_its_credit_can_be_computed_again(tmp_path):
    path = tmp_path / "record.jsonl"
    settings = {**GAE, "estimator": "turn_return", "data_path_to_save_groups": str(path)}
    await process(chat(values=falling, **settings), quiet())

    # The three groups of a run are recorded in the order in which they end.
    (done,) = (each for each in read_groups(path) if each.group.item_id == TASK.item_id)
    valued = await group_of_chat(values=falling, **GAE)
    assert credited(done.group, "turn_gae", policy="p").advantages == valued.advantages
    assert decode_group(encode_group(done), "record", 1) == done


async def test_an_environment_without_the_hook_leaves_them_out_of_its_record():
    assert b'"value":' not in encode_group(await group_of_chat(**GAE))


@cases("given", [0.5, [0.5], "abc", None, {"a": 1.0}])
async def test_values_that_are_not_one_for_each_turn_fail_the_group(given):
    done = await group_of_chat(values=lambda self, item, trajectory: given, **GAE)

    assert done.status == "failed"
    assert "values gave" in done.reason
    assert "give one number for each of the 3 turns" in done.reason


async def test_a_value_that_is_no_number_costs_its_sibling():
    def values(self, item, trajectory):
        return [float("nan") if trajectory.sibling else 0.0] * len(trajectory.turns)

    done = await group_of_chat(values=values, min_group_size=1, **GAE)

    (failure,) = done.group.failures
    assert "values, turn 1: a value is a finite number, got nan" in failure.error


def test_an_estimator_of_steps_is_refused_before_anything_is_rolled_out():
    with pytest.raises(CreditError, match="reinforce_pp compares all groups of a training step"):
        chat(estimator="reinforce_pp")
