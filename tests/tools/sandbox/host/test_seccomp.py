"""What the filter of system calls leaves and takes."""

import platform

import pytest

from tests.tools.sandbox.conftest import SMALL
from tools.sandbox.docker import container
from tools.sandbox.host import seccomp
from tools.sandbox.local import tiers

_CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
size = ctypes.c_size_t
print(libc.{call} >= 0, errno.errorcode.get(ctypes.get_errno()))
"""
_POOL = """
from multiprocessing import Lock, Pool, shared_memory
block = shared_memory.SharedMemory(create=True, size=4096)
block.unlink()
with Lock(), Pool(2) as pool:
    print(sum(pool.map(abs, [-1, -2])))
"""


@pytest.mark.parametrize(
    "call",
    [
        "shmget(0, size(4097), 0o1600)",
        "shmget(0, size(1 << 32), 0o1600)",
        "semget(0, 1, 0o1600)",
        "msgget(0, 0o1600)",
    ],
)
async def test_nothing_large_can_be_made_that_outlives_its_maker(sandbox, call):
    result = await sandbox.exec(["python3", "-c", _CALL.format(call=call)])
    assert result.text().split() == ["False", "EPERM"]


async def test_a_page_of_system_v_memory_is_there_for_databases_that_lock_with_it(sandbox):
    result = await sandbox.exec(["python3", "-c", _CALL.format(call="shmget(0, size(4096), 0o1600)")])
    assert result.text().split() == ["True", "None"]


@pytest.mark.parametrize(
    ("family", "allowed"),
    [("AF_UNIX", True), ("AF_INET", True), ("AF_INET6", True), ("AF_NETLINK", True), ("AF_VSOCK", False),
     ("AF_ALG", False), ("AF_PACKET", False)],
)  # fmt: skip
async def test_only_usual_families_of_sockets_are_there(sandbox, family, allowed):
    kind = "SOCK_SEQPACKET" if family == "AF_ALG" else "SOCK_RAW" if family == "AF_NETLINK" else "SOCK_STREAM"
    code = f"import socket; socket.socket(socket.{family}, socket.{kind})"
    assert ((await sandbox.exec(["python3", "-c", code])).exit_code == 0) == allowed


@pytest.fixture
def unknown_processor(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    seccomp.program.cache_clear()
    yield
    seccomp.program.cache_clear()


class Engine:
    arch = platform.machine()


@pytest.mark.usefixtures("unknown_processor")
def test_without_numbers_for_a_processor_a_sandbox_says_that_nothing_is_filtered():
    who = tiers.Agent(root=True, uid=1, gid=1)
    assert "system_calls" in tiers.lacks("B", who, SMALL)
    assert "system_calls" in tiers.lacks("C", who, SMALL)
    assert "system_calls" in container.lacks(Engine(), SMALL)


async def test_shared_memory_and_locks_of_multiprocessing_work(sandbox):
    assert (await sandbox.exec(["python3", "-c", _POOL])).text().split() == ["3"]
