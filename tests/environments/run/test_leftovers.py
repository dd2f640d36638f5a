"""The count of what killed programs leave, which the fault tests trust: it sees what is there."""

import subprocess
import sys
import tempfile

from tests.environments.run.leftovers import CONTROL_GROUPS, groups_and_folders, living_children
from tests.environments.serve.loopback import running
from tests.equipment.kills import assert_nothing_is_left
from tools.sandbox.host.ownership import identity
from tools.sandbox.local import cgroup

OPEN_A_SANDBOX = """
import asyncio
from tools.sandbox.base import SandboxLimits
from tools.sandbox.local.backend import open_local

async def main():
    async with open_local(SandboxLimits(), allow_unsafe=True, tier="D"):
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_what_a_killed_program_leaves_is_counted_until_it_is_taken_away():
    # Whoever looks for control groups for the first time takes those of dead programs away.
    has_groups = bool(cgroup.controllers())
    with running([sys.executable, "-c", OPEN_A_SANDBOX], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        owner = identity(process.pid)
        assert process.pid in dict(living_children())
        # While it lives: what it leaves is anybody's to take away, also that of tests beside this one.
        left = groups_and_folders({owner})
    assert any(path.is_relative_to(tempfile.gettempdir()) for path in left)
    assert has_groups == any(path.is_relative_to(CONTROL_GROUPS) for path in left)
    assert_nothing_is_left({owner})
    assert process.pid not in dict(living_children())
