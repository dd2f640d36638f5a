"""The programs of docs/examples/for: beside the trainer whose wheel installs, else against its types."""

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from environments.trainers.settings import turn_slices

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "examples" / "for"
REWARDS = [[1.0, 0.0], [1.0, 1.0, 1.0], [0.0], [0.0, 1.0]]
CREDIT = [[-0.333, -1.5], [2.333, 1.5, 1.0], [-1.667], [-0.333, 0.0]]
"""By hand: a turn's return without the mean of the siblings' returns from its index on."""


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def printed(program):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(FOLDER / program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def require(name, variable):
    if not os.environ.get(variable):
        pytest.importorskip(name, reason=f"needs {name}, to run its program")


def rounded(rows):
    return [[round(each, 3) for each in row] for row in rows]


def test_every_program_has_forty_lines_at_most_and_is_listed():
    programs = sorted(FOLDER.glob("*.py"))
    assert {each.name for each in programs if len(each.read_text().splitlines()) > 40} == set()
    assert all(f"`{each.name}`" in (FOLDER / "README.md").read_text() for each in programs)


def test_verl_takes_the_true_step_where_the_policy_decides_when_to_stop():
    require("verl", "TURNWISE_REQUIRE_VERL")
    assert "true -0.0630, turn_return -0.0630, grpo -0.2425" in printed("verl_stopping.py")


def test_skyrl_credits_steps_beside_its_own_estimator():
    require("skyrl", "TURNWISE_REQUIRE_SKYRL")
    ours, theirs = printed("skyrl_steps.py").splitlines()[-2:]
    assert ours == f"turn_return {CREDIT}"
    assert theirs == "grpo        [[-0.199, -0.199], [1.391, 1.391, 1.391], [-0.993], [-0.199, -0.199]]"


def test_verifiers_traces_have_advantages_on_their_nodes():
    require("verifiers", "TURNWISE_REQUIRE_VERIFIERS")
    assert f"turn_return {CREDIT}" in printed("verifiers_nodes.py")


# torchtitan 0.3, the fields that the example reads.


@dataclass
class RolloutTurn:
    env_rewards: dict[str, float]
    completion_token_ids: list[int]


@dataclass
class Rollout:
    group_id: int
    rollout_id: int
    turns: list[RolloutTurn]
    reward: float | None = 0.0


@dataclass
class TrainingSample:
    rollout_id: SimpleNamespace
    loss_mask: list[bool]
    advantage: list[float] = field(default_factory=list)


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("nemo_gym_steps.py", f"{CREDIT}\n"),
        ("agent_lightning.py", f"{CREDIT}\n"),
        ("torchtitan_rl.py", "[-0.917, 1.611, -1.667, -0.167]\n"),
    ],
)
def test_a_program_against_published_types_prints_its_advantages(program, shown):
    assert printed(program) == shown


def test_torchtitans_estimator_gives_one_number_a_rollout_and_spreads_those_of_the_turns(example):
    estimator = example("torchtitan_rl").TurnAdvantages()
    rollouts = [
        Rollout(7, number, [RolloutTurn({"env": reward}, [1, 2]) for reward in row])
        for number, row in enumerate(REWARDS)
    ]
    given = estimator(SimpleNamespace(group_id=7, rollouts=rollouts))
    assert rounded([given]) == [[-0.917, 1.611, -1.667, -0.167]]
    # The history was rewritten before turn 2: two samples.
    samples = [
        TrainingSample(SimpleNamespace(turn_id=0), [False, True, True, False, True, True]),
        TrainingSample(SimpleNamespace(turn_id=2), [False, True, True]),
    ]
    first, second = estimator.spread(rollouts[1], samples)
    assert rounded([first.advantage, second.advantage]) == [[0, 2.333, 2.333, 0, 1.5, 1.5], [0, 1.0, 1.0]]


def verified(row):
    """What NeMo Gym's `verify` returns: an OpenAI response, and rewards."""
    output = []
    for _ in row:
        output += [SimpleNamespace(generation_token_ids=[5, 6]), SimpleNamespace(type="function_call_output")]
    return SimpleNamespace(response=SimpleNamespace(output=output), reward=0.0, step_rewards=row)


def test_nemo_gyms_model_calls_are_credited_by_their_step_rewards(example):
    credit = example("nemo_gym_steps").credit
    tokens = credit([verified(row) for row in REWARDS], ["task"] * 4)
    assert [rounded(rollout) for rollout in tokens] == [[[each, each] for each in row] for row in CREDIT]
    one, other = verified([1.0, 0.0]), verified([1.0])
    other.step_rewards = [1.0, 0.0]
    with pytest.raises(ValueError, match="longer"):
        credit([one, other], ["task"] * 2)


def test_agent_lightnings_triplets_have_an_advantage_each_in_the_order_of_its_batch(example):
    module = example("agent_lightning")
    rollouts = [SimpleNamespace(triplets=[SimpleNamespace(reward=each) for each in row]) for row in REWARDS]
    advantages = module.credit(rollouts, ["data"] * 4)
    assert rounded(advantages) == CREDIT
    rows = [("r1", 2), ("r0", 0), ("r3", 1)]
    assert rounded([module.of_rows(advantages, ["r0", "r1", "r2", "r3"], rows)]) == [[1.0, -0.333, 0.0]]


class Client:
    """OpenEnv's client: rollouts of the batch last 2, 3, 1 and 2 steps."""

    made = 0

    def __init__(self):
        self.rewards = [*REWARDS[Client.made % 4]]
        Client.made += 1

    def reset(self):
        return SimpleNamespace(observation="begin", reward=None, done=False)

    def step(self, action):
        assert isinstance(action, str)
        reward = self.rewards.pop(0)
        return SimpleNamespace(observation="next", reward=reward, done=not self.rewards)


def test_trl_trains_on_the_rewards_of_openenvs_steps(example, tmp_path):
    require("trl", "TURNWISE_REQUIRE_TORCH")
    steps = importlib.import_module("tests.environments.trainers.trl_steps")
    datasets, module = importlib.import_module("datasets"), example("trl_openenv")

    class Watched(importlib.import_module("environments.trainers.trl_credit").TurnCreditGRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            self.seen = super()._generate_and_score_completions(inputs)
            return self.seen

    trainer = Watched(
        steps.tiny_model(),
        lambda completions, **_: [0.0] * len(completions),
        steps.config_of(tmp_path, max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=1),
        datasets.Dataset.from_dict({"prompt": ["Walk."]}),
        rollout_func=lambda prompts, trainer: module.play(prompts, trainer, Client),
        processing_class=steps.TOKENIZER,
    )
    trainer.train()
    given = trainer.seen
    mask = given["completion_mask"] * given["tool_mask"]
    turns = [
        [round(float(row[turn.start]), 3) for turn in turn_slices(trained)]
        for row, trained in zip(given["advantages"], mask.tolist(), strict=True)
    ]
    assert turns == CREDIT
