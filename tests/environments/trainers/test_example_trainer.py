"""The step of the unmodified Atropos example trainer on what is posted of a group; needs torch."""

import importlib
import math
import os
from itertools import product

import orjson
import pytest

from environments.trainers.completion_columns import shifted_post
from environments.trainers.settings import InexactStepWarning, check_example_trainer
from environments.trajectory import IGNORED
from environments.wire.credited_rows import credited_rows
from environments.wire.payloads import Shape, pack, post_text
from tests.environments.trainers.groups import GROUPS
from tools.errors import ConfigError
from turnwise.lab.probe.canaries import GROUP_SIZE

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="needs torch, to run the example trainer's step")
torch = importlib.import_module("torch")
data = importlib.import_module("example_trainer.data")
training = importlib.import_module("example_trainer.training")
config = importlib.import_module("example_trainer.config")
gradients = importlib.import_module("tests.environments.trainers.policy_gradient")

DIVISOR = 1024
FORKED = GROUPS["untrained turns"]


def posts_of(credited, *, divisor=DIVISOR, **shape):
    parts = pack(credited, Shape(group_size=GROUP_SIZE, divisor=divisor, **shape)).parts
    return [orjson.loads(post_text(part.body)) for part in parts]


def trainers_step(credited, *, accumulation=1, divisor=DIVISOR, **shape):
    """What a whole step of the trainer's changes, times the constant; and the policy gradient.

    Its data path cuts a batch into micro-batches; plain gradient descent with rate 1 changes weights by the
    gradient.
    """
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    expected = gradients.policy_gradient(model, [sampled])
    posts = posts_of(sampled, divisor=divisor, **shape)
    rows = sum(len(post["tokens"]) for post in posts)
    accumulation = math.gcd(rows, accumulation)
    micro_batch = rows // accumulation
    *batches, logprobs = data.pad_data_to_good_offset({"batch": posts}, micro_batch)
    settings = config.TrainingConfig(
        model_name="m", device="cpu", lr=1.0, gradient_accumulation_steps=accumulation
    )
    before = model.table.weight.detach().clone()
    training.run_training_step(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        *batches,
        settings,
        step_idx=0,
        inference_logprob_batches=logprobs,
    )
    step = (model.table.weight.detach() - before).flatten()
    return step * rows * divisor, expected


def advantages_in_loss(credited):
    """The score of each post of one row over its tokens, and the advantage of its turn."""
    posts = posts_of(credited, view="turn_rows")
    expected = [
        advantage
        for row in credited_rows(credited)
        for turn, advantage in zip(row.turns, row.turn_advantages, strict=True)
        if turn.trained and turn.span.end > turn.span.start
    ]
    lengths = [sum(label != IGNORED for label in post["masks"][0]) for post in posts]
    (scores,) = data.pad_data_to_good_offset({"batch": posts}, len(posts))[2]
    yield (
        [score * DIVISOR / length for (score,), length in zip(scores.tolist(), lengths, strict=True)],
        expected,
    )


def steps(credited):
    for view, accumulation in product(("turn_rows", "prefix_rows"), (1, 3)):
        step, expected = trainers_step(credited, view=view, accumulation=accumulation)
        yield step, expected, 1.0
    yield *loss_of_posts(credited), 1.0


def test_it_ignores_advantages_and_that_view_is_refused():
    step, expected = trainers_step(FORKED, view="token_advantages")
    assert gradients.cosine(step, expected) < 0.95
    with pytest.raises(ConfigError, match=r"credit that it ignores; use turn_rows"):
        check_example_trainer({"credit_view": "token_advantages"})


def loss_of_posts(credited):
    """The step of a loss that reads advantages of posts, as the page of serving shows it."""
    model = gradients.Bigrams(256)
    sampled = gradients.sampled_by(model, credited)
    expected, loss = gradients.policy_gradient(model, [sampled]), 0.0
    for post in posts_of(sampled, view="token_advantages"):
        for row in shifted_post(post):
            log_p = torch.log_softmax(model(torch.tensor(row.input_ids)[None]).logits[0], dim=-1)
            taken = log_p[torch.arange(len(log_p)), torch.tensor(row.target_ids)]
            ratio = torch.exp(taken - torch.tensor(row.logprobs))
            loss = loss - (torch.tensor(row.mask) * torch.tensor(row.advantages) * ratio).sum()
    return -gradients.gradient_of(loss, model), expected


def test_its_own_defaults_are_refused_by_no_rule_and_are_warned_of_older_weights():
    defaults = {name: each.default for name, each in config.TrainingConfig.model_fields.items()}
    with pytest.warns(InexactStepWarning, match="vllm_restart_interval=3"):
        check_example_trainer(defaults)
