"""What the filter of system calls leaves and takes."""

import pytest

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


async def test_shared_memory_and_locks_of_multiprocessing_work(sandbox):
    assert (await sandbox.exec(["python3", "-c", _POOL])).text().split() == ["3"]
