"""Kill -9 of commands at random moments: each is started again, and nothing is missing or double."""

import subprocess
import time
from collections import Counter
from contextlib import suppress

from environments.record.recorder import read_groups
from tests.environments.run.leftovers import groups_and_folders
from tests.environments.serve.loopback import TURNWISE, wait_until
from tools.sandbox.host.ownership import identity


def lines_in(record):
    return record.read_bytes().count(b"\n") if record.exists() else 0


class Victim:
    """A process that is killed, and started again by the same command."""

    def __init__(self, start, progress=None):
        self._start, self._progress = start, progress
        self.identities = set()
        self.exits = set()
        """Exit codes of those that ended without being killed."""
        self.start()

    def start(self):
        self.process = self._start()
        self.identities.add(identity(self.process.pid))

    def keep(self):
        """Start it again if it ended by itself."""
        if self.process.poll() is not None:
            self.exits.add(self.process.returncode)
            self.start()

    def wait_for_progress(self):
        before = self._progress()
        wait_until(lambda: self._progress() > before or self.process.poll() is not None)

    def kill(self):
        assert self.process.poll() in (None, 0), f"{self.process.args} failed"
        self.process.kill()
        self.process.wait()


def kill_at_random(order, drawn):
    """Kill the victims in this order, most of them in the middle of work, whose start may take longer."""
    for victim in order:
        if drawn.random() < 0.75:
            victim.wait_for_progress()
        time.sleep(drawn.uniform(0.0, 0.3))
        victim.kill()
        victim.start()


def finished_groups(records):
    """How often each group is in records, every line of which is read and none of which has failed."""
    groups = list(read_groups(records))
    counts = Counter((each.group.item_id, each.group.epoch) for each in groups if each.status != "failed")
    assert len(groups) == counts.total()
    return counts


def reap():
    """Remove what killed processes left, as the next start of a sandbox does."""
    subprocess.run([TURNWISE, "doctor", "sandbox", "local", "--reap"], check=True, stdout=subprocess.DEVNULL)


def assert_nothing_is_left(owners):
    """No sandbox of processes that were killed is left once somebody has looked."""
    reap()
    # Programs of other tests look, too, and one may be in the middle of taking the same away.
    with suppress(AssertionError):
        wait_until(lambda: not groups_and_folders(owners), 20)
    assert groups_and_folders(owners) == []
