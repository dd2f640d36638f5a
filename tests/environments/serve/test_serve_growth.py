"""`serve` runs for weeks: what it takes does not grow with the groups."""

import os
import subprocess
from pathlib import Path
from statistics import median

import pytest

from tests.environments.serve import loopback
from tools.sandbox.local.cgroup import PREFIX

FIRST, LAST = 300, 900
"""Groups between which it is measured: at the beginning caches fill."""
SPAN = 100
"""Memory grows in steps of up to 2 MB, which the median over many spans leaves out."""
MOST_KB_PER_GROUP = 12
"""Fragments of one heap are 1 to 3; groups that are kept are 47."""
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""The heaps of threads fragment by up to 10 kB per group, for some thousand groups."""


def taken(pid):
    """Resident kB, descriptors, threads and control groups of a process."""
    process = Path(f"/proc/{pid}")
    # Not `rglob`, which breaks where one is removed meanwhile.
    names = [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders]
    groups = [name for name in names if name.startswith(f"{PREFIX}.") and f"-{pid}-" in name]
    return (
        int((process / "statm").read_text().split()[1]) * 4,
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        len(groups),
    )


def growths(readings):
    """kB per group from each reading to the first that is at least `SPAN` groups later."""
    for index, (groups, kb) in enumerate(readings):
        later = next((each for each in readings[index:] if each[0] >= groups + SPAN), None)
        if later is not None:
            yield (later[1] - kb) / (later[0] - groups)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_memory_descriptors_threads_and_control_groups_do_not_grow_with_the_groups(
    api, start_trainer_on, tmp_path
):
    command = loopback.serve("WriteWord", api.url, tmp_path)
    with (
        start_trainer_on(api, batch_size=16, longest_step_s=0.02) as trainer,
        loopback.running(
            command,
            environ={**loopback.without_torch(), **ONE_HEAP},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        ) as serving,
    ):
        loopback.wait_until(lambda: len(trainer.posts) >= FIRST, 300)
        readings = [(len(trainer.posts), taken(serving.pid))]
        while readings[-1][0] < LAST:
            loopback.wait_until(lambda: len(trainer.posts) >= readings[-1][0] + 10, 120)
            readings.append((len(trainer.posts), taken(serving.pid)))
        assert loopback.ended(serving) == 0
    assert median(growths([(groups, values[0]) for groups, values in readings])) < MOST_KB_PER_GROUP
    # What is in flight varies by the moment: 16 rollouts, each with a sandbox.
    (_, before), (_, after) = readings[0], readings[-1]
    assert [later - earlier < 60 for earlier, later in zip(before[1:], after[1:], strict=True)] == [True] * 3
