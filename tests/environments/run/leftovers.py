"""What sandboxes leave on a machine when their programs are killed: processes, control groups and folders.

Counted without the product's own inventory, which takes some of it away when it looks.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from tools.sandbox.local.cgroup import PREFIX

CONTROL_GROUPS = "/sys/fs/cgroup"


def groups_and_folders(owners):
    """Control groups and folders of the programs with these `tools.sandbox.host.ownership.identity`."""
    folders = [Path(parent, name) for parent, names, _ in os.walk(CONTROL_GROUPS) for name in names]
    folders += Path(tempfile.gettempdir()).iterdir()
    return [path for path in folders if path.name.startswith(f"{PREFIX}.") and _owner(path.name) in owners]


def living_children(besides=()):
    """Children of this process that have not ended, other than those we know: process id and command line.

    What commands are forked from stays for the next test.
    """
    pids = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            pids += map(int, (task / "children").read_text().split())
    found = []
    for pid in set(pids).difference(besides):
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes()[:200]))
    return [(pid, command) for pid, command in found if b"\nimport os, runpy, sys\n" not in command]


def _owner(name):
    return name.removeprefix(f"{PREFIX}.").rpartition(".")[0]
