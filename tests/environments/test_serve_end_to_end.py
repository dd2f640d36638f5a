"""Mock model → `turnwise serve` → the real trajectory API → the unmodified Atropos example trainer."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments.recorder import read_groups
from environments.wire import token_advantages

ENV = f"{Path(__file__).with_name('served_env.py')}:WriteWord"
TURNWISE = str(Path(sys.executable).with_name("turnwise"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def served(api, tmp_path, *options):
    """A mock model and `turnwise serve`, ended by SIGTERM; gives the record."""
    port = free_port()
    record = tmp_path / "record.jsonl"
    serve = [TURNWISE, "serve", ENV, "--env.rollout_server_url", api.url, "--out", str(record)]
    serve += ["--outbox", str(tmp_path / "outbox.sqlite"), "--env.group_size", "4"]
    serve += ["--openai.base_url", f"http://127.0.0.1:{port}/v1", "--openai.model_name", "scripted", *options]
    model = subprocess.Popen([TURNWISE, "mock-model", ENV, "--port", str(port)], stdout=subprocess.PIPE)
    env = None
    try:
        wait_for_port(model, port)
        env = subprocess.Popen(serve)
        yield record
        env.send_signal(signal.SIGTERM)
        assert env.wait(60) == 0
    finally:
        for process in (env, model):
            if process is not None:
                process.kill()
                process.wait()
        model.stdout.close()


def wait_for_port(process, port):
    while True:
        assert process.poll() is None, "the mock model died at its start"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def take(api, batches):
    """Batches, as often as the trainer asks for them."""
    taken = []
    while len(taken) < batches:
        batch = api.take_batch()
        if batch is None:
            time.sleep(0.05)
        else:
            taken.append(batch)
    return [group for batch in taken for group in batch]


def test_token_advantages_arrive_token_for_token_as_they_were_computed(api, tmp_path):
    api.start_trainer(batch_size=8, max_token_len=40_000)
    with served(api, tmp_path) as record:
        arrived = take(api, 4)
    computed = {group.group.group_id: token_advantages(group) for group in read_groups(record)}
    for group in arrived:
        expected = computed[group["overrides"][0]["group_id"]]
        assert {name: group[name] for name in expected} == expected
    assert any(value for group in arrived for row in group["advantages"] for value in row)


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


def tiny_model(torch, vocabulary):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
    )  # fmt: skip
    return LlamaForCausalLM(shape).double()


def analytic_gradient(torch, model, turns):
    """From whole trajectories: no masks, no padding, no rows of the wire."""
    objective = 0.0
    for row, span, advantage in turns:
        log_p = torch.log_softmax(model(torch.tensor([row.token_ids])).logits[0], dim=-1)
        spoken = [log_p[place - 1, row.token_ids[place]] for place in range(span.start, span.end)]
        objective = objective + advantage * torch.stack(spoken).mean() / len(turns)
    objective.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return gradient


def test_with_turn_rows_the_example_trainers_step_is_the_turn_level_policy_gradient(api, tmp_path):
    if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="needs torch, to run the example trainer's training step")
    torch = importlib.import_module("torch")
    from example_trainer.api import get_batch, register_trainer
    from example_trainer.config import TrainingConfig
    from example_trainer.data import pad_data_to_good_offset
    from example_trainer.training import run_training_step

    rows = 8
    config = TrainingConfig(
        model_name="tiny", device="cpu", batch_size=rows, gradient_accumulation_steps=1, lr=1.0,
        warmup_steps=0, atropos_url=api.url, seq_len=40_000, training_steps=1, save_path=str(tmp_path),
    )  # fmt: skip
    register_trainer(config)
    get_batch(api.url)
    with served(api, tmp_path, "--env.credit_encoding", "turn_rows") as record:
        while (data := get_batch(api.url))["batch"] is None:
            time.sleep(0.05)
    marks = [(group["overrides"][0]["group_id"], group["overrides"][0]["row"]) for group in data["batch"]]
    tokens, labels, advantages, temperatures, logprobs = pad_data_to_good_offset(data, rows)

    recorded = {group.group.group_id: turns_by_row(group) for group in read_groups(record)}
    turns = [recorded[group_id][row] for group_id, row in marks]
    assert len(turns) == rows
    assert len({advantage for _, _, advantage in turns}) > 2

    model = tiny_model(torch, 1 + max(max(row.token_ids) for row, _, _ in turns))
    analytic = analytic_gradient(torch, model, turns)

    # The model that is trained stands in for the one that sampled: its own log-probabilities.
    with torch.no_grad():
        log_p = torch.log_softmax(model(tokens[0]).logits, dim=-1)
        own = log_p.gather(-1, labels[0].clamp_min(0).unsqueeze(-1)).squeeze(-1)
    assert ((logprobs[0] <= 0) == (labels[0] != -100)).all(), "logprobs sit where tokens were sampled"
    before = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    run_training_step(
        model, optimizer, tokens, labels, advantages, temperatures, config, 0, inference_logprob_batches=[own]
    )
    step = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before
    cosine = torch.nn.functional.cosine_similarity(step, analytic, dim=0).item()
    assert cosine >= 0.9999
    # Not only the direction, unless the trainer clipped it.
    assert torch.allclose(step, analytic / max(1.0, analytic.norm().item() + 1e-6), atol=1e-9)
