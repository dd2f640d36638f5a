"""SkyRL's own way from a generator's output to its loss, with credited groups and turn credit; needs skyrl.

What runs is SkyRL's: the rewards per token of its generator, the checks of the output, the trainer's tensors,
the dispatch of estimators, advantages and their reduction, the policy loss. Stubbed are its workers, and the
model, which here is a table.
"""

import asyncio
import importlib
import os
import typing
import warnings
from dataclasses import dataclass, replace
from functools import reduce
from types import SimpleNamespace

import pytest
import typing_extensions

from environments.trainers.completion_columns import completion_columns
from environments.trainers.settings import BREAKERS, InexactStepWarning, check_settings, turn_slices
from tests.environments.trainers.groups import CANARY_GROUPS as GROUPS
from tests.environments.trainers.groups import CREDIT_BY_HAND
from tools.errors import ConfigError
from turnwise.lab.probe.canaries import GROUP_SIZE

if not os.environ.get("TURNWISE_REQUIRE_SKYRL"):
    pytest.importorskip("skyrl", reason="needs skyrl, to run its data path and loss")
torch = importlib.import_module("torch")
torch.set_num_threads(1)
with pytest.MonkeyPatch.context() as patched:
    # Before Python 3.12, pydantic takes no other; SkyRL uses that of `typing`.
    patched.setattr(typing, "TypedDict", typing_extensions.TypedDict)
    adapter = importlib.import_module("environments.trainers.skyrl")
    trainer_module = importlib.import_module("skyrl.train.trainer")
    async_module = importlib.import_module("skyrl.train.fully_async_trainer")
    ppo_utils = importlib.import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
    credit = importlib.import_module("environments.trainers.skyrl_credit")
    generator_module = importlib.import_module("skyrl.train.generators.skyrl_gym_generator")
    settings = importlib.import_module("skyrl.train.config.config")
reference = importlib.import_module("tests.environments.trainers.policy_gradient")

MAX_SEQ_LEN = 128


def exact_values(name):
    """The values of a setting of SkyRL's algorithm that we do not refuse."""
    return next(each.exact for each in BREAKERS["SkyRL"] if each.names == f"trainer.algorithm.{name}")


def config_of(groups=1, **algorithm):
    """SkyRL's defaults, with what our refusals ask for."""
    config = plain_config(**{"advantage_estimator": "turnwise", **algorithm})
    config.generator.n_samples_per_prompt = GROUP_SIZE
    config.trainer.eval_interval = -1
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = groups
    config.trainer.algorithm.max_seq_len = MAX_SEQ_LEN
    return config


def plain_config(**algorithm):
    config = settings.SkyRLTrainConfig()
    for name, value in algorithm.items():
        setattr(config.trainer.algorithm, name, value)
    return config


def batch_of(config, groups):
    """A step's batch, by the methods that SkyRL's trainer calls one after the other."""

    async def run_group(item, rows):
        assert rows == GROUP_SIZE
        return groups[item["number"]]

    trainer = trainer_of(trainer_module.RayPPOTrainer, config)
    trainer.generator = adapter.TurnwiseGenerator(config, run_group)
    prompts = [number for number in range(len(groups)) for _ in range(GROUP_SIZE)]
    uids = [f"prompt {number}" for number in prompts]
    asked = {"prompts": [[] for _ in prompts], "env_extras": [{"number": number} for number in prompts]}
    output = asyncio.run(trainer.generate(asked))
    output, uids = trainer.postprocess_generator_output(output, uids)
    return with_advantages(trainer, trainer.convert_to_training_input(output, uids))


def trainer_of(trainer_class, config):
    trainer = object.__new__(trainer_class)
    trainer.cfg, trainer.all_metrics = config, {}
    trainer.tokenizer = SimpleNamespace(pad_token_id=0, decode=str)
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    return trainer


def with_advantages(trainer, batch):
    batch["values"] = None  # of the critic, which there is none of
    batch = trainer.compute_advantages_and_returns(batch)
    boundaries = batch.metadata["policy_mini_batch_boundaries"]
    raw = batch["advantages"].clone()
    scaled = trainer._normalize_advantages(batch, boundaries, batch.metadata["policy_prompt_boundaries"])
    return scaled, raw, trainer.all_metrics


def step(config, batch, model, *, sampler=None, behind="old"):
    """The gradient of the policy's loss over micro-batches of two rows, as it would be subtracted.

    With a `sampler`, older weights, log-probabilities of the `rollout` are its own, and `old` ones may be.
    """
    taken, older = taken_by(model, batch), taken_by(sampler or model, batch).detach()
    old = older if behind == "old" else taken.detach()
    loss_of = ppo_utils.PolicyLossRegistry.get(config.trainer.algorithm.policy_loss_type)
    total = 0.0
    for rows in torch.arange(len(taken)).split(2):
        loss, _ = loss_of(
            taken[rows],
            old[rows],
            batch["advantages"][rows],
            config=config.trainer.algorithm,
            loss_mask=batch["loss_mask"][rows],
            rollout_logprobs=older[rows],
        )
        total = total + loss
    return -reference.gradient_of(total, model)


