"""`turnwise doctor trainer`: over the API with a real `run-api`, from files, and of a user's function."""

import json
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file

from environments.record.recorder import read_groups
from tests.environments.serve.loopback import TURNWISE, running, take
from tests.environments.serve.proxy import Gateway
from tests.tables import cases
from turnwise.cli.main import main
from turnwise.lab.probe.canary_model import HEAD
from turnwise.lab.probe.trainer_probe import open_probe

PADDING_ROWS = 7
EXACT = "exact: cosine 1.000000, norm ratio 0.00078125 (1/40 rows of the batch, 1/score divisor 32)"
NO_API = "http://127.0.0.1:1"
STEP = """
import numpy as np
from turnwise.lab.probe.diagnosis import CanaryTokens

def exact(probe):
    model = probe.before
    tokens = CanaryTokens.of(model, probe.groups)
    return {"lm_head.weight": model.head + probe.lr * tokens.gradient(tokens.advantages)}

def idle(probe):
    return probe.before.head

def leaving(probe):
    raise SystemExit(0)

def foreign(probe):
    return np.random.default_rng(5).standard_normal((2048, 64))
"""


def mean_per_row(model, posts):
    """A trainer that reads scores, one row per group, and averages a row over its tokens."""
    rows = [row for post in posts for row in zip(post["tokens"], post["masks"], post["scores"], strict=True)]
    gradient = np.zeros_like(model.head)
    for token_ids, mask, score in rows:
        hidden, log_p = model.forward(token_ids)
        places = [place for place, label in enumerate(mask) if label != -100]
        for place in places:
            error = -np.exp(log_p[place - 1])
            error[token_ids[place]] += 1
            gradient += np.outer(error, hidden[place - 1]) * score / len(places) / len(rows)
    return gradient


def served(api, folder, *options, rows, url=None):
    """What the trainer took, its step, and what the command said."""
    api.start_trainer(batch_size=rows, max_token_len=4096)
    command = [TURNWISE, "doctor", "trainer", "begin", str(folder), "--api", url or api.url, *options]
    with running(command, stdout=subprocess.PIPE, text=True) as process:
        posts = take(api, 1)
        said, _ = process.communicate(timeout=280)
    assert process.returncode == 0
    return posts, said


