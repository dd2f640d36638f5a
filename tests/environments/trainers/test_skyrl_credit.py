"""Turnwise's estimators through SkyRL's dispatch, on its generator's step rewards; needs skyrl and torch.

What runs is SkyRL's: the rewards per token of its generator, the trainer's tensors and advantages, the loss.
"""

import importlib
import os
import typing
from dataclasses import dataclass

import pytest
import typing_extensions

from environments.trainers.completion_columns import completion_columns
from environments.trainers.settings import turn_slices
from tests.environments.trainers.groups import ONE_ROW
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_SKYRL"):
    pytest.importorskip("skyrl", reason="needs skyrl, to call its dispatch")
skyrl = importlib.import_module("tests.environments.trainers.test_skyrl_adapter")
with pytest.MonkeyPatch.context() as patched:
    # Before Python 3.12, pydantic takes no other; SkyRL uses that of `typing`.
    patched.setattr(typing, "TypedDict", typing_extensions.TypedDict)
    adapter = importlib.import_module("environments.trainers.skyrl_credit")
    generator_module = importlib.import_module("skyrl.train.generators.skyrl_gym_generator")
reference, settings, trainer_module = skyrl.reference, skyrl.settings, skyrl.trainer_module


def step_rewards(mask, rewards):
    """Per token, as SkyRL's generator makes them of what an environment's steps return."""
    generator = object.__new__(generator_module.SkyRLGymGenerator)
    generator.custom_chat_template = None
    steps = [(reward, turn.stop - 1) for reward, turn in zip(rewards, turn_slices(mask), strict=True)]
    return generator._build_per_token_rewards(steps, [0] * len(mask), appended_eos_token=False)


def batch_of(masks, rewards, *, config=None, prompts=None, responses=None):
    """A step's batch, by the methods that SkyRL's trainer calls one after the other."""
    config = config or config_of()
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = 1
    config.generator.n_samples_per_prompt = len(masks)
    trainer = skyrl.trainer_of(trainer_module.RayPPOTrainer, config)
    output = {
        "prompt_token_ids": prompts or [[1]] * len(masks),
        "response_ids": responses or [[2] * len(mask) for mask in masks],
        "rewards": [step_rewards(mask, row) for mask, row in zip(masks, rewards, strict=True)],
        "loss_masks": masks,
        "stop_reasons": None,
        "rollout_metrics": None,
        "rollout_logprobs": None,
    }
    output, uids = trainer.postprocess_generator_output(output, ["a"] * len(masks))
    batch = trainer.convert_to_training_input(output, uids)
    batch["values"] = None  # of the critic, which there is none of
    return trainer.compute_advantages_and_returns(batch)


def config_of(**algorithm):
    config = settings.SkyRLTrainConfig()
    config.trainer.algorithm.advantage_estimator = "turn_return"
    for name, value in algorithm.items():
        setattr(config.trainer.algorithm, name, value)
    return config


def of_turns(batch, masks):
    """`[row][turn]`; rows are at the right of SkyRL's tensors."""
    rows = [row[-len(mask) :] for row, mask in zip(batch["advantages"], masks, strict=True)]
    return [
        [set(row[turn].tolist()) for turn in turn_slices(mask)] for row, mask in zip(rows, masks, strict=True)
    ]


MASKS = [[1, 1, 0, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 1]]
REWARDS = [[1.0, 0.5], [0.0, 2.0, 1.0], [0.25]]
BY_HAND = [[{-0.125}, {-2.5}], [{2.125}, {2.5}, {1.0}], [{-2.0}]]


def test_skyrls_trainer_gives_the_advantages_computed_by_hand():
    batch = batch_of(MASKS, REWARDS)
    assert of_turns(batch, MASKS) == BY_HAND
    assert not batch["advantages"][batch["loss_mask"] == 0].any()


def test_a_mask_without_turns_is_refused(monkeypatch):
    plain = trainer_module.RayPPOTrainer.compute_advantages_and_returns.__wrapped__
    monkeypatch.setattr(trainer_module.RayPPOTrainer, "compute_advantages_and_returns", plain)
    with pytest.raises(
        ConfigError, match=r"import environments\.trainers\.skyrl_credit where the trainer is made"
    ):
        batch_of(MASKS, REWARDS)


def test_a_setting_that_breaks_the_step_is_refused_for_our_estimators_alone():
    broken = {"loss_reduction": "sequence_mean"}
    with pytest.raises(ConfigError, match="loss_reduction=sequence_mean divides"):
        batch_of(MASKS, REWARDS, config=config_of(**broken))
    batch_of(MASKS, REWARDS, config=config_of(advantage_estimator="rloo", **broken))


@dataclass
class TurnAlgorithm(settings.AlgorithmConfig):
    """As SkyRL's documentation has settings of one's own."""

    turnwise: dict[str, typing.Any] | None = None


def test_parameters_come_from_skyrls_command_line():
    config_cls = settings.make_config(algorithm_cls=TurnAlgorithm)
    given = ["trainer.algorithm.advantage_estimator=turn_return", "trainer.algorithm.turnwise={gamma: 0.5}"]
    batch = batch_of(MASKS, REWARDS, config=config_cls.from_cli_overrides(given))
    assert of_turns(batch, MASKS)[1][0] == {0.5 * (2.0 + 0.5) - (1.25 + 0.25) / 2}


@pytest.mark.parametrize("credited", ONE_ROW.values(), ids=ONE_ROW)
def test_advantages_and_the_step_are_those_of_the_adapter_for_environments(credited):
    columns = completion_columns(credited)
    rewards = [[reward or 0.0 for reward in each.rewards.turns] for each in credited.group.trajectories]
    batch = batch_of(columns.tool_mask, rewards, prompts=columns.prompt_ids, responses=columns.completion_ids)
    for row, wanted in zip(batch["advantages"], columns.advantages, strict=True):
        assert row[-len(wanted) :].tolist() == pytest.approx(wanted, abs=1e-6)

    model = reference.Bigrams()
    step, expected = skyrl.step(config_of(), batch, model), reference.policy_gradient(model, [credited])
    assert reference.cosine(step, expected) > 0.9999
