"""tinker-cookbook's own way from trajectories to a step, with turn credit; needs it and torch."""

import asyncio
import importlib
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import ONE_ROW
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_TINKER"):
    pytest.importorskip(
        "tinker_cookbook", reason="needs tinker-cookbook and torch, to run its loop's own code"
    )
tinker = importlib.import_module("tinker")
train = importlib.import_module("tinker_cookbook.rl.train")
types = importlib.import_module("tinker_cookbook.rl.types")
completers = importlib.import_module("tinker_cookbook.completers")
adapter = importlib.import_module("environments.trainers.tinker_credit")
service = importlib.import_module("tests.environments.trainers.test_tinker_adapter")
gradients = importlib.import_module("tests.environments.trainers.policy_gradient")


@pytest.fixture(autouse=True)
def its_own_names(monkeypatch):
    """What `use_turn_credit` puts into the cookbook is taken out again."""
    for name in ("compute_advantages", "assemble_training_data"):
        monkeypatch.setattr(train, name, getattr(train, name))


def said(rewards, *, masked=(), forked=()):
    """A trajectory of turns of two tokens; from a `forked` one on the conversation is another."""
    transitions, seen = [], [1]
    for turn, reward in enumerate(rewards):
        seen = [90 + turn] if turn in forked else seen
        action = completers.TokensWithLogprobs(tokens=[10 + turn, 20 + turn], maybe_logprobs=[-1.0, -1.0])
        flag = {types.PARSE_ERROR_MASKED_METRIC_KEY: 1.0} if turn in masked else {}
        transition = types.Transition(
            ob=tinker.ModelInput.from_ints([*seen]),
            ac=action,
            reward=reward,
            episode_done=False,
            metrics=flag,
        )
        transitions.append(transition)
        seen = [*seen, *action.tokens, 50]
    return types.Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


def grouped(trajectories, outcomes):
    return types.TrajectoryGroup(
        trajectories_G=trajectories, final_rewards_G=outcomes, metrics_G=[{} for _ in outcomes]
    )


def prepared(*groups):
    """What the cookbook's loop makes of a batch of rollouts."""
    builders = [SimpleNamespace(logging_tags=lambda: ["all"]) for _ in groups]
    tokenizer = SimpleNamespace(decode=str)
    data, _, _ = asyncio.run(train.prepare_minibatch(builders, [*groups], tokenizer, None, 0.0, 0.0))
    return data


def of_tokens(datum):
    """The advantage of each target that was sampled, by its token."""
    inputs = {name: values.tolist() for name, values in datum.loss_fn_inputs.items()}
    rows = zip(inputs["target_tokens"], inputs["advantages"], inputs["logprobs"], strict=True)
    return {token: advantage for token, advantage, logprob in rows if logprob}


GROUP = [[1.0, 0.5], [0.0, 2.0], [0.25]]
OUTCOMES = [0.0, 1.0, 0.0]
# Returns are 1.5, 0.5 · 3, 3 · 0.25.
BY_HAND = [
    {10: -0.125, 20: -0.125, 11: -2.5, 21: -2.5},
    {10: 2.125, 20: 2.125, 11: 2.5, 21: 2.5},
    {10: -2.0, 20: -2.0},
]


def test_its_loop_gives_each_transition_the_advantage_computed_by_hand():
    adapter.use_turn_credit()
    assert [*map(of_tokens, prepared(grouped([said(row) for row in GROUP], OUTCOMES)))] == BY_HAND


def test_groups_are_not_compared_and_parameters_reach_the_estimator():
    adapter.use_turn_credit(baseline="none", gamma=0.5)
    data = prepared(grouped([said([1.0, 0.5])], [0.0]), grouped([said([0.0, 2.0])], [1.0]))
    assert [of_tokens(datum)[10] for datum in data] == [1.25, 1.5]


def test_a_turn_that_the_cookbook_masks_is_compared_and_not_trained():
    adapter.use_turn_credit()
    trajectories = [said([1.0, 0.5], masked={0}), said([0.0, 2.0]), said([0.25])]
    data = prepared(grouped(trajectories, OUTCOMES))
    assert of_tokens(data[0]) == {10: 0.0, 20: 0.0, 11: -2.5, 21: -2.5}
    assert data[0].loss_fn_inputs["mask"].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert of_tokens(data[1]) == BY_HAND[1]


def test_a_rewritten_conversation_has_several_datums_and_one_credit():
    adapter.use_turn_credit()
    trajectories = [said([1.0, 0.5], forked={1}), said([0.0, 2.0]), said([0.25])]
    first, second, *_ = prepared(grouped(trajectories, OUTCOMES))
    assert of_tokens(first) | of_tokens(second) == BY_HAND[0]


def test_an_empty_first_observation_is_refused():
    adapter.use_turn_credit()
    first = said([1.0])
    transition = replace(first.transitions[0], ob=tinker.ModelInput.empty())
    with pytest.raises(ConfigError, match="an observation before a transition is empty"):
        prepared(grouped([replace(first, transitions=[transition]), said([0.0])], [0.0, 0.0]))


def rewarded(trajectory, rewards):
    pairs = zip(trajectory.transitions, rewards, strict=True)
    return replace(trajectory, transitions=[replace(each, reward=reward or 0.0) for each, reward in pairs])


@pytest.mark.parametrize("credited", ONE_ROW.values(), ids=ONE_ROW)
def test_advantages_and_the_step_are_those_of_the_adapter_for_environments(credited):
    adapter.use_turn_credit()
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    trajectories = [
        rewarded(service.as_theirs(each), each.rewards.turns) for each in sampled.group.trajectories
    ]
    data = prepared(grouped(trajectories, [0.0] * len(trajectories)))
    for datum, row in zip(data, credited_rows(credited), strict=True):
        length = datum.model_input.length
        assert datum.loss_fn_inputs["advantages"].tolist() == pytest.approx(
            row.advantages[1 : length + 1], abs=1e-6
        )

    client = service.Service(model)
    asyncio.run(train.train_step(data, client, 1e-3, 1, "importance_sampling"))
    assert gradients.cosine(-client.gradient, gradients.policy_gradient(model, [sampled])) > 0.9999
