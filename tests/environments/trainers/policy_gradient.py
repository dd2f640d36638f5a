"""A model to take gradients of, and what a trainer's step has to be: Σ A ∇log π, from trajectories alone."""

import copy
import importlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.trajectory import NOT_SAMPLED
from turnwise.lab.probe.canaries import VOCABULARY
from turnwise.lab.probe.trainer_probe import probe_trainer

torch = importlib.import_module("torch")


class Bigrams(torch.nn.Module):
    """The next token by the one before; it has as many gradients as pairs of tokens."""

    def __init__(self, vocabulary=VOCABULARY):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(vocabulary, vocabulary).double()

    def forward(self, tokens, **_):
        return SimpleNamespace(logits=self.table(tokens))


def policy_gradient(model, groups):
    """Σ A ∇log π over every trained token of credited groups: no masks, no rows of the wire."""
    objective = 0.0
    for credited in groups:
        for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
            for turn, advantage in zip(trajectory.turns, advantages, strict=True):
                tokens = torch.tensor(trajectory.rows[turn.span.row].token_ids)
                log_p = torch.log_softmax(model(tokens[None, :-1]).logits[0].double(), dim=-1)
                taken = log_p[torch.arange(len(tokens) - 1), tokens[1:]]
                if turn.trained:
                    objective = objective + advantage * taken[turn.span.start - 1 : turn.span.end - 1].sum()
    return gradient_of(objective, model)


def moved(model, groups, mean_log_ratio=0.1):
    """The model after a step along the policy gradient, as long as tokens' log ratios have this mean size."""
    direction = policy_gradient(model, groups).reshape(model.table.weight.shape)
    before, length, later = _taken(model, groups), 1.0, copy.deepcopy(model)
    for _ in range(40):
        later.table.weight.data = model.table.weight.data + length * direction
        length *= (mean_log_ratio / (_taken(later, groups) - before).abs().mean()).item()
    return later


def _taken(model, groups):
    """Log-probabilities of all tokens that are trained."""
    found = []
    for trajectory in (each for credited in groups for each in credited.group.trajectories):
        for turn in (each for each in trajectory.turns if each.trained):
            tokens = torch.tensor(trajectory.rows[turn.span.row].token_ids)
            log_p = torch.log_softmax(model(tokens[None, :-1]).logits[0].double(), dim=-1)
            found.append(
                log_p[torch.arange(len(tokens) - 1), tokens[1:]][turn.span.start - 1 : turn.span.end - 1]
            )
    return torch.cat(found).detach()


def gradient_of(value, model):
    """One vector of all parameters that are trained."""
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(value, trained, retain_graph=True)
    return torch.cat([each.flatten() for each in gradients]).double()


def probed(uphill):
    """What `turnwise doctor trainer` says of a path that gives a model's gradient, for the canaries at once.

    Args:
        uphill: takes a model and credited groups, and gives what is added, as `gradient_of`.
    """

    def step(probe):
        model = importlib.import_module("transformers").AutoModelForCausalLM.from_pretrained(probe.model)
        head = model.lm_head.weight  # its parameters are the last
        return -uphill(model.double(), probe.groups)[-head.numel() :].reshape(head.shape)

    return probe_trainer(step, is_gradient=True)


def cosine(one, other):
    return torch.nn.functional.cosine_similarity(one, other, dim=0).item()


EXACT = (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4))


def measured(step, expected, constant=1.0):
    """Cosine and, after the loss's constant, norm ratio of a step to the policy gradient."""
    return cosine(step, expected), (step.norm() * constant / expected.norm()).item()


def sampled_by(model, credited):
    """The group with the log-probabilities of the model, as if it had just been sampled from it."""
    group = credited.group
    trajectories = tuple(
        replace(each, rows=tuple(_sampled_row(model, each, index) for index in range(len(each.rows))))
        for each in group.trajectories
    )
    return replace(credited, group=replace(group, trajectories=trajectories))


def _sampled_row(model, trajectory, index):
    row = trajectory.rows[index]
    tokens = torch.tensor(row.token_ids)
    with torch.no_grad():
        log_p = torch.log_softmax(model(tokens[None, :-1]).logits[0].double(), dim=-1)
    taken = log_p[torch.arange(len(tokens) - 1), tokens[1:]].tolist()
    logprobs = [NOT_SAMPLED] * len(tokens)
    for turn in trajectory.turns:
        if turn.span.row == index:
            logprobs[turn.span.start : turn.span.end] = taken[turn.span.start - 1 : turn.span.end - 1]
    return replace(row, logprobs=tuple(logprobs))
