"""TRL's own `GRPOTrainer` takes the step Σ A ∇log π, with the advantages of the wire; needs torch and TRL."""

import importlib
import os
from dataclasses import replace

import pytest

from environments.shipped.word_guess.env import WordGuessEnv
from environments.trainers.settings import TRL_LOSSES
from environments.wire.columns import columns_of
from environments.wire.views import token_advantages
from tests.environments.trainers.groups import WITHHELD
from tests.environments.wire.forked_groups import forked_group, with_credit
from tools.errors import ConfigError, RunError
from turnwise.lab.probe import canaries as canary
from turnwise.lab.probe.canaries import CanaryEnv

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's own trainer")
steps = importlib.import_module("tests.environments.trainers.trl_steps")
adapter, gradients, torch, trl = steps.adapter, steps.gradients, steps.torch, steps.trl
compared, only, tiny_model, brief_model = steps.compared, steps.only, steps.tiny_model, steps.brief_model
Talk = steps.Talk
ROWS, GROUPS, TOKENIZER, Watched = steps.ROWS, steps.GROUPS, steps.TOKENIZER, steps.Watched


@pytest.fixture
def step(tmp_path):
    """One step of TRL's on an environment's groups."""
    return lambda env, **settings: steps.run(env, tmp_path, **settings)


def scripted(policy):
    """A real environment, played by its scripted agent."""
    return WordGuessEnv(WordGuessEnv.env_config_cls(group_size=ROWS, max_items=GROUPS))


ENVS = {**{name.replace(" ", "_"): only(name) for name in canary.CANARIES}, "word_guess": scripted}


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize(("loss", "accumulation"), [("dr_grpo", 2), ("dapo", 2), ("bnpo", 1)], ids=str)
def test_the_step_is_the_gradient_of_the_advantages(step, env, loss, accumulation):
    options = {"num_generations": ROWS}
    if env != "word_guess":
        options["per_device_train_batch_size"] = ROWS // accumulation
    done = step(ENVS[env], loss_type=loss, gradient_accumulation_steps=accumulation, **options)
    cosine, ratio = compared(done, loss)
    assert cosine >= 0.9999
    assert ratio == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("loss", sorted({*TRL_LOSSES} - {"dr_grpo", "dapo", "bnpo"}))
def test_so_it_is_for_the_other_losses_that_are_allowed(step, loss):
    cosine, ratio = compared(step(CanaryEnv, loss_type=loss), loss)
    assert (cosine, ratio) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


@pytest.mark.parametrize("env", ENVS)
def test_the_advantages_in_the_loss_are_those_of_the_wire(step, env):
    done = step(ENVS[env], per_device_train_batch_size=ROWS // 2 if env != "word_guess" else ROWS)
    wire = {}
    for group in done.rollouts.groups:
        given = columns_of(token_advantages(group))
        wire |= {tuple(ids): of for ids, of in zip(given["tokens"], given["advantages"], strict=True)}
    found = 0
    for batch in done.trainer.seen:
        for row in range(len(batch["advantages"])):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
            kept = batch["completion_mask"][row].bool()
            ids = (*prompt, *batch["completion_ids"][row][kept].tolist())
            in_loss = batch["advantages"][row] * batch["tool_mask"][row]
            expected = torch.tensor(wire.get(ids, [0.0] * len(ids)), dtype=torch.float32)
            assert torch.equal(in_loss[kept], expected[len(prompt) :])
            assert not in_loss[~kept].any()
            found += ids in wire
    assert found == len(wire)


WRONG = {
    "loss_type='grpo'": {"loss_type": "grpo"},
    "loss_type='sapo'": {"loss_type": "sapo"},
    "importance_sampling_level='sequence'": {"importance_sampling_level": "sequence"},
    "loss_type='bnpo' with gradient_accumulation_steps > 1": {"loss_type": "bnpo"},
    "mask_truncated_completions=True": {"mask_truncated_completions": True},
    "top_entropy_quantile < 1": {"top_entropy_quantile": 0.5},
    "epsilon < 0": {"epsilon": -0.1},
    "neftune_noise_alpha": {"neftune_noise_alpha": 5.0},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused_would_have_been_another_step(step, name):
    with pytest.raises(ConfigError, match="GRPOConfig"):
        step(CanaryEnv, **WRONG[name])
    done = step(CanaryEnv, exact="warn", **WRONG[name])
    exact = -gradients.policy_gradient(done.before, done.rollouts.groups)
    assert gradients.cosine(done.gradient, exact) < 0.9999


def altered(**fields):
    return lambda: replace(canary.unequal_lengths(), **fields)


def lost():
    group = canary.unequal_lengths()
    zeros = tuple(tuple(0.0 for _ in each) for each in group.advantages)
    return replace(group, status="failed", reason="it broke", advantages=zeros)


def forked():
    """More token rows than there are siblings."""
    group = canary.condensed_context()
    siblings = group.group.trajectories
    return replace(
        group,
        group=replace(group.group, trajectories=(siblings[0], siblings[0], siblings[1])),
        advantages=(group.advantages[0], group.advantages[0], group.advantages[1]),
    )


@pytest.mark.parametrize(
    ("became", "group"), [("failed", lost), ("left_out", forked)], ids=["failed", "forked"]
)
@pytest.mark.parametrize("loss", ["dr_grpo", "dapo"])
def test_a_group_that_cannot_be_trained_on_takes_nothing_from_the_others(step, became, group, loss):
    env = type("Some", (CanaryEnv,), {"groups": {"good": canary.dropped_sibling, "bad": group}})
    done = step(env, loss_type=loss)
    done.rollouts.groups = [each for each in done.rollouts.groups if "dropped" in each.group.group_id]
    cosine, ratio = compared(done, loss)
    assert (cosine, ratio) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))
    assert dict(done.rollouts.counts) == {"ok": 1, became: 1, "padding": ROWS + 1}


