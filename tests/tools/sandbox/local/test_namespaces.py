"""What the agent's code can see and do: nothing of the host."""

import os
import socket

import pytest

from tests.tools.sandbox.conftest import SMALL
from tools.sandbox.inside import shell
from tools.sandbox.local import tiers
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.tiers import Agent


async def status(sandbox):
    text = (await sandbox.exec("cat /proc/self/status")).text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the agent a host user of its own")
async def test_the_agent_is_a_host_user_that_no_other_sandbox_has(sandbox):
    async with open_local(SMALL, tier="B") as other:
        users = {(await status(one))["Uid"].split()[0] for one in (sandbox, other)}
    assert len(users) == 2
    assert "0" not in users


async def test_an_abstract_socket_of_the_host_is_out_of_reach(sandbox):
    with socket.socket(socket.AF_UNIX) as server:
        name = f"turnwise-test-{os.getpid()}"
        server.bind(f"\0{name}")
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert (await sandbox.exec(["python3", "-c", script])).exit_code == 1


async def test_the_supervisor_cannot_be_killed_stopped_or_read(sandbox):
    await sandbox.exec("kill -9 1; kill -STOP 1; kill -9 -1")
    for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/fd/3"):
        assert (await sandbox.exec(["cat", path])).exit_code == 1
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


@pytest.mark.parametrize(
    "attack",
    [
        "kill -INT 1",
        "cd /run/turnwise && rm -f command && mkfifo command",
        "(while :; do echo 0123456789abcdef 0; done) > /proc/$(pgrep -x bash)/fd/9 & sleep 0.2; kill $!",
    ],
)
async def test_an_agent_of_the_supervisors_own_user_cannot_make_it_end_or_hang(monkeypatch, attack):
    monkeypatch.setattr(tiers, "agent", lambda: Agent(root=False, uid=os.getuid(), gid=os.getgid()))
    async with open_local(SMALL, tier="B", allow_unsafe=True) as sandbox:
        await sandbox.exec("true")
        await sandbox.shell("true")
        await sandbox.exec(attack)
        assert (await sandbox.shell("echo on")).stdout == b"on\n"


def test_a_folder_in_the_place_of_an_output_is_an_error_and_no_output(tmp_path, monkeypatch):
    monkeypatch.setattr(shell.os, "mkfifo", os.mkdir)
    with pytest.raises(OSError, match="Input/output error"):
        shell._fifo(str(tmp_path / "stdout"))


async def test_an_agent_of_the_supervisors_own_user_that_stuffs_the_shell_gets_another(monkeypatch):
    monkeypatch.setattr(tiers, "agent", lambda: Agent(root=False, uid=os.getuid(), gid=os.getgid()))
    async with open_local(SMALL, tier="B", allow_unsafe=True) as sandbox:
        await sandbox.shell("true")
        await sandbox.exec("kill -STOP $(pgrep -x bash); timeout 1 yes : > /proc/$(pgrep -x bash)/fd/0")
        # Of the words that were put into its input, the shell makes what it can.
        for timeout_s in (1, 1, 1, 1, 60):
            last = await sandbox.shell("echo on", timeout_s=timeout_s)
        assert last.stdout == b"on\n"
