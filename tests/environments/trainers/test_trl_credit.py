"""TRL's own `GRPOTrainer` with turn credit on a `rollout_func` of one's own; needs torch and TRL."""

import copy
import importlib
import os
from types import SimpleNamespace

import pytest

from environments.trainers.completion_columns import CompletionColumns
from tests.environments.trainers.groups import ONE_ROW
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("trl", reason="needs torch and TRL, to run TRL's own trainer")
steps = importlib.import_module("tests.environments.trainers.trl_steps")
adapter = importlib.import_module("environments.trainers.trl_credit")
datasets = importlib.import_module("datasets")
CREDITED = [ONE_ROW["unscored turns"], ONE_ROW["unequal lengths"]]
ROWS = steps.ROWS


class Watched(adapter.TurnCreditGRPOTrainer):
    """Keeps what the loss was given."""

    def _compute_loss(self, model, inputs):
        self.seen = [*getattr(self, "seen", ()), {name: value.clone() for name, value in inputs.items()}]
        return super()._compute_loss(model, inputs)


def rollouts_of(groups, **changed):
    """A `rollout_func` as users write it, which returns what was rolled out already."""
    columns = CompletionColumns()
    for credited in groups:
        columns.add_group(credited, rows=ROWS)
    siblings = [each for credited in groups for each in credited.group.trajectories]
    output = {
        "prompt_ids": columns.prompt_ids,
        "completion_ids": columns.completion_ids,
        "logprobs": columns.logprobs,
        "env_mask": columns.tool_mask,
        "turn_rewards": [list(each.rewards.turns) for each in siblings],
    }
    return lambda prompts, trainer: copy.deepcopy(output | changed)


def step(folder, rollout_func, outcomes=(0.0,) * 8, *, trainer_cls=Watched, **settings):
    """One step: the trainer, its gradient, and the model before."""
    args = steps.config_of(folder, max_steps=1, **settings)
    begun, gradient = steps.tiny_model(), steps.Gradient()
    before = copy.deepcopy(begun)
    trainer = trainer_cls(
        begun,
        outcomes if callable(outcomes) else lambda **_: list(outcomes),
        args,
        datasets.Dataset.from_dict({"prompt": ["one", "two"]}),
        rollout_func=rollout_func,
        processing_class=steps.TOKENIZER,
        callbacks=[gradient],
    )
    trainer.train()
    return SimpleNamespace(
        trainer=trainer, gradient=gradient.steps[0], before=before, rollouts=SimpleNamespace(groups=CREDITED)
    )


def in_loss(done):
    """The advantages of each completion's trained tokens, by its tokens."""
    found = {}
    for batch in done.trainer.seen:
        for row in range(len(batch["advantages"])):
            kept = batch["completion_mask"][row].bool()
            mask = batch["tool_mask"][row][kept].bool()
            found[tuple(batch["completion_ids"][row][kept].tolist())] = batch["advantages"][row][kept][
                mask
            ].tolist()
    return found


def test_advantages_and_the_step_are_those_of_the_adapter_for_environments(tmp_path):
    done = step(tmp_path, rollouts_of(CREDITED))
    columns = CompletionColumns()
    for credited in CREDITED:
        columns.add_group(credited)
    rows = zip(columns.completion_ids, columns.advantages, columns.tool_mask, strict=True)
    wanted = {tuple(ids): [a for a, on in zip(values, mask, strict=True) if on] for ids, values, mask in rows}
    assert in_loss(done) == {ids: pytest.approx(values, abs=1e-6) for ids, values in wanted.items()}
    cosine, ratio = steps.compared(done, "dr_grpo")
    assert (cosine, ratio) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


TURNS = [len(each.turns) for credited in CREDITED for each in credited.group.trajectories]
NOTHING = [[0.0] * turns for turns in TURNS]


class ByOutcome(Watched):
    estimator = "rloo"


def each_advantage(done):
    """Of the first group's completions, in their order."""
    found = in_loss(done)
    ids = rollouts_of(CREDITED)(None, None)["completion_ids"]
    return [set(found[tuple(row)]) for row in ids[:ROWS]]


def test_the_outcome_is_that_of_trls_reward_functions(tmp_path):
    rollouts = rollouts_of(CREDITED, turn_rewards=NOTHING)
    done = step(tmp_path, rollouts, [3.0, 0.0, 0.0, 0.0, *[0.0] * ROWS], trainer_cls=ByOutcome)
    assert each_advantage(done) == [{3.0}, {-1.0}, {-1.0}, {-1.0}]


def test_a_completion_without_a_reward_is_compared_with_nothing_and_trains_nothing(tmp_path):
    rollouts = rollouts_of(CREDITED, turn_rewards=NOTHING)
    done = step(tmp_path, rollouts, [3.0, None, 0.0, 0.0, *[0.0] * ROWS], trainer_cls=ByOutcome)
    assert each_advantage(done) == [{3.0}, {0.0}, {-1.5}, {-1.5}]


@pytest.mark.parametrize(
    "setting", [{"top_entropy_quantile": 0.5}, {"importance_sampling_level": "sequence"}], ids=str
)
def test_settings_that_break_the_step_are_refused_unless_they_are_wanted(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"GRPOConfig: {next(iter(setting))}="):
        step(tmp_path, rollouts_of(CREDITED), **setting)
