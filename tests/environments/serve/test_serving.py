"""`turnwise serve` as a process: what it says, its exit codes, and its memory over a long run."""

import subprocess
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from environments.record.recorder import read_groups
from environments.serve.outbox import Outbox
from environments.wire.payloads import Part
from tests.environments.serve.loopback import (
    ended,
    free_port,
    mock_model,
    playing,
    running,
    serve,
    take,
    wait_for_port,
    wait_until,
)
from tests.environments.serve.outbox_copy import waiting_in


@contextmanager
def serving(api, tmp_path, *options, env="Instant", **view):
    log = tmp_path / "serve.log"
    with (
        log.open("ab") as out,
        running(serve(env, api.url, tmp_path, *options, **view), stdout=out, stderr=out) as process,
    ):
        process.log = log
        yield process


def test_a_sigterm_while_the_trainer_is_awaited_exits_with_0(api, tmp_path):
    with serving(api, tmp_path) as process:
        wait_until(lambda: "waiting for the trainer to start" in process.log.read_text())
        assert ended(process) == 0


def test_the_start_says_what_an_earlier_run_left_and_how_to_begin_anew(api, tmp_path):
    with Outbox(tmp_path / "outbox.sqlite") as outbox:
        outbox.put("left", [Part(body=b"{}", longest_row=1)])
    with serving(api, tmp_path) as process:
        wait_until(lambda: "1 posts of an earlier run" in process.log.read_text())
        wait_until(lambda: "waiting for" in process.log.read_text())
        assert ended(process) == 0
    assert f"delete {tmp_path / 'outbox.sqlite'}" in " ".join(process.log.read_text().split())


@pytest.mark.parametrize(
    ("env", "view", "readers"),
    [
        ("Instant", "token_advantages", "for trainers that read `advantages`, a number per token"),
        ("Instant", "turn_rows", "for trainers that read only scores, such as Atropos' example trainer"),
        ("ScalarWords", None, "plain scores, as there are no turn rewards"),
    ],
)
def test_the_start_says_which_trainers_the_view_is_for(api, tmp_path, env, view, readers):
    with serving(api, tmp_path, env=env, view=view) as process:
        wait_until(lambda: "waiting for" in process.log.read_text())
        said = " ".join(process.log.read_text().split())
    assert f": {readers}" in said


def test_turn_rewards_without_a_view_are_one_line_and_exit_code_2_before_anything_is_tried(tmp_path):
    nowhere = SimpleNamespace(url="http://127.0.0.1:1")
    with serving(nowhere, tmp_path, view=None) as process:
        assert process.wait(60) == 2
        (line,) = process.log.read_text().splitlines()
    assert line.startswith("turnwise: error: environment 'instant' gives turn rewards")
    assert "choose --env.credit_view: turn_rows (for trainers that read only scores, such as" in line
    assert "token_advantages (for trainers that read `advantages`" in line
    assert not (tmp_path / "outbox.sqlite").exists()


def test_posts_of_another_score_divisor_are_another_run(api, tmp_path):
    api.start_trainer(batch_size=8)
    with serving(api, tmp_path, "--env.outbox_groups", "1", view="turn_rows") as process:
        wait_until(lambda: waiting_in(tmp_path / "outbox.sqlite") > 0)
        process.kill()
    with serving(api, tmp_path, "--env.score_divisor", "own_length", view="turn_rows") as process:
        assert process.wait(60) == 2
        assert "view was turn_rows, score_divisor 1024, is" in " ".join(process.log.read_text().split())


def test_the_start_says_what_a_temperature_asks_of_the_trainer_and_the_model_server(api, tmp_path):
    port = free_port()
    with running(mock_model("Instant", port), stdout=subprocess.DEVNULL) as model:
        wait_for_port(model, port)
        with serving(api, tmp_path, *playing(port), "--openai.temperature", "0.5") as process:
            wait_until(lambda: "waiting for" in process.log.read_text())
            said = " ".join(process.log.read_text().split())
    assert "sampled with {'temperature': 0.5, 'top_p': 1.0}: the trainer must use the same" in said


def test_an_api_that_never_comes_is_exit_code_1_on_request(api, tmp_path):
    api.kill()
    with serving(api, tmp_path, "--env.exit_when_api_away_s", "1") as process:
        assert process.wait(60) == 1


def test_a_recorded_agent_is_served_with_the_advantages_of_its_record(api, tmp_path):
    api.start_trainer(batch_size=4)
    with serving(api, tmp_path, env="RecordedTalk") as process:
        taken = take(api, 1)
        assert ended(process) == 0
    recorded = {group.group.group_id: group for group in read_groups(tmp_path / "record.jsonl")}
    sent = {each["overrides"][0]["group_id"] for each in taken}
    assert sent <= recorded.keys()
    for each in taken:
        credited = recorded[each["overrides"][0]["group_id"]]
        advantages = Counter(advantage for row in credited.advantages for advantage in row)
        posted = Counter(advantage for part in each["overrides"] for advantage in part["turn_advantages"])
        assert posted
        assert posted <= advantages  # a batch of 4 rows holds a part of its 8
