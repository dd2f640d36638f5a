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


async def test_the_agent_has_no_privileges_and_cannot_gain_any(sandbox):
    seen = await status(sandbox)
    assert int(seen["CapEff"], 16) == int(seen["CapPrm"], 16) == int(seen["CapAmb"], 16) == 0
    assert seen["NoNewPrivs"] == "1"
    assert seen["Seccomp"] == "2"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the agent a host user of its own")
async def test_the_agent_is_a_host_user_that_no_other_sandbox_has(sandbox):
    async with open_local(SMALL, tier="B") as other:
        users = {(await status(one))["Uid"].split()[0] for one in (sandbox, other)}
    assert len(users) == 2
    assert "0" not in users


async def test_host_secrets_are_in_no_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    async with open_local(SMALL, tier="B") as sandbox:
        result = await sandbox.exec("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        readable = await sandbox.exec("cat /proc/1/environ")
    assert b"PATH=" in result.stdout
    assert b"sk-very-secret" not in result.stdout
    assert readable.exit_code != 0


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/root", "/home", "/work", "/var/lib", "/run/docker.sock", "/sys/fs"]
)
async def test_the_host_is_out_of_sight(sandbox, path):
    assert (await sandbox.exec(["ls", path])).exit_code != 0


async def test_the_system_is_read_only(sandbox):
    result = await sandbox.exec("for d in / /usr /etc /dev /var /run; do touch $d/x && echo $d; done")
    assert result.stdout == b""


async def test_no_network_but_a_loopback(sandbox):
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        port = server.getsockname()[1]
        script = (
            "import socket\n"
            "def tries(make):\n"
            "  try: make(); return 'open'\n"
            "  except OSError: return 'shut'\n"
            "own = socket.create_server(('127.0.0.1', 0))\n"
            "print(tries(lambda: socket.create_connection(own.getsockname(), 2)))\n"
            f"print(tries(lambda: socket.create_connection(('127.0.0.1', {port}), 2)))\n"
            "print(tries(lambda: socket.create_connection(('169.254.169.254', 80), 2)))\n"
            "print(tries(lambda: socket.create_connection(('1.1.1.1', 53), 2)))\n"
            "print(tries(lambda: socket.getaddrinfo('example.com', 80)))\n"
            "udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "print(tries(lambda: udp.sendto(b'x', ('1.1.1.1', 53))))\n"
        )
        result = await sandbox.exec(["python3", "-c", script])
    assert result.text().split() == ["open", "shut", "shut", "shut", "shut", "shut"]


async def test_an_abstract_socket_of_the_host_is_out_of_reach(sandbox):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0turnwise-test")
        server.listen()
        script = "import socket; socket.socket(socket.AF_UNIX).connect('\\0turnwise-test')"
        assert (await sandbox.exec(["python3", "-c", script])).exit_code == 1


async def test_only_processes_of_the_sandbox_are_there(sandbox):
    result = await sandbox.exec("ls /proc | grep '^[0-9]' | wc -l; kill -0 1")
    assert int(result.stdout) < 8
    assert result.exit_code != 0 or os.geteuid() != 0


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
        for _ in range(5):
            last = await sandbox.shell("echo on", timeout_s=1)
        assert last.stdout == b"on\n"


@pytest.mark.parametrize(
    "attack",
    [
        "unshare -U true",
        "unshare -m true",
        "mount -t tmpfs none /tmp",
        "su -c true",
        "chroot / true",
        "mknod n b 8 0",
    ],
)
async def test_kernel_doors_are_shut(sandbox, attack):
    assert (await sandbox.exec(attack)).exit_code != 0


async def test_no_descriptor_of_the_host_is_inherited(sandbox):
    result = await sandbox.exec("ls /proc/self/fd")
    assert result.stdout.split() == [b"0", b"1", b"2", b"3"]


async def test_no_core_is_dumped(sandbox):
    assert (await sandbox.exec("ulimit -c")).stdout == b"0\n"


async def test_python_git_identity_and_home_work(sandbox):
    result = await sandbox.exec(
        "python3 -c 'import json, ssl, sqlite3; print(1)'; whoami; echo $HOME; pwd; echo $LANG"
    )
    assert result.stdout == b"1\nagent\n/workspace\n/workspace\nC.UTF-8\n"
