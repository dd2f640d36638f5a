"""Starting the agent's processes: those that are stopped before they run keep nobody waiting."""

import os
import signal
from pathlib import Path

from tools.sandbox.inside import spawn


class Whoever:
    """An account that changes nothing."""

    def fork(self, is_own=False):
        return os.fork()

    def enter(self, bounded):
        pass


def started(action):
    with Path(os.devnull).open("r+b") as nowhere:
        pid = spawn.fork(Whoever(), (nowhere.fileno(),) * 3, action)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_that_is_stopped_once_goes_on():
    def stopped():
        os.kill(os.getpid(), signal.SIGSTOP)
        return 7

    assert started(stopped) == 7


def test_a_child_that_is_stopped_again_and_again_is_ended(monkeypatch):
    monkeypatch.setattr(spawn, "_START_S", 0.3)

    def stopped():
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)

    assert started(stopped) == -signal.SIGKILL
