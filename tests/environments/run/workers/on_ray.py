"""What the tests on Ray share: clusters, commands, records to compare, and what runs leave on the machine."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.environments.run.leftovers import groups_and_folders
from tests.environments.serve.loopback import wait_until, without_torch
from tools.sandbox.host.ownership import identity

if not os.environ.get("TURNWISE_REQUIRE_RAY"):
    pytest.importorskip("ray", reason="ray is not installed (`turnwise[ray]`; CI has it)")

from ray.cluster_utils import Cluster

PACED = Path(__file__).with_name("paced_env.py")
MARK = "TURNWISE_TESTED_BY"
"""A variable that all processes of one test have, also those that belong to nobody any more."""
_STORE_BYTES = 100 << 20
_NOT_COMPARED = {"crc32", "group_id", "origin", "profile", "sandbox", "clock"}


@contextmanager
def cluster(*, head_cpus=0, node_cpus=()):
    """A Ray of several nodes, whose processes have gone when the block has ended."""
    head = {"num_cpus": head_cpus, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    try:
        for cpus in node_cpus:
            add_node(started, cpus)
        yield started
    finally:
        started.shutdown()


def add_node(started, cpus):
    """One more node, with room for sandboxes."""
    return started.add_node(num_cpus=cpus, resources={"sandbox": 100}, object_store_memory=_STORE_BYTES)


def process(env, record, *options):
    """The command that writes a record of an environment, or of a class in `paced_env`."""
    spec = env if "/" in env or ":" in env or env.islower() else f"{PACED}:{env}"
    command = [sys.executable, "-m", "turnwise", "process", spec, "--out", str(record)]
    return [*command, "--env.group_size", "2", *map(str, options)]


def run(command, **options):
    """What a command printed and its exit code."""
    variables = {**without_torch(), **options.pop("variables", {})}
    return subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
        check=False, **options,
    )  # fmt: skip


def rolled_out(command, **options):
    """What a command printed that has to succeed."""
    done = run(command, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def compared(record):
    """The lines of a record without what may differ from run to run, in the order of their items."""
    groups = [comparable(json.loads(line)) for line in Path(record).read_text().splitlines()]
    return sorted(groups, key=lambda group: (group["item_id"], group["epoch"]))


def comparable(value):
    """A value of a record without what may differ."""
    if isinstance(value, dict):
        return {
            name: comparable(each)
            for name, each in value.items()
            if name not in _NOT_COMPARED and not name.endswith("_s")
        }
    return [comparable(each) for each in value] if isinstance(value, list) else value


# Processes.


def marked(mark):
    """Process ids and command lines of those that have a variable `MARK` with this value."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (each / "environ").read_bytes().split(b"\0"):
                found[int(each.name)] = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return {pid: command for pid, command in found.items() if command}


def parent_of(pid):
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def workers():
    """Process ids of all workers of this machine whose root process is this one."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"rollout_worker import main" in (each / "cmdline").read_bytes() and _is_below(int(each.name)):
                found.append(int(each.name))
    return found


def _is_below(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parent_of(pid)
    return False


class Owners(threading.Thread):
    """Collects which workers there were, as their sandboxes are named by them."""

    def __init__(self):
        super().__init__(daemon=True)
        self.identities, self._stop_asked = set(), threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_asked.set()
        self.join()

    def run(self):
        while not self._stop_asked.wait(0.05):
            for pid in workers():
                with suppress(OSError):
                    self.identities.add(identity(pid))


@pytest.fixture(scope="module", autouse=True)
def scratch(tmp_path_factory):
    """A folder for temporary files that no other program on this machine uses; its name is short for Ray."""
    tmp_path_factory.getbasetemp()  # lies elsewhere
    folder = tempfile.mkdtemp(prefix="tw-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def folders():
    """What workers and Rays of ours have in the folder for temporary files."""
    scratch = Path(tempfile.gettempdir())
    return {each for name in ("turnwise-ray-*", "turnwise-worker.*") for each in scratch.glob(name)}


def wait_until_nothing_is_left(owners=frozenset(), mark=None):
    """Within a minute no worker, no folder of one, and no sandbox of the owners."""

    def left():
        return (folders(), groups_and_folders(owners), workers(), mark and marked(mark))

    try:
        wait_until(lambda: not any(left()), seconds=60)
    except AssertionError:
        raise AssertionError(f"left after a minute: {left()}") from None
