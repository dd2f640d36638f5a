"""A process that is left running, such as an agent's program: it holds no call up, lives on, and pauses."""

import asyncio

import pytest

from tools.sandbox.base import run_python

BEAT = "while :; do printf x >>beat; sleep 0.02; done"
DETACHED = f"""
import os
if os.fork() == 0:
    os.setsid()
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.execv("/bin/sh", ["sh", "-c", {BEAT!r}])
"""


@pytest.mark.parametrize("tier", ["B", pytest.param("docker", marks=pytest.mark.docker)])
@pytest.mark.parametrize("by", ["exec", "run_python"])
async def test_it_lives_on_and_pauses(tier, by, opening):
    async def written():
        return len(await sandbox.read_file("beat"))

    async def goes_on(after):
        more = f"until test -e beat && test $(wc -c <beat) -gt {after}; do sleep 0.02; done"
        return (await sandbox.exec(more)).exit_code == 0

    async with opening(tier) as sandbox:
        if by == "exec":
            result = await sandbox.exec(f"nohup sh -c '{BEAT}' >/dev/null 2>&1 & echo $!")
        else:
            result = await run_python(sandbox, DETACHED, stdin=b"", timeout_s=20)
        assert (result.exit_code, result.stderr) == (0, b"")
        assert await goes_on(0)
        async with sandbox.paused():
            before = await written()
            await asyncio.sleep(0.2)
            assert await written() == before
        assert await goes_on(before)