def test_the_step_of_a_trainer_behind_the_api_is_read_from_its_checkpoint(api, tmp_path, capsys):
    folder = tmp_path / "probe"
    options = ("--view", "turn_rows", "--score-divisor", "32")
    posts, said = served(api, folder, *options, rows=33 + PADDING_ROWS)
    assert (
        said.splitlines()[-1]
        == f"when the trainer has saved: turnwise doctor trainer read {folder} CHECKPOINT"
    )
    model = open_probe(folder).before
    after = model.head + mean_per_row(model, posts)
    save_file({HEAD: after.astype(np.float32)}, tmp_path / "model.safetensors")
    assert main(["doctor", "trainer", "read", str(folder), str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].strip() == EXACT


def test_canaries_served_per_token_have_advantages_and_fill_the_batch(api, tmp_path):
    options = ("--view", "token_advantages", "--api-token", "t0k3n")
    with Gateway(api.port, "t0k3n") as gateway:
        posts, _ = served(api, tmp_path / "probe", *options, rows=20, url=gateway.url)
    assert set(gateway.borne) == {"Bearer t0k3n"}
    assert [len(post["tokens"]) for post in posts] == [4] * 5
    assert any(value for post in posts for row in post["advantages"] for value in row)
    assert open_probe(tmp_path / "probe").request.batch_rows == 20


@pytest.mark.parametrize(
    ("trainer", "queued", "message"),
    [
        ({"batch_size": 8}, False, "and one step has to take all canaries: register a batch of 33"),
        ({}, True, "the API holds 1 groups that no trainer has taken, and they would be in the step"),
    ],
    ids=["small batch", "groups of others"],
)
def test_what_cannot_be_one_step_is_refused(api, tmp_path, trainer, queued, message):
    api.start_trainer(**{"batch_size": 40, "max_token_len": 4096} | trainer)
    if queued:
        api.post("/scored_data", {"tokens": [[1, 2]], "masks": [[1, 2]], "scores": [0.0]})
    options = ("--api", api.url, "--view", "turn_rows")
    command = [TURNWISE, "doctor", "trainer", "begin", str(tmp_path / "probe"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_an_api_that_dies_while_the_canaries_wait_there_ends_the_command(fresh_api, tmp_path):
    fresh_api.start_trainer(batch_size=40, max_token_len=4096)
    options = ("--api", fresh_api.url, "--view", "turn_rows")
    command = [TURNWISE, "doctor", "trainer", "begin", str(tmp_path), *options]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("registered at"):
                break
        fresh_api.kill()
        _, error = process.communicate(timeout=280)
    assert process.returncode == 2
    assert error.splitlines()[-1].endswith("start it with run-api, and begin again")


WRONG = [
    (["begin", "{here}/new", "--view", "turn_rows"], "--api and --view belong together"),
    (["begin", "{here}/new", "--view", "turn_rows", "--api", NO_API], "start it with run-api"),
    (["begin", "{here}/new", "--score-divisor", "0"], "a whole number above 0, or own_length"),
    (["begin", "{here}/other"], "holds a model that is not of a probe"),
    (["begin", "{here}/steps.py/new"], "cannot write"),
    (["begin", "{here}/new", "--lr", "inf"], "a learning rate is a number above 0"),
    (["step", "{here}/steps.py:leaving"], "the step failed: SystemExit: 0"),
    (["read", "{here}", "{here}"], "is not a folder of `turnwise doctor trainer begin`"),
    (["read", "{here}/begun", "{here}"], "has no *.safetensors and no pytorch_model*.bin"),
    (["step", "exact"], "names no function"),
    (["step", "{here}/steps.py:none"], "has no function 'none'"),
    (["step", "{here}/steps.py:foreign"], "not the weights of the canary model after a step"),
    (["step", "{here}/steps.py:exact", "--gradient"], "these are weights and no gradient"),
]


@cases(("arguments", "message"), WRONG)
def test_wrong_use_is_one_line(tmp_path, capsys, arguments, message):
    (tmp_path / "steps.py").write_text(STEP)
    (tmp_path / "other" / "model").mkdir(parents=True)
    main(["doctor", "trainer", "begin", str(tmp_path / "begun")])
    capsys.readouterr()
    assert main(["doctor", "trainer", *(part.format(here=tmp_path) for part in arguments)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_function_of_the_users_takes_the_step(tmp_path, capsys):
    (tmp_path / "steps.py").write_text(STEP)
    assert main(["doctor", "trainer", "step", f"{tmp_path}/steps.py:exact", "--lr", "0.5", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["exact"], verdict["scale"], verdict["findings"]) == (True, "the sum", [])
    assert main(["doctor", "trainer", "step", f"{tmp_path}/steps.py:idle"]) == 1


def test_the_record_of_the_canaries_is_on_policy_for_the_model(probe):
    model = probe.before
    for group in read_groups(probe.folder / "canaries.jsonl"):
        for trajectory in group.group.trajectories:
            for turn in trajectory.turns:
                row = trajectory.rows[turn.span.row]
                log_p = model.forward(list(row.token_ids))[1]
                for place in range(turn.span.start, turn.span.end):
                    assert row.logprobs[place] == pytest.approx(log_p[place - 1, row.token_ids[place]])


def test_a_gradient_in_a_file_is_read_in_the_place_of_weights(probe, tokens, tmp_path):
    np.save(tmp_path / "g.npy", -tokens.gradient(tokens.advantages) / 4)
    verdict = probe.verdict(tmp_path / "g.npy", is_gradient=True)
    assert (verdict.exact, verdict.scale) == (True, "1/4 groups")
