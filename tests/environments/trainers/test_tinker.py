"""tinker-cookbook's own loop and `train_step`, on our datums and with turn credit.

The loss of its service, as documented, is computed here.
"""

import asyncio
import importlib
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import CREDIT_BY_HAND, every_group
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_TINKER"):
    pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook and torch, to run its train_step")
torch = importlib.import_module("torch")
tinker = importlib.import_module("tinker")
train = importlib.import_module("tinker_cookbook.rl.train")
data_processing = importlib.import_module("tinker_cookbook.rl.data_processing")
types = importlib.import_module("tinker_cookbook.rl.types")
completers = importlib.import_module("tinker_cookbook.completers")
adapter = importlib.import_module("environments.trainers.tinker_datums")
credit = importlib.import_module("environments.trainers.tinker_credit")
gradients = importlib.import_module("tests.environments.trainers.policy_gradient")


class Service:
    """A training client whose `forward_backward` is the documented loss of each name, on a model here.

    https://tinker-docs.thinkingmachines.ai/losses
    """

    def __init__(self, model):
        self.model, self.data, self.gradient = model, [], None

    def forward_backward(self, data, loss_fn, loss_fn_config=None):
        self.data += data
        total, outputs = 0.0, []
        for datum in data:
            given = {name: value.to_torch() for name, value in datum.loss_fn_inputs.items()}
            log_p = torch.log_softmax(
                self.model(torch.tensor(datum.model_input.to_ints())[None]).logits[0], dim=-1
            )
            taken = log_p[torch.arange(len(log_p)), given.pop("target_tokens")]
            total = total + LOSSES[loss_fn](taken, **given)
            outputs.append({"logprobs": tinker.TensorData.from_torch(taken.detach())})
        self.gradient = gradients.gradient_of(total, self.model)
        result = tinker.ForwardBackwardOutput(
            loss_fn_output_type="ArrayRecord", loss_fn_outputs=outputs, metrics={}
        )
        return _done(result)

    def optim_step(self, _):
        return _done(tinker.OptimStepResponse())


def _done(result):
    future = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


def ratio(taken, logprobs):
    return torch.exp(taken - logprobs)


def ppo(taken, logprobs, advantages):
    clipped = ratio(taken, logprobs).clamp(0.8, 1.2)
    return -torch.minimum(ratio(taken, logprobs) * advantages, clipped * advantages).sum()


LOSSES = {
    "importance_sampling": lambda taken, logprobs, advantages: -(ratio(taken, logprobs) * advantages).sum(),
    "ppo": ppo,
    "cispo": lambda taken, logprobs, advantages: (
        -(ratio(taken, logprobs).clamp(0.8, 1.2).detach() * taken * advantages).sum()
    ),
    "dro": lambda taken, logprobs, advantages: (
        -(taken * advantages - 0.5 * 0.05 * (taken - logprobs) ** 2).sum()
    ),
}


def step_of(data, model, loss_fn="importance_sampling"):
    """The service, after the cookbook's step on these data."""
    service = Service(model)
    asyncio.run(train.train_step(data, service, 1e-3, 1, loss_fn))
    return service


def advantages_in_loss(credited):
    model = gradients.Bigrams(256)
    sent = step_of(adapter.datums(gradients.sampled_by(model, credited)), model).data
    rows = [row for row in credited_rows(credited) if any(label >= 0 for label in row.mask)]
    for datum, row in zip(sent, rows, strict=True):
        yield datum.loss_fn_inputs["advantages"].tolist(), np.float32(row.advantages[1:]).tolist()
        yield datum.model_input.to_ints(), row.tokens[:-1]
        yield datum.loss_fn_inputs["target_tokens"].tolist(), row.tokens[1:]


def steps(credited):
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    expected = gradients.policy_gradient(model, [sampled])
    for loss_fn in ("importance_sampling", "ppo", "cispo"):
        yield -step_of(adapter.datums(sampled), model, loss_fn).gradient, expected, 1.0


@every_group
def test_a_trajectory_with_one_advantage_gives_the_cookbooks_own_data(credited):
    one = credited.__class__(
        group=gradients.sampled_by(gradients.Bigrams(256), credited).group,
        advantages=tuple((0.5,) * len(each) for each in credited.advantages),
        policy="p",
        estimator="rloo",
    )
    theirs = [
        datum
        for trajectory in one.group.trajectories
        if all(turn.trained for turn in trajectory.turns)
        for datum in data_processing.trajectory_to_data(as_theirs(trajectory), 0.5)
    ]
    ours = [
        datum
        for datum, row in zip(
            adapter.datums(one),
            (row for row in credited_rows(one) if any(i >= 0 for i in row.mask)),
            strict=True,
        )
        if all(turn.trained for turn in row.trajectory.turns)
    ]
    for datum, their in zip(ours, theirs, strict=True):
        # Theirs ends with the last sampled token; what comes after it trains nothing.
        length = their.model_input.length
        assert datum.model_input.to_ints()[:length] == their.model_input.to_ints()
        assert datum.loss_fn_inputs.keys() == their.loss_fn_inputs.keys()
        for name, values in their.loss_fn_inputs.items():
            assert datum.loss_fn_inputs[name].dtype == values.dtype
            assert datum.loss_fn_inputs[name].tolist()[:length] == values.tolist()


