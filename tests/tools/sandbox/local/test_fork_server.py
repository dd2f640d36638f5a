"""The process that sandboxes are forked from: replaced when it dies, gone when its owner is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.tools.sandbox.conftest import SMALL
from tools.sandbox.conformance.checks import until
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.fork_server import fork_server

OWNER = """
import os, signal
from tools.sandbox.local.fork_server import fork_server
print(fork_server().pid, flush=True)
signal.pause()
"""


async def test_a_killed_fork_server_is_replaced_and_its_sandboxes_live_on():
    async with open_local(SMALL, tier="B") as sandbox:
        first = fork_server()
        os.kill(first.pid, signal.SIGKILL)
        assert await until(lambda: not first.usable, within_s=20)
        async with open_local(SMALL, tier="B") as other:
            assert (await other.exec("echo on")).stdout == b"on\n"
        assert (await sandbox.exec("echo on")).stdout == b"on\n"
    assert fork_server().pid != first.pid


async def test_it_ends_when_its_owner_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)  # noqa: ASYNC220  # not waited for
    pid = int(owner.stdout.readline())
    owner.kill()
    assert owner.wait() == -signal.SIGKILL
    owner.stdout.close()
    assert await until(lambda: not Path(f"/proc/{pid}").exists(), within_s=20)


async def test_nothing_of_the_host_is_in_it(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setattr("tools.sandbox.local.fork_server._current", {})
    async with open_local(SMALL, tier="B"):
        pid = fork_server().pid
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        opened = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    kinds = sorted(name.split(":")[0] for name in opened)
    assert set(kinds) <= {"/dev/null", "socket", "/memfd"}
    assert kinds.count("socket") == 1
