"""Rewards that are none, missing or absurd: no number is made of them, and they cost what they must."""

import math

import pytest
from rich.console import Console

from environments.record.recorder import read_groups
from environments.run.group_source import note_of
from environments.run.process_run import process
from environments.run.tracking import group_numbers
from environments.wire.payloads import Shape, pack
from tests.environments.write_file import ScalarWriteFile, WriteFile, group_from, made, quiet
from tools.errors import WireError


class Given(WriteFile):
    """Gives each sibling the rewards that a test wrote down."""

    turns = (1.0, 1.0, 1.0, 1.0)
    outcomes = (None, None, None, None)

    async def prepare(self, item, sandbox):
        """Nothing."""

    async def score_turn(self, item, turn, ctx):
        return None

    async def compute_turn_rewards(self, item, trajectory, ctx):
        return [self.turns[trajectory.sibling], *[None] * (len(trajectory.turns) - 1)]

    async def compute_outcome(self, item, trajectory, ctx):
        return self.outcomes[trajectory.sibling]


def giving(**fields):
    return type("Giving", (Given,), fields)


MIXED = giving(turns=(0.5, 0.0, 1.0, 0.0), outcomes=(1.0, None, 0.0, 0.5))
SILENT = giving(turns=(0.5, None, 1.0, 0.0))
UNSCORED = giving(turns=(None, None, None, None))

NO_REWARD = {
    "an empty mapping": {},
    "NaN": math.nan,
    "infinity": math.inf,
    "more than a float holds": 10**400,
    "more than can be squared": 1e101,
    "components with NaN": {"a": math.nan},
    "components whose name is half a surrogate pair": {"\ud800": 1.0},
    "components that overflow": {"a": 1e308, "b": 1e308},
    "an object": object(),
}  # fmt: skip


@pytest.mark.parametrize("reward", NO_REWARD.values(), ids=NO_REWARD)
@pytest.mark.parametrize("hook", ["turns", "outcomes"])
async def test_what_is_no_reward_costs_its_sibling_alone(hook, reward):
    given = {"turns": (1.0, 0.0, 0.5, 0.25), "outcomes": (1.0, 0.0, 0.5, 0.25)}
    given[hook] = (*given[hook][:1], reward, *given[hook][2:])
    credited = await group_from(made(giving(**given)))
    (failure,) = credited.group.failures
    assert (failure.sibling, failure.error_class) == (1, "RewardError")
    assert [each.sibling for each in credited.group.trajectories] == [0, 2, 3]


@pytest.mark.parametrize("reward", [None, {}], ids=["None", "an empty mapping"])
async def test_a_scalar_environment_has_to_give_a_number(reward):
    class Scalar(ScalarWriteFile):
        async def compute_reward(self, item, trajectory, ctx):
            return reward if trajectory.sibling == 1 else 1.0

    credited = await group_from(made(Scalar))
    (failure,) = credited.group.failures
    assert (failure.sibling, failure.error_class) == (1, "RewardError")


@pytest.mark.parametrize(("env", "sibling"), [(MIXED, "1"), (SILENT, "1")])
async def test_what_is_missing_beside_others_fails_the_group_and_is_recorded_so(tmp_path, env, sibling):
    path = tmp_path / "record.jsonl"
    await process(made(env, data_path_to_save_groups=str(path)), Console())
    for credited in read_groups(path):
        assert credited.status == "failed"
        assert f": siblings {sibling}; missing_outcome says what is to count" in credited.reason
        assert not any(map(any, credited.advantages))


@pytest.mark.parametrize("env", [MIXED, SILENT])
async def test_a_class_says_what_it_counts_as_and_a_setting_wins(env):
    stated = type("Stated", (env,), {"missing_outcome": -1})
    credited = await group_from(made(stated))
    assert credited.group.trajectories[1].rewards.outcome == -1.0
    assert (await group_from(made(stated, missing_outcome="refuse"))).status == "failed"


async def test_nothing_scored_is_no_score_in_the_record_and_for_nobody_who_watches(tmp_path):
    path = tmp_path / "record.jsonl"
    console = quiet()
    await process(made(UNSCORED, data_path_to_save_groups=str(path)), console)
    for credited in read_groups(path):
        assert (credited.status, credited.reason) == ("no_credit", "nothing was scored")
        assert {each.score for each in credited.group.trajectories} == {None}
        assert "group/score/mean" not in group_numbers(note_of(credited).summary)
        with pytest.raises(WireError, match="the score must be a plain, finite float, got None"):
            pack(credited, Shape(group_size=4))
    assert "mean 0.000" not in console.file.getvalue()


async def test_scores_that_float32_does_not_know_reach_no_trainer():
    credited = await group_from(made(giving(turns=(1e50, 0.0, 0.0, 0.0))))
    assert credited.status == "ok"
    for view in ("token_advantages", "turn_rows", "prefix_rows"):
        with pytest.raises(WireError, match="too large for the float32"):
            pack(credited, Shape(group_size=4, view=view))
