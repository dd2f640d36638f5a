"""`--workers N`: a Ray of this machine, which nobody else reaches and nothing of which stays."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from environments.record.recorder import read_groups
from tests.environments.run.workers.on_ray import (
    MARK,
    cluster,
    compared,
    marked,
    process,
    rolled_out,
    run,
    scratch,  # noqa: F401  # of every test here
    wait_until_nothing_is_left,
    workers,
)
from tests.environments.serve.loopback import (
    SERVED,
    ended,
    free_port,
    running,
    serve,
    wait_until,
    without_torch,
)
from tests.equipment.kills import lines_in

RAW = ("(raylet)", "RayTaskError", "Token authentication", "ray::", "FutureWarning", "Traceback")
LISTENS, LOOPBACK = "0A", {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@contextmanager
def started(env, folder, *options):
    """A run of two workers that has rollouts in flight, and the mark of all that belongs to it."""
    mark = uuid4().hex
    variables = {
        **without_torch(),
        MARK: mark,
        "WAITING_FOLDER": str(folder),
        "PACED_FAST": str(folder / "no"),
    }
    command = process(env, folder / "record.jsonl", "--workers", 2, *options)
    with (folder / "shown").open("wb") as shown:
        running = subprocess.Popen(
            command, env=variables, stdout=shown, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_until(lambda: _is_on(folder) or running.poll() is not None)
            assert running.poll() is None, shown_in(folder)
            yield running, mark
            running.wait(60)
            wait_until_nothing_is_left(mark=mark)
        finally:
            running.kill()
            running.wait()


def _is_on(folder):
    return list(folder.glob("i*")) or lines_in(folder / "record.jsonl")


def shown_in(folder):
    return (folder / "shown").read_text()


def test_what_it_writes_and_shows_is_as_without_workers(tmp_path):
    here, there = (
        rolled_out(process("Counted", tmp_path / name, *options))
        for name, options in (("here", []), ("there", ["--workers", 2]))
    )
    assert compared(tmp_path / "there") == compared(tmp_path / "here")
    assert not [each for each in RAW if each in there]
    assert _names(there) == _names(here)


def test_it_listens_on_loopback_alone_and_ends_in_order_at_an_interrupt(tmp_path):
    with started("Waiting", tmp_path) as (running, mark):
        addresses = listening([running.pid, *marked(mark)])
        os.killpg(running.pid, signal.SIGINT)
    assert addresses
    assert addresses <= LOOPBACK
    assert running.returncode == 130
    assert not [each for each in RAW if each in shown_in(tmp_path)]


def test_a_second_interrupt_ends_it_at_once(tmp_path):
    with started("Deaf", tmp_path) as (running, _):
        os.killpg(running.pid, signal.SIGINT)
        wait_until((tmp_path / "cancelled").exists)
        assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(60) in (130, -signal.SIGINT)  # its rollouts never end
    assert not [each for each in RAW if each in shown_in(tmp_path)]


def test_nothing_outlives_a_killed_driver(tmp_path):
    with started("Waiting", tmp_path) as (running, _):
        running.kill()


@pytest.mark.timeout(200)
def test_a_cluster_that_dies_is_one_line_and_the_run_goes_on_without_it(tmp_path):
    planned = ["--env.total_steps", 120, "--env.max_concurrent_rollouts", 4]
    with cluster(head_cpus=2) as head:
        options = ["--worker-env", "PACED_FAST", "--ray", head.address, "--env.missing_outcome", 0]
        with started("Paced", tmp_path, *planned, *options) as (running, _):
            head.head_node.kill_gcs_server()
            head.remove_node(head.head_node, allow_graceful=False)
            assert running.wait(100) == 1, shown_in(tmp_path)
    shown = shown_in(tmp_path)
    stopped = [each for each in shown.splitlines() if each.startswith("stopped: ")]
    assert len(stopped) == 1, shown
    assert "the Ray cluster has not been there for 20 s" in stopped[0]
    assert "GCS" not in shown
    done = len(list(read_groups(tmp_path / "record.jsonl")))
    assert 0 < done < 120
    again = process("Paced", tmp_path / "record.jsonl", *planned, "--env.missing_outcome", 0)
    rolled_out(again, variables={"PACED_FAST": "/"})
    groups = [(each.group.item_id, each.group.epoch) for each in read_groups(tmp_path / "record.jsonl")]
    assert len(groups) == len(set(groups)) == 120


def test_an_evaluation_is_as_without_workers(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, options in ((here, []), (there, ["--workers", "2"])):
        command = [sys.executable, "-m", "turnwise", "evaluate", f"{SERVED}:Talk", "--out", str(folder)]
        rolled_out([*command, "--env.eval_rollouts", "3", *options])
    assert compared(there / "record.jsonl") == compared(here / "record.jsonl")


def test_serve_feeds_a_trainer_while_its_workers_are_killed(api, tmp_path):
    api.start_trainer(batch_size=4)
    command = serve("Talk", api.url, tmp_path, "--workers", "2", group_size=2)
    killed, batches = 0, 0
    with (tmp_path / "shown").open("wb") as shown, running(command, stdout=shown, stderr=shown) as served:
        while batches < 20:
            assert served.poll() is None, (tmp_path / "shown").read_text()
            batches += api.get("/batch")["batch"] is not None
            if batches >= 4 * (killed + 1) and killed < 3 and (there := workers()):
                os.kill(there[0], signal.SIGKILL)
                killed += 1
        assert ended(served) == 0
    groups = [(each.group.item_id, each.group.epoch) for each in read_groups(tmp_path / "record.jsonl")]
    assert len(groups) == len(set(groups)) >= 40
    assert not [each for each in RAW if each in (tmp_path / "shown").read_text()]


def test_an_actor_that_cannot_be_reached_is_killed_and_replaced():
    from environments.run.workers import ray_workers

    class Away:
        def __init__(self):
            self.beat = self

        async def remote(self):
            raise ray_workers.exceptions.ActorUnavailableError("away", b"0" * 16)

    class Worker(ray_workers._RayWorker):
        ended = False

        def _end(self):
            self.ended = True

    worker = Worker(Away(), None, SimpleNamespace(is_gone=False))
    death = asyncio.run(worker.beat())
    assert (death.with_supervisor, worker.ended) == (True, True)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--ray", "127.0.0.1:{closed}"], "no Ray cluster at --ray 127.0.0.1:"),
        (["--worker-env", "HOME"], "--worker-env is for workers"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, options, line):
    options = [each.format(closed=free_port()) for each in options]
    ended = run(process("Counted", tmp_path / "r", *options))
    assert (ended.returncode, len(ended.stdout.splitlines())) == (2, 1)
    assert line in ended.stdout
    assert not (tmp_path / "r").exists()


def listening(pids):
    """The addresses, in hex, on which processes listen."""
    opened = []
    for pid in pids:
        with suppress(OSError):  # it has ended
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # it was closed
                    opened.append(str(each.readlink()))
    sockets = {each.removeprefix("socket:[").removesuffix("]") for each in opened}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    fields = [line.split() for table in tables for line in table]
    return {each[1].partition(":")[0] for each in fields if each[3] == LISTENS and each[9] in sockets}


def _names(shown):
    return [line[:18] for line in shown.splitlines() if not line.startswith(("look at", "/"))]