def as_theirs(trajectory):
    """A trajectory in the cookbook's types: what was seen and said, turn by turn."""
    transitions = []
    for turn in trajectory.turns:
        row, span = trajectory.rows[turn.span.row], turn.span
        action = completers.TokensWithLogprobs(
            tokens=list(row.token_ids[span.start : span.end]),
            maybe_logprobs=list(row.logprobs[span.start : span.end]),
        )
        seen = tinker.ModelInput.from_ints(list(row.token_ids[: span.start]))
        transitions.append(types.Transition(ob=seen, ac=action, reward=0.0, episode_done=False))
    return types.Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


# --- turn credit in the cookbook's loop -------------------------------------------------------------------


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


def credit_by_hand(gamma=1.0):
    """The advantages of the turns of `CREDIT_BY_HAND`, which its loop gives each transition."""
    credit.use_turn_credit(gamma=gamma)
    rewards = [[reward or 0.0 for reward in row] for row in CREDIT_BY_HAND]
    # The loop adds an outcome to the last turn.
    outcomes = [0.0, rewards[1].pop(), 0.0]
    rewards[1].append(0.0)
    data = prepared(grouped([said(row) for row in rewards], outcomes))
    found = [of_tokens(datum) for datum in data]
    assert all(each[10 + turn] == each[20 + turn] for each in found for turn in range(len(each) // 2))
    return [[each[10 + turn] for turn in range(len(each) // 2)] for each in found]


GROUP = [[1.0, 0.5], [0.0, 2.0], [0.25]]
OUTCOMES = [0.0, 1.0, 0.0]


def test_groups_are_not_compared_and_parameters_reach_the_estimator():
    credit.use_turn_credit(baseline="none", gamma=0.5)
    data = prepared(grouped([said([1.0, 0.5])], [0.0]), grouped([said([0.0, 2.0])], [1.0]))
    assert [of_tokens(datum)[10] for datum in data] == [1.25, 1.5]


def test_a_turn_that_the_cookbook_masks_is_compared_and_not_trained():
    credit.use_turn_credit()
    trajectories = [said([1.0, 0.5], masked={0}), said([0.0, 2.0]), said([0.25])]
    data = prepared(grouped(trajectories, OUTCOMES))
    assert of_tokens(data[0]) == {10: 0.0, 20: 0.0, 11: -2.5, 21: -2.5}
    assert data[0].loss_fn_inputs["mask"].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert of_tokens(data[1])[11] == 2.5


def test_a_rewritten_conversation_has_several_datums_and_one_credit():
    credit.use_turn_credit()
    trajectories = [said([1.0, 0.5], forked={1}), said([0.0, 2.0]), said([0.25])]
    first, second, *_ = prepared(grouped(trajectories, OUTCOMES))
    assert of_tokens(first) | of_tokens(second) == {10: -0.125, 20: -0.125, 11: -2.5, 21: -2.5}


def test_an_empty_first_observation_is_refused():
    credit.use_turn_credit()
    first = said([1.0])
    transition = replace(first.transitions[0], ob=tinker.ModelInput.empty())
    with pytest.raises(ConfigError, match="an observation before a transition is empty"):
        prepared(grouped([replace(first, transitions=[transition]), said([0.0])], [0.0, 0.0]))


def rewarded(trajectory, rewards):
    pairs = zip(trajectory.transitions, rewards, strict=True)
    return replace(trajectory, transitions=[replace(each, reward=reward or 0.0) for each, reward in pairs])


def credit_and_step(credited):
    """Advantages with those of the wire, and a step with its constant, of a group's turn rewards."""
    credit.use_turn_credit()
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    trajectories = [rewarded(as_theirs(each), each.rewards.turns) for each in sampled.group.trajectories]
    data = prepared(grouped(trajectories, [0.0] * len(trajectories)))
    pairs = [
        (datum.loss_fn_inputs["advantages"].tolist(), row.advantages[1 : datum.model_input.length + 1])
        for datum, row in zip(data, credited_rows(credited), strict=True)
    ]
    return pairs, (-step_of(data, model).gradient, gradients.policy_gradient(model, [sampled]), 1.0)
