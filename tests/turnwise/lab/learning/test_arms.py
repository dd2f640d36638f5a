"""One arm learns `stations` with one seed: what comes out, what is recorded, and when it stops."""

import json

import numpy as np
import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.recorder import read_groups
from environments.record.run_folder import RunFolder
from environments.shipped.stations.env import RIGHT_KEY, SIGNS, StationsConfig, StationsEnv
from tools.errors import RunError
from turnwise.lab.learning.arms import Arm, LearningSetup, run_arm
from turnwise.lab.learning.choice_policy import ChoicePolicy
from turnwise.lab.learning.stations_arms import exact_success

TURN_RETURN = Arm(name="turn_return", estimator="turn_return", learning_rate=0.8)


def setup_of(env_cls=StationsEnv, *, cap=60, **changes):
    task = changes.pop("task", "stop")
    changes = {"success": exact_success} | changes
    return LearningSetup(
        make_env=env_cls, config=StationsConfig(task=task, max_items=240), cap=cap, **changes
    )


async def learned(tmp_path, arm=TURN_RETURN, seed=0, **changes):
    return await run_arm(setup_of(**changes), arm, seed, RunFolder(tmp_path))


async def test_the_groups_of_a_step_were_sampled_by_the_weights_of_that_step(tmp_path):
    result = await learned(tmp_path, cap=3)
    groups = list(read_groups(tmp_path / "record.jsonl"))
    versions = [each.group.trajectories[0].weight_versions for each in groups]
    assert versions == [(f"step-{step}",) for step in (0, 0, 1, 1, 2, 2)]
    assert [each.group.item_id for each in groups] == list("012345")
    assert {each.policy for each in groups} == {"learned:turn_return:seed-0"}
    assert [step.step for step in result.curve] == [0, 1, 2, 3]
    assert result.steps is None


async def test_a_run_ends_where_the_target_is_reached(tmp_path):
    result = await learned(tmp_path)
    assert result.steps == result.curve[-1].step < 30
    assert result.curve[-1].success >= 0.8 > result.curve[-2].success


async def test_without_a_success_it_goes_on_to_the_cap(tmp_path):
    result = await learned(tmp_path, cap=2, success=None)
    assert [step.step for step in result.curve] == [0, 1, 2]
    assert [bool(step.numbers) for step in result.curve] == [True, True, False]
    assert result.steps is None


async def test_permuted_advantages_are_those_of_the_batch_and_another_experiment(tmp_path):
    permuted = Arm(name="turn_return", estimator="turn_return", learning_rate=0.8, permuted=True)
    fingerprints, scores = set(), []
    for arm, folder in ((TURN_RETURN, "as they are"), (permuted, "permuted")):
        result = await learned(tmp_path / folder, arm, cap=2)
        groups = list(read_groups(tmp_path / folder / "record.jsonl"))
        fingerprints |= {each.group.fingerprint for each in groups}
        scores.append([each.success for each in result.curve])
    assert len(fingerprints) == 2
    assert scores[0][0] == scores[1][0]
    assert scores[0][1] != scores[1][1]


class Broken(StationsEnv):
    async def compute_turn_rewards(self, item, trajectory, ctx):
        if int(item["id"]) >= 2:
            raise LookupError(f"no price for {item['id']}")
        return await super().compute_turn_rewards(item, trajectory, ctx)


async def test_the_first_step_in_which_every_group_fails_ends_it_and_the_record_has_it(tmp_path):
    with pytest.raises(RunError, match=r"every group of step 1 failed.*no price for …"):
        await learned(tmp_path, env_cls=Broken)
    status = [json.loads(line)["status"] for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert status[2:] == ["failed", "failed"]


def test_exact_success_is_the_chance_of_eight_right_keys_in_a_row():
    renderer = ChatMLRenderer.embedded()
    policy = ChoicePolicy(renderer)
    assert exact_success(policy) == pytest.approx(0.25**8)
    assert len(policy.table.values) == 4 * len(SIGNS)
    policy.table.values = np.array([50.0 * (key == RIGHT_KEY[sign]) for sign in SIGNS for key in "abcd"])
    assert exact_success(policy) == pytest.approx(1.0)