def taken_by(model, batch):
    """Log-probabilities of responses, `[row, token]`."""
    width = batch["loss_mask"].shape[1]
    # As SkyRL's workers ask a model: rows are padded on the left, which has no positions.
    seen = batch["attention_mask"]
    places = (seen.long().cumsum(-1) - 1).masked_fill(seen == 0, 1)
    logits = model(batch["sequences"], attention_mask=seen, position_ids=places).logits
    log_p = torch.log_softmax(logits, dim=-1)[:, :-1]
    return log_p.gather(-1, batch["sequences"][:, 1:, None])[..., 0][:, -width:]


def measured(groups, **algorithm):
    config = config_of(len(groups), **algorithm)
    batch, _, _ = batch_of(config, groups)
    model = reference.Bigrams(256)
    taken, expected = step(config, batch, model), reference.policy_gradient(model, groups)
    rows, tokens = len(groups) * GROUP_SIZE, batch["loss_mask"].sum().item()
    constant = rows * MAX_SEQ_LEN if algorithm.get("loss_reduction") == "seq_mean_token_sum_norm" else tokens
    return taken, expected, constant


def advantages_in_loss(credited):
    _, raw, _ = batch_of(config_of(), [credited])
    wire = completion_columns(credited, rows=GROUP_SIZE).advantages
    return [(row[-len(wanted) :].tolist(), wanted) for row, wanted in zip(raw, wire, strict=True)]


def steps(credited):
    for reduction in exact_values("loss_reduction"):
        yield measured([credited], loss_reduction=reduction)


@pytest.mark.parametrize("loss", sorted(ppo_utils.PolicyLossRegistry.list_available()))
def test_a_loss_takes_the_policy_gradient_or_is_refused(loss):
    if loss in exact_values("policy_loss_type"):
        assert reference.measured(*measured(list(GROUPS.values()), policy_loss_type=loss)) == reference.EXACT
        return
    with pytest.raises(ConfigError, match=rf"policy_loss_type={loss} "):
        check_settings("SkyRL", config_of(policy_loss_type=loss))


def test_skyrls_own_defaults_are_exact_but_for_its_estimator():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.TurnwiseGenerator(config_of(kl_loss_coef=0.1, use_entropy_loss=True), None)
    with pytest.raises(ConfigError, match=r"advantage_estimator=grpo .*; use turnwise$"):
        adapter.TurnwiseGenerator(config_of(advantage_estimator="grpo"), None)


def test_a_group_without_credit_trains_nothing_and_is_counted():
    groups = [GROUPS["condensed context"], replace(GROUPS["unscored turns"], status="no_credit")]
    batch, _, metrics = batch_of(config_of(2), groups)
    assert metrics["turnwise/groups_left_out"] == 1
    assert batch["loss_mask"][GROUP_SIZE:].sum() == 0
    assert batch["loss_mask"][:GROUP_SIZE].sum() > 0


def test_a_group_with_more_rows_than_rollouts_trains_nothing_and_is_counted():
    output = adapter.output_of([GROUPS["condensed context"]], rows=3)
    assert output["rollout_metrics"]["turnwise/groups_left_out"] == 1
    assert output["loss_masks"] == [[0], [0], [0]]


def test_groups_of_the_fully_asynchronous_trainer_arrive_with_their_advantages():
    config = config_of(len(GROUPS), policy_loss_type="rollout_is")
    config.trainer.fully_async.enabled = True
    trainer = trainer_of(async_module.FullyAsyncRayPPOTrainer, config)
    trainer.global_step, trainer.max_staleness_steps, trainer.trajectory_logger = 5, 4, None
    generated = [
        async_module.GeneratedOutputGroup(
            generator_output=adapter.output_of([credited], rows=GROUP_SIZE), uid=name,
            global_step_when_scheduled=4,
        )
        for name, credited in GROUPS.items()
    ]  # fmt: skip
    batch = trainer.convert_generation_group_mini_batch_to_training_input(generated)
    batch, _, metrics = with_advantages(trainer, batch)
    assert metrics["async/staleness_mean"] == 1
    model = reference.Bigrams()
    taken, expected = step(config, batch, model), reference.policy_gradient(model, GROUPS.values())
    assert reference.measured(taken, expected, batch["loss_mask"].sum()) == reference.EXACT


TRADES = {
    "trainer.update_epochs_per_batch": (2, {}, "old"),
    "trainer.fully_async.enabled": (True, {"policy_loss_type": "rollout_is"}, "rollout"),
    "trainer.algorithm.off_policy_correction.tis_ratio_type": ("sequence", {}, "rollout"),
}


