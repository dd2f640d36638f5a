"""`turnwise serve` as a process: what it says, its exit codes, and its memory over a long run."""

import os
import re
import sqlite3
import subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from environments.record.recorder import read_groups
from environments.serve.outbox import Outbox
from environments.wire.payloads import Part
from tests.environments.run.leftovers import groups_and_folders
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
from tools.sandbox.host.process_ids import identity


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


def test_a_batch_size_that_cannot_be_filled_is_one_line_and_exit_code_2(api, tmp_path):
    api.start_trainer(batch_size=6)
    with serving(api, tmp_path) as process:
        assert process.wait(60) == 2
        errors = [
            line for line in process.log.read_text().splitlines() if line.startswith("turnwise: error:")
        ]
    assert len(errors) == 1
    assert "batches of 6 rows" in errors[0]


def test_an_api_that_never_comes_is_exit_code_1_on_request(api, tmp_path):
    api.kill()
    with serving(api, tmp_path, "--env.exit_when_api_away_s", "1") as process:
        assert process.wait(60) == 1


def test_every_group_is_recorded_when_a_record_is_asked_for(api, tmp_path):
    api.start_trainer(batch_size=4)
    with serving(api, tmp_path) as process:
        taken = take(api, 1)
        assert ended(process) == 0
    recorded = {group.group.group_id for group in read_groups(tmp_path / "record.jsonl")}
    assert taken[0]["overrides"][0]["group_id"] in recorded


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


def test_the_end_says_where_the_time_went_when_that_is_asked_for(api, tmp_path):
    api.start_trainer(batch_size=4)
    with serving(api, tmp_path, "--env.profile", "true", env="WriteWord") as process:
        take(api, 1)
        assert ended(process) == 0
    ending = process.log.read_text().split(" own time ")[1]
    assert {"score_turn", "sum"} <= set(ending.split())


def memory_mb(process):
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def take_and_stall(api, process, outbox, *, groups, stalls, bound):
    """Take groups; stall so often that the outbox fills to its bound. The memory at the end of each stall."""
    memory, taken = [], 0
    while taken < groups:
        taken += len(take(api, 1))
        if taken >= (len(memory) + 1) * groups / stalls:
            wait_until(lambda: is_full(outbox, bound))
            memory.append(memory_mb(process))
    return memory


def is_full(outbox, bound):
    try:
        return waiting_in(outbox) >= bound
    except sqlite3.DatabaseError:
        return False  # copied while it was written


def flat_memory(api, tmp_path, *options, env, groups, bound):
    """A soak whose memory must not grow once every part of the loop has been used."""
    api.start_trainer(batch_size=32, max_token_len=40_000)
    with serving(api, tmp_path, "--env.outbox_groups", str(bound), *options, env=env) as process:
        owner = identity(process.pid)
        memory = take_and_stall(
            api, process, tmp_path / "outbox.sqlite", groups=groups, stalls=8, bound=bound
        )
        assert ended(process) == 0
        done = int(re.findall(r"groups (\d+) ok", process.log.read_text())[-1])
    print(f"groups {done}, memory in MB at each stall: {[round(each, 1) for each in memory]}")  # noqa: T201
    assert done >= groups
    assert max(memory[1:]) - memory[1] < 10
    return owner


@pytest.mark.timeout(300)
def test_groups_for_a_trainer_that_stalls_leave_memory_flat(api, tmp_path, soak):
    flat_memory(api, tmp_path, env="Instant", groups=480 if soak else 160, bound=32 if soak else 8)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_groups_in_sandboxes_by_a_model_server_leave_memory_flat_and_no_sandbox(api, tmp_path):
    port = free_port()
    with running(mock_model("WriteWord", port), stdout=subprocess.DEVNULL) as model:
        wait_for_port(model, port)
        owner = flat_memory(
            api,
            tmp_path,
            *playing(port),
            env="WriteWord",
            groups=96,
            bound=16,
        )
    assert groups_and_folders({owner}) == []


def fill(api, env_id):
    """As many batches as wait at the API by default, under one environment's number."""
    for _ in range(3):
        rows = {"tokens": [[1, 2]] * 4, "masks": [[-100, 2]] * 4, "scores": [1.0] * 4, "env_id": env_id}
        api.post("/scored_data", rows)


def test_an_environment_with_a_share_sends_though_others_fill_the_api(api, tmp_path):
    api.start_trainer(batch_size=4)
    fill(api, api.register_env("other")["env_id"])
    with serving(api, tmp_path, "--env.min_batch_allocation", "0.5") as process:
        wait_until(lambda: "registered at" in process.log.read_text())
        wait_until(lambda: api.take_batch() is not None, 15)


def test_an_environment_with_a_share_goes_on_after_a_kill_though_its_groups_fill_the_api(api, tmp_path):
    api.start_trainer(batch_size=4)
    share = ("--env.min_batch_allocation", "0.5")
    with serving(api, tmp_path, *share):
        wait_until(lambda: api.get("/status")["queue_size"] >= 3)
    with serving(api, tmp_path, *share) as process:
        wait_until(lambda: process.log.read_text().count("registered at") == 2)
        wait_until(lambda: api.take_batch() is not None, 15)
