"""tinker-cookbook's own `train_step` on our datums; its service's loss, as documented, is computed here."""

import asyncio
import importlib
import os

import numpy as np
import pytest

from environments.wire.credited_rows import credited_rows
from tests.environments.trainers.groups import every_group

if not os.environ.get("TURNWISE_REQUIRE_TINKER"):
    pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook and torch, to run its train_step")
torch = importlib.import_module("torch")
tinker = importlib.import_module("tinker")
train = importlib.import_module("tinker_cookbook.rl.train")
data_processing = importlib.import_module("tinker_cookbook.rl.data_processing")
types = importlib.import_module("tinker_cookbook.rl.types")
completers = importlib.import_module("tinker_cookbook.completers")
adapter = importlib.import_module("environments.trainers.tinker_datums")
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


def step(credited, loss_fn="importance_sampling"):
    """The gradient that the cookbook's step asks for, what it should be, and the data that was sent."""
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    service = Service(model)
    asyncio.run(train.train_step(adapter.datums(sampled), service, 1e-3, 1, loss_fn))
    return -service.gradient, gradients.policy_gradient(model, [sampled]), service.data


@every_group
def test_the_advantages_that_are_sent_are_those_of_the_wire(credited):
    _, _, sent = step(credited)
    rows = [row for row in credited_rows(credited) if any(label >= 0 for label in row.mask)]
    for datum, row in zip(sent, rows, strict=True):
        assert datum.loss_fn_inputs["advantages"].tolist() == np.float32(row.advantages[1:]).tolist()
        assert datum.model_input.to_ints() == row.tokens[:-1]
        assert datum.loss_fn_inputs["target_tokens"].tolist() == row.tokens[1:]


@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
@every_group
def test_the_step_is_the_policy_gradient(credited, loss_fn):
    got, expected, _ = step(credited, loss_fn)
    assert gradients.measured(got, expected) == gradients.EXACT


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
