"""The root of a sandbox: how many files its file systems take, and what came along from the host's mounts."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import SMALL
from tools.sandbox.local.backend import open_local

_FLOOD = """
import sys
made = 0
try:
    while made < 100_000:
        open(f"{sys.argv[1]}/{made}", "x").close()
        made += 1
except OSError as error:
    print(error.errno)
"""
_WRITE_BELOW = """
import ctypes, sys
from tools.sandbox.inside import mounts
mounts._MOUNT_SETATTR = int(sys.argv[2])
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", b"", 0x44000, b"") == 0
assert libc.mount(b"none", f"{sys.argv[1]}/a b".encode(), b"tmpfs", 0, b"") == 0
mounts.build_root([["bind", "/seen", sys.argv[1], "0", "755", ""], ["dir", "/proc", "", "0", "", ""]])
try:
    open("/seen/a b/file", "x").close()
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("folder", ["/workspace", "/tmp", "/dev/shm"])
async def test_empty_files_run_out_of_space_before_they_run_out_of_memory(folder):
    async with open_local(SMALL, tier="B") as sandbox:
        flood = await sandbox.exec(["python3", "-c", _FLOOD, folder])
    assert flood.text().split() == [str(errno.ENOSPC)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("call", [442, 9999], ids=["mount_setattr", "older_kernel"])
def test_a_mount_below_a_bound_folder_is_read_only_too(tmp_path, call):
    (tmp_path / "a b").mkdir()
    root = Path(__file__).parents[4]
    seen = subprocess.run(
        [sys.executable, "-c", _WRITE_BELOW, str(tmp_path), str(call)],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert seen.stdout.split() == [str(errno.EROFS)]