@pytest.mark.parametrize("trade", TRADES)
def test_a_trade_costs_what_the_warning_says(trade):
    value, algorithm, behind = TRADES[trade]
    groups = list(GROUPS.values())
    config = config_of(len(groups), **algorithm)
    batch, _, _ = batch_of(config, groups)
    *path, last = trade.split(".")
    setattr(reduce(getattr, path, config), last, value)
    with pytest.warns(InexactStepWarning, match=rf"{trade}={value} .*each token's advantage stays") as found:
        adapter.TurnwiseGenerator(config, None)
    sampler = reference.Bigrams()
    model = reference.moved(sampler, groups)
    taken = step(config, batch, model, sampler=sampler, behind=behind) * batch["loss_mask"].sum()
    expected = reference.policy_gradient(model, groups)
    cosine, ratio = reference.measured(taken, expected)
    assert f"cosine {cosine:.2f}, norm ratio {ratio:.2f}" in str(found[0].message)


def test_whole_batches_of_groups_whose_sums_differ_are_refused():
    config = config_of(1)
    config.trainer.fully_async.sample_full_batch = True
    with pytest.raises(ConfigError, match="sample_full_batch=True takes sums of advantages for scores"):
        check_settings("SkyRL", config)


# --- turn credit in SkyRL's registry ----------------------------------------------------------------------


def step_rewards(mask, rewards):
    """Per token, as SkyRL's generator makes them of what an environment's steps return."""
    generator = object.__new__(generator_module.SkyRLGymGenerator)
    generator.custom_chat_template = None
    steps = [(reward, turn.stop - 1) for reward, turn in zip(rewards, turn_slices(mask), strict=True)]
    return generator._build_per_token_rewards(steps, [0] * len(mask), appended_eos_token=False)


def credited_batch(masks, rewards, *, config=None, prompts=None, responses=None):
    """A step's batch, by the methods that SkyRL's trainer calls one after the other."""
    config = config or credit_config()
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = 1
    config.generator.n_samples_per_prompt = len(masks)
    trainer = trainer_of(trainer_module.RayPPOTrainer, config)
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


def credit_config(**algorithm):
    return plain_config(**{"advantage_estimator": "turn_return", **algorithm})


MASKS = [[1, 1, 0, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 1]]
REWARDS = [[reward or 0.0 for reward in row] for row in CREDIT_BY_HAND]


@dataclass
class TurnAlgorithm(settings.AlgorithmConfig):
    """Settings of one's own, as SkyRL's documentation has them."""

    turnwise: dict[str, typing.Any] | None = None


def credit_by_hand(gamma=1.0):
    """The advantages of the turns of `CREDIT_BY_HAND`, by the parameters of SkyRL's command line."""
    given = ["advantage_estimator=turn_return", f"turnwise={{gamma: {gamma}}}"]
    config_cls = settings.make_config(algorithm_cls=TurnAlgorithm)
    config = config_cls.from_cli_overrides([f"trainer.algorithm.{each}" for each in given])
    batch = credited_batch(MASKS, REWARDS, config=config)
    assert not batch["advantages"][batch["loss_mask"] == 0].any()
    # Rows are at the right of SkyRL's tensors.
    return [
        [value for turn in turn_slices(mask) for value in {*row[-len(mask) :][turn].tolist()}]
        for row, mask in zip(batch["advantages"], MASKS, strict=True)
    ]


def credit_and_step(credited):
    """Advantages with those of the wire, and a step with its constant, of a group's turn rewards."""
    columns = completion_columns(credited)
    rewards = [[reward or 0.0 for reward in each.rewards.turns] for each in credited.group.trajectories]
    batch = credited_batch(
        columns.tool_mask, rewards, prompts=columns.prompt_ids, responses=columns.completion_ids
    )
    rows = zip(batch["advantages"], columns.advantages, strict=True)
    model = reference.Bigrams()
    taken, expected = step(credit_config(), batch, model), reference.policy_gradient(model, [credited])
    scale = (expected.norm() / taken.norm()).item()
    return [(row[-len(wanted) :].tolist(), wanted) for row, wanted in rows], (taken, expected, scale)


def test_a_mask_without_turns_is_refused(monkeypatch):
    plain = trainer_module.RayPPOTrainer.compute_advantages_and_returns.__wrapped__
    monkeypatch.setattr(trainer_module.RayPPOTrainer, "compute_advantages_and_returns", plain)
    with pytest.raises(
        ConfigError, match=r"import environments\.trainers\.skyrl_credit where the trainer is made"
    ):
        credited_batch(MASKS, REWARDS)


def test_a_setting_that_breaks_the_step_is_refused_for_our_estimators_alone():
    broken = {"loss_reduction": "sequence_mean"}
    with pytest.raises(ConfigError, match="loss_reduction=sequence_mean divides"):
        credited_batch(MASKS, REWARDS, config=credit_config(**broken))
    credited_batch(MASKS, REWARDS, config=credit_config(advantage_estimator="rloo", **broken))