def test_a_step_without_any_group_stops_the_run_and_says_why(step):
    with pytest.raises(RunError, match=r"none of the 2 groups of a step can be trained on; .* it broke"):
        step(type("Lost", (CanaryEnv,), {"groups": {"one": lost, "two": lost}}))


def played(policy):
    return Talk(Talk.env_config_cls(max_tokens_per_turn=100), policy=policy)


@pytest.fixture
def sampled(step):
    """Two steps whose rollouts the model itself plays, with the model before each."""
    before = []

    class Keeping(Watched):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            # Not a copy of the model: TRL binds its forward to the original.
            model = tiny_model()
            model.load_state_dict(self.model.state_dict())
            before.append((model, self.rollout_func.groups))
            return output

    return step(played, steps=2, trainer=Keeping, model=brief_model), before


def test_the_model_plays_with_the_logprobs_of_its_own_distribution(sampled):
    assert max(len(each.turns) for each in sampled[1][0][1][0].group.trajectories) == 3
    for model, groups in sampled[1]:
        for trajectory in (each for group in groups for each in group.group.trajectories):
            for turn in trajectory.turns:
                row, (start, end) = trajectory.rows[turn.span.row], (turn.span.start, turn.span.end)
                tokens = torch.tensor([row.token_ids])
                log_p = torch.log_softmax(model.eval()(tokens).logits[0].float(), -1)
                taken = log_p[torch.arange(start - 1, end - 1), tokens[0, start:end]]
                assert taken.tolist() == pytest.approx(row.logprobs[start:end], abs=1e-4)


def test_each_turn_has_the_version_of_the_weights_that_sampled_it(sampled):
    versions = [
        {turn.weight_version for each in groups for of in each.group.trajectories for turn in of.turns}
        for _, groups in sampled[1]
    ]
    assert versions == [{"step-0"}, {"step-1"}]


def test_equal_weights_and_seeds_sample_equal_tokens(step):
    first, second = (step(played, model=brief_model).rollouts.groups for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert [each.rows[0].token_ids for each in one.group.trajectories] == [
            each.rows[0].token_ids for each in other.group.trajectories
        ]


def test_trls_own_scalar_grpo_takes_the_same_rollouts_and_their_scores(tmp_path):
    args = trl.GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, num_generations=ROWS, per_device_train_batch_size=ROWS,
        scale_rewards="none", report_to=[], use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    with adapter.Rollouts(only("unequal lengths")) as rollouts:
        trainer = trl.GRPOTrainer(
            tiny_model(), adapter.rollout_score, args, rollouts.dataset, processing_class=TOKENIZER,
            rollout_func=rollouts,
        )  # fmt: skip
        trainer.train()
    scores = [each.score for each in rollouts.groups[0].group.trajectories]
    assert trainer.state.log_history[0]["reward"] == pytest.approx(sum(scores) / ROWS)


def test_an_environment_that_chooses_its_items_is_refused():
    chooses = type("Chooses", (CanaryEnv,), {"next_items": lambda self, history: None})
    with pytest.raises(ConfigError, match="writes next_items"):
        adapter.Rollouts(chooses)


ODD = {
    "alone": with_credit(forked_group([[[3, 2]]], [[0.5, 1.0]])),
    "tiny": with_credit(forked_group([[[1]], [[1, 1]], [[1]]], [[1.0], [0.0, 1.0], [None]])),
    "nothing said": with_credit(forked_group([[[0]], [[2, 0]], [[3]]], [[0.5], [0.0, 1.0], [1.0]])),
    "untrained end": with_credit(
        forked_group([[[3], [2]], [[2, 2]]], [[0.5, 1.0], [0.0, 0.25]], untrained=frozenset({(0, 1)}))
    ),
}


def test_a_withheld_sibling_is_a_row_of_which_nothing_is_trained_and_which_the_divisor_counts(step):
    env = type("Withheld", (CanaryEnv,), {"groups": {"withheld": lambda: WITHHELD}})
    done = step(env, num_generations=3, per_device_train_batch_size=3, gradient_accumulation_steps=1)
    (seen,) = done.trainer.seen
    assert sorted((seen["completion_mask"] * seen["tool_mask"]).any(dim=1).tolist()) == [False, True, True]
    assert compared(done, "dr_grpo") == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


def test_odd_groups_beside_each_other_are_the_gradient_of_the_advantages(step):
    env = type("Odd", (CanaryEnv,), {"groups": {name: lambda each=each: each for name, each in ODD.items()}})
    done = step(env, per_device_train_batch_size=2 * ROWS, loss_type="dapo")
    assert compared(done, "dapo") == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))
