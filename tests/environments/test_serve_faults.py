"""Kill -9 of the API, the environment and the model server at random moments: nothing is lost."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from environments.recorder import read_groups

KILLS = 30
SEED = 4
ENV = f"{Path(__file__).with_name('served_env.py')}:WriteWord"
_PR_SET_CHILD_SUBREAPER = 36


class Kept:
    """A process that is started again whenever it ended."""

    def __init__(self, command, log):
        self.command, self.log = command, log
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def keep(self):
        if self.process.poll() is not None:
            self.start()

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(120)


@pytest.fixture
def _orphans_come_home():
    """Whatever a killed process leaves behind becomes a child of this process, where it can be counted."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def living_children(besides):
    """Children of this process that have not ended, other than those we know."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            stat = Path(f"/proc/{pid}/stat")
            if pid not in besides and stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes()[:200]))
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def recorded(path):
    return {group.group.group_id for group in read_groups(path) if group.status == "ok"}


def commands(api, tmp_path):
    turnwise = str(Path(sys.executable).with_name("turnwise"))
    port = free_port()
    serve = [turnwise, "serve", ENV, "--env.rollout_server_url", api.url, "--env.group_size", "2"]
    serve += ["--outbox", str(tmp_path / "outbox.sqlite"), "--out", str(tmp_path / "record.jsonl")]
    serve += ["--openai.base_url", f"http://127.0.0.1:{port}/v1", "--openai.model_name", "scripted"]
    return {
        "api": api.command(),
        "model": [turnwise, "mock-model", ENV, "--port", str(port)],
        # A lost model call shall cost the group, so that the loop's own pause is what is tried.
        "env": [*serve, "--env.request_tries", "2"],
    }


def kill_at_random(kept, trainer):
    """The kills, a quarter of them in the middle of work: after something more arrived."""
    drawn = random.Random(SEED)
    killed = Counter()
    for _ in range(KILLS):
        if drawn.random() < 0.25:
            keep_until(kept, more_than(trainer, 0))
        moment = time.monotonic() + drawn.uniform(0.0, 1.2)
        keep_until(kept, lambda moment=moment: time.monotonic() >= moment)
        victim = drawn.choice(list(kept))
        kept[victim].kill()
        killed[victim] += 1
    return killed


def keep_until(kept, condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(kept["env"].log.read_text()[-3000:])
        time.sleep(0.02)
        for process in kept.values():
            process.keep()


def more_than(trainer, posts):
    enough = len(trainer.posts) + posts
    return lambda: len(trainer.posts) > enough


def no_child_is_left(children_before):
    deadline = time.monotonic() + 20
    while left := living_children(children_before):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass  # every orphan has been fetched


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_orphans_come_home")
def test_thirty_kills_lose_no_group_repeat_only_whole_groups_and_leave_no_sandbox(
    api, start_trainer_on, tmp_path
):
    api.kill()
    children_before = {pid for pid, _ in living_children(set())}
    kept = {
        name: Kept(command, tmp_path / f"{name}.log") for name, command in commands(api, tmp_path).items()
    }
    try:
        with start_trainer_on(api, batch_size=2) as trainer:
            killed = kill_at_random(kept, trainer)
            keep_until(kept, more_than(trainer, 4))
            assert kept["env"].end(signal.SIGTERM) == 0
            finished = recorded(tmp_path / "record.jsonl")
            del kept["env"]
            keep_until(kept, lambda: finished <= {group_id(post) for post in trainer.posts})
    finally:
        for process in kept.values():
            process.end(signal.SIGKILL)

    assert killed.total() == KILLS
    assert len(finished) >= KILLS / 2
    rows = {}
    for post in trainer.posts:
        for tokens, override in zip(post["tokens"], post["overrides"], strict=True):
            # What comes again under one name is the same row.
            assert rows.setdefault((override["group_id"], override["row"]), tokens) == tokens
    no_child_is_left(children_before)
    sent = Counter(map(group_id, trainer.posts))
    print(f"kills {dict(killed)}, groups {len(sent)}, repeated {sent.total() - len(sent)}")  # noqa: T201


def group_id(post):
    return post["overrides"][0]["group_id"]
