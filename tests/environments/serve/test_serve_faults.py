"""Kill -9 of the API, the environment and the model server, alone and together: nothing is lost."""

import contextlib
import ctypes
import itertools
import os
import random
import signal
import subprocess
import time
from functools import partial

import pytest

from environments.record.recorder import read_groups
from tests.environments.run.leftovers import groups_and_folders, living_children
from tests.environments.serve import loopback
from tests.environments.serve.outbox_copy import groups_in, posts_ever_in
from tests.equipment.kills import Victim

SEED = 4
KILLS = {("api",): 3, ("env",): 2, ("model",): 2, ("env", "api"): 2, ("env", "api", "model"): 3}
"""Who is killed in the same moment, and how often with `--soak`; without it the first and the last once."""
_PR_SET_CHILD_SUBREAPER = 36


def started(command, log):
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


class World:
    """Everything but the trainer, as processes, and what was seen in the outbox."""

    def __init__(self, api, folder):
        port = loopback.free_port()
        # A lost model call shall cost the group, so that the loop's own pause is what is tried.
        options = [*loopback.playing(port), "--env.outbox_groups", "8", "--send-all"]
        self.folder = folder
        self.outbox, self.record = folder / "outbox.sqlite", folder / "record.jsonl"
        self.finished = set()
        self.kept = {
            name: Victim(partial(started, command, folder / f"{name}.log"))
            for name, command in {
                "api": api.command(),
                "model": loopback.mock_model("WriteWord", port),
                "env": loopback.serve("WriteWord", api.url, folder, *options, group_size=2),
            }.items()
        }

    def kill(self, together):
        for name in together:
            self.kept[name].process.kill()
        for name in together:
            self.kept[name].process.wait()
        if "env" in together:
            self.finished |= groups_in(self.outbox)
        for name in together:
            self.kept[name].start()

    def keep_until(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("".join(log.read_text()[-3000:] for log in self.folder.glob("*.log")))
            time.sleep(0.02)
            for process in self.kept.values():
                process.keep()

    def end(self, name, number):
        """End one for good; its exit code."""
        process = self.kept.pop(name).process
        process.send_signal(number)
        return process.wait(120)


@pytest.fixture
def _orphans_come_home():
    """Whatever a killed process leaves behind becomes a child of this process, where it can be counted."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def kill_at_random(world, trainer, kills):
    """The kills in random order, half of them in the middle of work: after something more arrived."""
    drawn = random.Random(SEED)
    moments = [together for together, times in kills.items() for _ in range(times)]
    drawn.shuffle(moments)
    for together in moments:
        if drawn.random() < 0.5:
            world.keep_until(more_than(trainer, 0))
        moment = time.monotonic() + drawn.uniform(0.0, 1.0)
        world.keep_until(lambda moment=moment: time.monotonic() >= moment)
        world.kill(together)


def more_than(trainer, posts):
    enough = len(trainer.posts) + posts
    return lambda: len(trainer.posts) > enough


def no_child_is_left(children_before):
    deadline = time.monotonic() + 90
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
def test_kills_lose_no_group_repeat_only_whole_posts_and_leave_no_sandbox(
    api, start_trainer_on, tmp_path, soak
):
    kills = KILLS if soak else {("api",): 1, ("env", "api", "model"): 1}
    api.kill()
    children_before = dict(living_children())
    world = World(api, tmp_path)
    env = world.kept["env"]
    try:
        with start_trainer_on(api, batch_size=2) as trainer:
            kill_at_random(world, trainer, kills)
            world.keep_until(more_than(trainer, 4))
            assert world.end("env", signal.SIGTERM) == 0
            world.finished |= {
                group.group.group_id for group in read_groups(world.record) if group.status == "ok"
            }
            # Every post that was ever in the outbox: none is taken out before a trainer has it.
            ever = posts_ever_in(world.outbox)
            world.keep_until(lambda: len(set(map(name_of, trainer.posts))) >= ever, 60)
    finally:
        for name in list(world.kept):
            world.end(name, signal.SIGKILL)

    delivered = {group_id for group_id, _ in map(name_of, trainer.posts)}
    assert world.finished <= delivered
    assert len(set(map(name_of, trainer.posts))) == ever
    assert len(world.finished) >= sum(kills.values()) / 2
    first = {}
    for post in trainer.posts:
        # What comes again under one name is the same to the last number; only the registration is new.
        content = {name: column for name, column in post.items() if name != "env_id"}
        assert first.setdefault(name_of(post), content) == content
    # It never ends of its own accord: whoever is away is waited for.
    assert env.exits == set()
    no_child_is_left(children_before)
    assert groups_and_folders(env.identities) == []
    repeated = len(trainer.posts) - ever
    print(f"groups {len(delivered)}, seen kept {len(world.finished)}, repeated {repeated}")  # noqa: T201


def name_of(post):
    return post["overrides"][0]["group_id"], post["overrides"][0]["row"]


ORDERS = list(itertools.permutations(["api", "model", "trainer"]))


@pytest.mark.soak
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_partners_may_come_in_any_order_after_serve(api, start_trainer_on, tmp_path, order):
    api.kill()
    port, log = loopback.free_port(), tmp_path / "log"
    env = loopback.serve("WriteWord", api.url, tmp_path, *loopback.playing(port), group_size=2)
    with contextlib.ExitStack() as running, log.open("wb") as shown:
        serving = running.enter_context(loopback.running(env, stdout=shown, stderr=shown))
        loopback.wait_until(lambda: "no model server answers at" in log.read_text())
        for name in order:
            if name == "trainer":
                trainer = running.enter_context(start_trainer_on(api, batch_size=2))
            else:
                command = api.command() if name == "api" else loopback.mock_model("WriteWord", port)
                running.enter_context(loopback.running(command, stdout=subprocess.DEVNULL))
            assert serving.poll() is None
        loopback.wait_until(lambda: len(trainer.posts) >= 4)
        assert loopback.ended(serving) == 0
    assert [each["overrides"][0]["turn_rewards"] is not None for each in trainer.posts[:4]] == [True] * 4
