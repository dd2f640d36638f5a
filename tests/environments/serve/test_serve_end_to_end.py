"""Model server → `turnwise serve` → `run-api` → the unmodified Atropos example trainer, all processes."""

import importlib
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from environments.config import EMBEDDED_TOKENIZER
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.recorder import read_groups
from tests.environments.serve.loopback import (
    ended,
    free_port,
    mock_model,
    playing,
    running,
    serve,
    take,
    wait_for_port,
)

ENVS = ["WriteWord", "Talk"]
"""Calls of tools, and replies of the world."""
TINY_MODEL = Path(__file__).with_name("tiny_model.py")


@contextmanager
def served(api, tmp_path, *options, port=None, env="WriteWord"):
    """`turnwise serve`, ended by SIGTERM; gives the record. With a port, the model server there plays."""
    model = [] if port is None else playing(port)
    with running(serve(env, api.url, tmp_path, *model, *options)) as env:
        yield tmp_path / "record.jsonl"
        assert ended(env) == 0


@contextmanager
def scripted_model(env, role="policy"):
    port = free_port()
    with running(mock_model(env, port, role), stdout=subprocess.DEVNULL) as process:
        wait_for_port(process, port)
        yield port


@contextmanager
def tiny_model_server(env):
    """A model server whose log-probabilities are the tiny model's."""
    port = free_port()
    with ExitStack() as processes:
        script = processes.enter_context(scripted_model(env))
        command = [sys.executable, str(TINY_MODEL), str(port), f"http://127.0.0.1:{script}"]
        wait_for_port(processes.enter_context(running(command, torch=True)), port)
        yield port


def test_replies_arrive_as_context_without_a_mask_a_logprob_or_credit(api, tmp_path):
    api.start_trainer(batch_size=16, max_token_len=40_000)
    with served(api, tmp_path, env="Talk") as record:
        arrived = take(api, 4)
    groups = {group.group.group_id: group.group.trajectories for group in read_groups(record)}
    decode = ChatMLRenderer.load(EMBEDDED_TOKENIZER).decode
    replies = 0
    for post in arrived:
        rows = zip(post["overrides"], post["tokens"], post["masks"], post["advantages"], strict=True)
        for logprobs, (override, tokens, mask, advantages) in zip(
            post["inference_logprobs"], rows, strict=True
        ):
            turns = groups[override["group_id"]][override["row"]].turns
            for turn, following in pairwise(turns):
                # From a turn's last token to the next one's first: the reply, and nothing of the policy.
                between = slice(turn.span.end, following.span.start)
                (reply,) = turn.replies
                assert reply.content in decode(tokens[between])
                assert set(mask[between]) == {-100}
                assert set(logprobs[between]) == {1.0}
                assert set(advantages[between]) == {0.0}
                replies += 1
    assert replies > 5


def turns_by_row(credited):
    """Row number of `turn_rows` to the trajectory's row, the turn's span and its advantage."""
    turns = []
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        for row in range(len(trajectory.rows)):
            turns += [
                (trajectory.rows[row], turn.span, advantage)
                for turn, advantage in zip(trajectory.turns, advantages, strict=True)
                if turn.span.row == row
            ]
    return turns


def policy_gradient(torch, model, turns):
    """Σ A ∇log π from whole trajectories: no masks, no padding, no rows of the wire, no lengths."""
    objective = 0.0
    for row, span, advantage in turns:
        log_p = torch.log_softmax(model(torch.tensor([row.token_ids])).logits[0], dim=-1)
        spoken = [log_p[place - 1, row.token_ids[place]] for place in range(span.start, span.end)]
        objective = objective + advantage * torch.stack(spoken).sum()
    objective.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return gradient


@pytest.mark.parametrize("env", ENVS)
def test_with_turn_rows_the_example_trainers_step_is_the_policy_gradient(api, tmp_path, env):
    if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="needs torch, to run the example trainer's training step")
    torch = importlib.import_module("torch")
    from example_trainer.api import get_batch, register_trainer
    from example_trainer.config import TrainingConfig
    from example_trainer.data import pad_data_to_good_offset
    from example_trainer.training import run_training_step

    from tests.environments.serve.tiny_model import tiny_model

    rows = 8
    config = TrainingConfig(
        model_name="tiny", device="cpu", batch_size=rows, gradient_accumulation_steps=1, lr=1.0,
        warmup_steps=0, atropos_url=api.url, seq_len=40_000, training_steps=1, save_path=str(tmp_path),
    )  # fmt: skip
    register_trainer(config)
    get_batch(api.url)
    divisor = 32
    turn_rows = ("--env.credit_view", "turn_rows", "--env.score_divisor", str(divisor))
    with tiny_model_server(env) as port, served(api, tmp_path, *turn_rows, port=port, env=env) as record:
        while (data := get_batch(api.url))["batch"] is None:
            time.sleep(0.05)
    marks = [(group["overrides"][0]["group_id"], group["overrides"][0]["row"]) for group in data["batch"]]
    *batches, logprobs = pad_data_to_good_offset(data, rows)

    recorded = {group.group.group_id: turns_by_row(group) for group in read_groups(record)}
    turns = [recorded[group_id][row] for group_id, row in marks]
    assert len({advantage for _, _, advantage in turns}) > 2
    # Turns of one length would be weighed alike by any trainer.
    assert len({span.end - span.start for _, span, _ in turns}) > 1

    model = tiny_model()
    analytic = policy_gradient(torch, model, turns) / (rows * divisor)
    before = flat(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    told = run_training_step(model, optimizer, *batches, config, 0, inference_logprob_batches=logprobs)
    step = flat(torch, model) - before

    assert torch.nn.functional.cosine_similarity(step, analytic, dim=0).item() >= 0.9999
    # Not only the direction. Beyond 1 the trainer would have clipped it; it holds what arrived in float32.
    assert analytic.norm().item() < 1
    assert (step.norm() / analytic.norm()).item() == pytest.approx(1.0, abs=1e-5)
    # The logprobs that came over the wire are those of the model that is trained.
    assert told["mean_ratio"] == pytest.approx(1.0, abs=1e-6)


def flat(torch, model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
