"""TRL's own `GRPOTrainer` takes the step Σ A ∇log π, with the advantages of the wire; needs torch and TRL."""

import importlib
import os
from dataclasses import replace

import pytest

from environments.shipped.word_guess.env import WordGuessEnv
from environments.trainers.settings import TRL_LOSSES, InexactStepWarning
from environments.wire.training_rows import columns_of
from environments.wire.views import token_advantages
from tests.environments.trainers.groups import WITHHELD
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
    assert compared(done, loss) == gradients.EXACT


@pytest.mark.skipif(not steps.HAS_PEFT, reason="needs peft")
def test_an_adapter_of_peft_plays_and_gets_its_own_gradient(step):
    done = step(steps.played, model=steps.lora_model)
    assert 0 < len(done.gradient) < 500
    assert compared(done, "dr_grpo") == gradients.EXACT


@pytest.mark.parametrize("loss", sorted({*TRL_LOSSES} - {"dr_grpo", "dapo", "bnpo"}))
def test_so_it_is_for_the_other_losses_that_are_allowed(step, loss):
    assert compared(step(CanaryEnv, loss_type=loss), loss) == gradients.EXACT


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


def lost():
    group = canary.make_unequal_lengths()
    zeros = tuple(tuple(0.0 for _ in each) for each in group.advantages)
    return replace(group, status="failed", reason="it broke", advantages=zeros)


def forked():
    """More token rows than there are siblings."""
    group = canary.make_condensed_context()
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
    env = type("Some", (CanaryEnv,), {"groups": {"good": canary.make_dropped_sibling, "bad": group}})
    done = step(env, loss_type=loss)
    done.rollouts.groups = [each for each in done.rollouts.groups if "dropped" in each.group.group_id]
    assert compared(done, loss) == gradients.EXACT
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


def test_keys_and_values_are_kept_while_a_step_is_rolled_out(step, monkeypatch):
    kept, clear = [], adapter.RowCache.clear
    monkeypatch.setattr(adapter.RowCache, "clear", lambda cache: kept.append(len(cache.rows)) or clear(cache))
    step(played, model=brief_model)
    assert kept == [0, ROWS * GROUPS]


def test_an_environment_that_chooses_its_items_is_refused():
    chooses = type("Chooses", (CanaryEnv,), {"next_items": lambda self, history: None})
    with pytest.raises(ConfigError, match="writes next_items"):
        adapter.Rollouts(chooses)


def test_a_withheld_sibling_is_a_row_of_which_nothing_is_trained_and_which_the_divisor_counts(step):
    env = type("Withheld", (CanaryEnv,), {"groups": {"withheld": lambda: WITHHELD}})
    done = step(env, num_generations=3, per_device_train_batch_size=3, gradient_accumulation_steps=1)
    (seen,) = done.trainer.seen
    assert sorted((seen["completion_mask"] * seen["tool_mask"]).any(dim=1).tolist()) == [False, True, True]
    assert compared(done, "dr_grpo") == gradients.EXACT


def test_what_is_refused_can_be_run_with_a_warning(step):
    with pytest.warns(InexactStepWarning, match=r"loss_type=grpo divides each session by its own length"):
        step(CanaryEnv, loss_type="grpo", exact="warn")


@pytest.mark.parametrize("trade", [{"num_iterations": 2}, {"steps_per_generation": 4}], ids=str)
@pytest.mark.parametrize("loss", ["dr_grpo", "dapo"])
def test_steps_on_older_samples_warn_and_add_up_while_weights_hardly_move(step, trade, loss):
    with pytest.warns(InexactStepWarning, match="trains on samples of older weights"):
        done = step(CanaryEnv, steps=2, loss_type=loss, learning_rate=1e-6, **trade)
    expected = -gradients.policy_gradient(done.before, done.rollouts.groups)
    assert gradients.cosine(sum(done.gradients), expected) == pytest.approx(1, abs=1e-4)


def old_gpt():
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256}
    ids = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0}
    return steps.transformers.GPT2LMHeadModel(steps.transformers.GPT2Config(vocab_size=2048, **sizes, **ids))


def test_modules_that_drop_are_refused_and_what_the_refusal_says_is_exact(step):
    with pytest.raises(ConfigError, match=r"dropout \(transformer\.drop\).*use GRPOConfig\(disable_dropout"):
        step(CanaryEnv, model=old_gpt)
    done = step(CanaryEnv, model=old_gpt, disable_dropout=True)
    done.before.eval()
    assert compared(done, "dr_grpo") == gradients.EXACT


def test_a_config_that_drops_is_refused_where_disable_dropout_does_not_reach_it(step):
    with pytest.raises(ConfigError, match=r"at random when it trains \(attention_dropout=0\.1\).*to 0\.0"):
        step(CanaryEnv, model=lambda: tiny_model(attention_dropout=0.1), disable_dropout=True)


def test_fewer_items_than_a_step_takes_are_refused(step):
    with pytest.raises(ConfigError, match=r"a step takes 8 items .*, and there are 4; lower"):
        step(CanaryEnv, gradient_accumulation_steps=4, per_device_train_batch_size=8)
