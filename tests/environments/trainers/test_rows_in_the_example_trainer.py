"""The step of the unmodified Atropos example trainer on rows of forked trajectories; needs torch."""

import importlib
import os
from types import SimpleNamespace

import orjson
import pytest

from environments.trajectory import IGNORED
from environments.wire.payloads import Shape, pack, post_text
from tests.environments.wire.forked_groups import forked_group, with_credit

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="needs torch, to run the example trainer's loss")
torch = importlib.import_module("torch")
data = importlib.import_module("example_trainer.data")
training = importlib.import_module("example_trainer.training")

DIVISOR = 32
GROUP = with_credit(
    forked_group(
        [[[5, 2], [9, 0], [1, 1, 3]], [[4]], [[2, 7], [6, 2]]],
        [[0.5, None, 1.0, 0.75, 0.0, 0.25, -1.0], [2.0], [0.0, None, 0.5, 0.125]],
        untrained=frozenset({(0, 0), (2, 3)}),
        summaries=frozenset({(0, 1), (2, 1)}),
    )
)


class Bigrams(torch.nn.Module):
    """The next token by the one before."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(256, 256)

    def forward(self, tokens):
        return SimpleNamespace(logits=self.table(tokens))

    def log_p(self, tokens):
        """Of each token after the first."""
        log_p = torch.log_softmax(self.table(tokens[:-1]), dim=-1)
        return log_p[torch.arange(len(tokens) - 1), tokens[1:]]


def policy_gradient(model):
    """Σ A ∇log π from the trajectories: no masks, no rows of the wire."""
    objective = 0.0
    for trajectory, advantages in zip(GROUP.group.trajectories, GROUP.advantages, strict=True):
        for turn, advantage in zip(trajectory.turns, advantages, strict=True):
            if turn.trained:
                log_p = model.log_p(torch.tensor(trajectory.rows[turn.span.row].token_ids))
                objective = objective + advantage * log_p[turn.span.start - 1 : turn.span.end - 1].sum()
    return gradient_of(objective, model)


def trainers_step(model, **shape):
    """The step of the trainer's own code on what is posted, and its rows."""
    parts = pack(GROUP, Shape(group_size=4, divisor=DIVISOR, **shape)).parts
    posts = [orjson.loads(post_text(part.body)) for part in parts]
    rows = sum(len(post["tokens"]) for post in posts)
    for post in posts:
        post["inference_logprobs"] = [
            [1.0, *(value if label != IGNORED else 1.0 for value, label in zip(log_p, mask[1:], strict=True))]
            for log_p, mask in (
                (model.log_p(torch.tensor(tokens)).tolist(), mask)
                for tokens, mask in zip(post["tokens"], post["masks"], strict=True)
            )
        ]
    (tokens,), (labels,), (scores,), (heat,), (logprobs,) = data.pad_data_to_good_offset(
        {"batch": posts}, rows
    )
    loss, _ = training.compute_grpo_loss(model, tokens, labels, scores, heat, 1, inference_logprobs=logprobs)
    return -gradient_of(loss, model), rows


def gradient_of(value, model):
    (gradient,) = torch.autograd.grad(value, [model.table.weight])
    return gradient.flatten().double()


def cosine(one, other):
    return torch.nn.functional.cosine_similarity(one, other, dim=0).item()


@pytest.mark.parametrize("view", ["turn_rows", "prefix_rows"])
def test_rows_of_forked_trajectories_give_the_policy_gradient(view):
    model = Bigrams()
    expected, (step, rows) = policy_gradient(model), trainers_step(model, view=view)
    assert cosine(step, expected) == pytest.approx(1.0, abs=1e-6)
    assert (step.norm() * rows * DIVISOR / expected.norm()).item() == pytest.approx(1.0, abs=1e-5)


def test_prefixes_repeated_and_scores_beside_advantages_do_not():
    model = Bigrams()
    expected = policy_gradient(model)
    for shape in ({"view": "prefix_rows", "prefix_weighting": "repeated"}, {"view": "token_advantages"}):
        assert cosine(trainers_step(model, **shape)[0], expected) < 0.95
