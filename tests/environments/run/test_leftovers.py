"""The count of what killed programs leave, which the fault tests trust: it sees what is there."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.environments.run.leftovers import CONTROL_GROUPS, groups_and_folders, living_children
from tests.environments.serve.loopback import TURNWISE, running
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
    left = groups_and_folders({owner})
    assert any(path.is_relative_to(tempfile.gettempdir()) for path in left)
    assert has_groups == any(path.is_relative_to(CONTROL_GROUPS) for path in left)
    assert all(Path(path).is_dir() for path in left)

    subprocess.run([TURNWISE, "doctor", "sandbox", "local", "--reap"], check=True, stdout=subprocess.DEVNULL)
    assert groups_and_folders({owner}) == []
    assert process.pid not in dict(living_children())
