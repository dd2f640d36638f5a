"""What code does to the event loop, the console and the process ends no run, and starts no second one."""

from pathlib import Path

import pytest

from environments.record.recorder import read_groups
from tests.adversarial.commands import recorded, run
from tests.adversarial.escaping_env import WAYS
from tests.environments.conftest import RunApi
from tests.environments.serve.loopback import TURNWISE, ended, running, wait_until

ENVS = Path(__file__).with_name("escaping_env.py")


@pytest.mark.parametrize("env", ["Escaping", pytest.param("ForkingInDef", marks=pytest.mark.soak)])
def test_process_records_every_planned_group_once_and_tells_each_attempt_to_end_the_loop(tmp_path, env):
    command = [TURNWISE, "process", f"{ENVS}:{env}", "--out", str(tmp_path / "record.jsonl")]
    done = run([*command, "--env.group_size", "2"])
    assert done.returncode == 0, done.stdout
    assert recorded(tmp_path) == len(WAYS)
    told = "a callback tried to end the event loop: SystemExit" in done.stdout
    assert told == (env == "Escaping")


@pytest.fixture
def api():
    server = RunApi()
    server.start()
    server.start_trainer(batch_size=6, max_token_len=40_000)
    yield server
    server.kill()


def serve(env, api, folder, *options):
    command = [TURNWISE, "serve", env, "--env.rollout_server_url", api.url, "--env.group_size", "2"]
    return [*command, "--out", str(folder / "record.jsonl"), "--outbox", str(folder / "o.sqlite"), *options]


def test_serve_records_every_item_and_goes_on(api, tmp_path):
    record, log = tmp_path / "record.jsonl", tmp_path / "log.txt"
    command = serve(f"{ENVS}:Escaping", api, tmp_path)
    with log.open("wb") as out, running(command, stdout=out, stderr=out) as process:
        wait_until(
            lambda: process.poll() is not None or (record.exists() and recorded(tmp_path) >= len(WAYS))
        )
        assert process.poll() is None, log.read_text()[-2000:]
        assert ended(process) == 0
    assert {read.group.item_id for read in read_groups(record)} == {way.__name__ for way in WAYS}
