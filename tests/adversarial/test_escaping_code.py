"""What code does to the event loop, its tasks and the process ends no run, and starts no second one."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from environments.record.recorder import read_groups
from environments.run.worker_pool import StoppedError, run_groups
from tests.adversarial.commands import evaluate, process, recorded, run
from tests.adversarial.escaping_env import WAYS
from tests.adversarial.misbehaving_items import PLANNED
from tests.environments.conftest import RunApi
from tests.environments.serve.loopback import TURNWISE, ended, running, wait_until, without_torch

ENVS = Path(__file__).with_name("escaping_env.py")
ITEMS = f"{Path(__file__).with_name('misbehaving_items.py')}:Items"
ROOT = str(Path(__file__).parents[2])


def environ():
    variables = without_torch()
    paths = [ROOT, *filter(None, [variables.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("env", ["Escaping", pytest.param("ForkingInDef", marks=pytest.mark.soak)])
def test_process_records_every_planned_group_once_and_tells_each_attempt_to_end_the_loop(tmp_path, env):
    command = [TURNWISE, "process", f"{ENVS}:{env}", "--out", str(tmp_path / "record.jsonl")]
    done = run([*command, "--env.group_size", "2"])
    assert done.returncode == 0, done.stdout
    assert recorded(tmp_path) == len(WAYS)
    told = "a callback tried to end the event loop: SystemExit" in done.stdout
    assert told == (env == "Escaping")


def test_evaluate_counts_every_item_that_misbehaves_and_exits_with_0(tmp_path):
    command = [TURNWISE, "evaluate", ITEMS, "--out", str(tmp_path), "--env.eval_rollouts", "3"]
    done = run(command, env=environ())
    assert done.returncode == 0, done.stdout
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/items"] == len(PLANNED)
    assert metrics["eval/rollouts"] + metrics["eval/dropped_rollouts"] == 3 * len(PLANNED)


@pytest.fixture
def api():
    server = RunApi()
    server.start()
    server.start_trainer(batch_size=6, max_token_len=40_000)
    yield server
    server.kill()


SERVED = {
    "escaping": (f"{ENVS}:Escaping", ["--env.group_size", "2"], len(WAYS)),
    "misbehaving": (ITEMS, ["--env.credit_view", "token_advantages"], len(PLANNED)),
}


@pytest.mark.parametrize(("env", "options", "planned"), SERVED.values(), ids=SERVED)
def test_serve_records_every_item_and_goes_on(api, tmp_path, env, options, planned):
    record, log = tmp_path / "record.jsonl", tmp_path / "log.txt"
    command = [TURNWISE, "serve", env, "--env.rollout_server_url", api.url, *options]
    command += ["--out", str(record), "--outbox", str(tmp_path / "o.sqlite")]
    with log.open("wb") as out, running(command, environ=environ(), stdout=out, stderr=out) as serving:
        wait_until(lambda: serving.poll() is not None or len(of_the_first_epoch(record)) >= planned)
        assert serving.poll() is None, log.read_text()[-2000:]
        assert ended(serving) == 0
    assert len(of_the_first_epoch(record)) == planned


def of_the_first_epoch(record):
    """The items of which groups are recorded; those that misbehave end after groups of the next epoch."""
    groups = read_groups(record) if record.exists() else ()
    return {read.group.item_id for read in groups if read.group.epoch == 0}


async def identity(key):
    return key


async def cancels_itself(key, result):
    raise asyncio.CancelledError


async def cancels_its_task(key, result):
    for task in asyncio.all_tasks():
        if task.get_coro().__qualname__.endswith(".worker"):
            task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("on_done", [cancels_itself, cancels_its_task])
async def test_a_pool_whose_workers_are_cancelled_by_others_raises(on_done):
    with pytest.raises(StoppedError):
        await run_groups(range(9), identity, on_done, max_in_flight=2)


@pytest.mark.parametrize("command", [process, evaluate])
def test_code_that_cancels_every_task_does_not_end_the_run_with_0(tmp_path, command):
    assert run(command("CancellingAll", tmp_path)).returncode == 1
