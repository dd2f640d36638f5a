"""Kill -9 of workers, their supervisors, nodes and the driver: nothing is lost, nothing comes twice."""

import os
import random
import signal
import subprocess
from contextlib import suppress

import pytest

from tests.environments.run.workers.on_ray import (
    Owners,
    add_node,
    cluster,
    parent_of,
    process,
    scratch,  # noqa: F401  # of every test here
    wait_until_nothing_is_left,
    workers,
)
from tests.environments.serve.loopback import wait_until, without_torch
from tests.equipment.kills import finished_groups, lines_in, reap

SEED = 5
KILLS = 30
"""With `--soak`; a tenth without."""


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster with more room than two workers need, while what is dead is not cleared away."""
    with cluster(node_cpus=(4, 4)) as started:
        yield started


def kill_worker(drawn, *_):
    os.kill(drawn.choice(workers()), signal.SIGKILL)


def kill_supervisor(drawn, *_):
    os.kill(parent_of(drawn.choice(workers())), signal.SIGKILL)


def remove_node(drawn, nodes, _):
    nodes.remove_node(drawn.choice(sorted(nodes.worker_nodes, key=id)), allow_graceful=False)
    add_node(nodes, 4)


def kill_driver(_, __, driver):
    driver.kill()
    driver.wait()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kill", [kill_worker, kill_supervisor, remove_node, kill_driver])
def test_kills_lose_no_group_and_repeat_none(kill, two_nodes, tmp_path, soak):
    kills, drawn, fast = KILLS if soak else KILLS // 10, random.Random(SEED), tmp_path / "fast"
    planned, record, killed = 40 * kills, tmp_path / "record.jsonl", 0
    command = process(
        "Paced", record, "--workers", 2, "--ray", two_nodes.address, "--worker-env", "PACED_FAST"
    )
    command += ["--env.total_steps", str(planned), "--env.missing_outcome", "0"]
    command += ["--env.max_concurrent_rollouts", "8"]
    variables = {**without_torch(), "PACED_FAST": str(fast)}
    with (tmp_path / "log").open("ab") as log, Owners() as owners:
        driver = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        while killed < kills:
            lines = lines_in(record)
            wait_until(lambda: driver.poll() is not None or (workers() and lines_in(record) > lines))  # noqa: B023
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
            with suppress(ProcessLookupError, IndexError):  # it had just ended
                kill(drawn, two_nodes, driver)
                killed += 1
            if driver.poll() is not None:
                driver = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        fast.touch()
        assert driver.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    counts = finished_groups(record)
    assert len(counts) == planned
    assert set(counts.values()) == {1}
    # What was killed last waits for the next start of a worker, or for this.
    reap()
    wait_until_nothing_is_left(owners.identities)
