"""`serve` runs for weeks: what it takes does not grow with the groups."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.environments.serve import loopback
from tools.sandbox.local.cgroup import PREFIX

FIRST, LAST = 300, 900
"""Groups between which it is measured: at the beginning caches fill."""
MOST_KB_PER_GROUP = 2.5


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


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_memory_descriptors_threads_and_control_groups_do_not_grow_with_the_groups(
    api, start_trainer_on, tmp_path
):
    command = loopback.serve("WriteWord", api.url, tmp_path)
    with (
        start_trainer_on(api, batch_size=16, longest_step_s=0.02) as trainer,
        loopback.running(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as serving,
    ):
        loopback.wait_until(lambda: len(trainer.posts) >= FIRST, 150)
        before = taken(serving.pid)
        loopback.wait_until(lambda: len(trainer.posts) >= LAST, 200)
        after = taken(serving.pid)
        assert loopback.ended(serving) == 0
    assert (after[0] - before[0]) / (LAST - FIRST) < MOST_KB_PER_GROUP
    # What is in flight varies by the moment: 16 rollouts, each with a sandbox.
    assert [later - earlier < 60 for earlier, later in zip(before[1:], after[1:], strict=True)] == [True] * 3
