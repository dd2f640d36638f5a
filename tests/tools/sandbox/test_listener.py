"""A socket of this process on a sandbox's own loopback: the one thing outside that its programs reach."""

import asyncio
import errno
import os
import socket
import subprocess
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tools.sandbox.conftest import NETWORKED, SMALL, TEST_IMAGE
from tools.errors import IsolationError, SandboxUnavailable
from tools.sandbox import open_sandbox
from tools.sandbox.base import listener
from tools.sandbox.docker import container
from tools.sandbox.host import channel as channels
from tools.sandbox.host.channel import Channel
from tools.sandbox.inside import messages
from tools.sandbox.local.backend import open_local

_WITHIN_S = 120
CALL = (
    "import socket, sys\n"
    "with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60) as to:\n"
    "    to.sendall(b'hello\\n')\n"
    "    print(to.recv(99).decode(), end='')\n"
)


@pytest.fixture(params=["B", pytest.param("docker", marks=pytest.mark.docker)])
async def sandbox(request, opening):
    async with opening(request.param) as opened:
        yield opened


async def shout(reader, writer):
    """Answer each line in capitals until the other side ends."""
    async for line in reader:
        writer.write(line.upper())
    writer.close()


async def called(sandbox, port):
    return await sandbox.exec(["python3", "-c", CALL, str(port)])


async def test_bytes_go_both_ways(sandbox):
    sock = await listener(sandbox)
    async with await asyncio.start_server(shout, sock=sock):
        assert (await called(sandbox, sock.getsockname()[1])).text() == "HELLO\n"


async def test_no_other_port_of_the_host_is_reachable(sandbox):
    with await listener(sandbox), socket.create_server(("127.0.0.1", 0)) as of_host:
        assert b"ConnectionRefusedError" in (await called(sandbox, of_host.getsockname()[1])).stderr


async def test_nobody_outside_of_the_sandbox_reaches_it(sandbox):
    with await listener(sandbox) as sock:
        sock.setblocking(False)
        # Of the host, another program may listen there.
        with suppress(ConnectionRefusedError), socket.create_connection(sock.getsockname()):
            pass
        with pytest.raises(BlockingIOError):
            sock.accept()


async def test_it_survives_commands_and_pauses(sandbox):
    sock = await listener(sandbox)
    port = sock.getsockname()[1]
    async with await asyncio.start_server(shout, sock=sock):
        await sandbox.exec("kill -9 -1")
        await sandbox.exec("sleep 1000", timeout_s=0.1)
        async with sandbox.paused():
            assert (await called(sandbox, port)).text() == "HELLO\n"
        assert (await called(sandbox, port)).text() == "HELLO\n"


@pytest.mark.parametrize("tier", ["B", pytest.param("docker", marks=pytest.mark.docker)])
async def test_open_connections_end_with_the_sandbox(tier, opening):
    connected, ended = asyncio.Event(), asyncio.Event()

    async def hold(reader, writer):
        connected.set()
        await reader.read()
        ended.set()
        writer.close()

    async with asyncio.timeout(_WITHIN_S):
        async with opening(tier) as opened:
            sock = await listener(opened)
            server = await asyncio.start_server(hold, sock=sock)
            calling = f'nohup python3 -c "{CALL}" {sock.getsockname()[1]} >/dev/null 2>&1 &'
            await opened.exec(calling.replace("60)", "900)"))
            await connected.wait()
        await ended.wait()
        server.close()


async def test_a_cancelled_call_leaves_a_sandbox_that_works(sandbox):
    waiting = asyncio.create_task(listener(sandbox))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await sandbox.exec("echo on")).text() == "on\n"
    (await listener(sandbox)).close()


async def test_a_supervisor_without_a_port_is_no_dead_one():
    ours, theirs = socket.socketpair()
    with theirs:
        channel = await Channel.over(ours)
        theirs.send(messages.encode(messages.Refused(errno.EADDRINUSE)))
        with pytest.raises(SandboxUnavailable, match=f"passes no socket: Refused.errno={errno.EADDRINUSE}."):
            await channel.listen()
        assert not channel.broken
        channel.close("the end")


async def test_a_supervisor_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(channels, "_GRACE_S", 0.1)
    ours, theirs = socket.socketpair()
    with theirs:
        channel = await Channel.over(ours)
        with pytest.raises(SandboxUnavailable, match="does not answer"):
            await channel.listen()
        assert channel.broken


@pytest.mark.parametrize("tier", ["B", "D"])
async def test_the_loopback_of_the_host_is_refused(tier):
    async with open_local(NETWORKED, tier=tier, allow_unsafe=True) as opened:
        with pytest.raises(
            IsolationError, match=f"tier {tier} with network 'full' has no loopback of its own"
        ):
            await listener(opened)


async def test_a_backend_that_does_not_know_it_is_refused():
    other = SimpleNamespace(record=SimpleNamespace(backend="mine"))
    with pytest.raises(
        IsolationError, match="'mine' cannot listen in its sandboxes; use 'local' or 'docker'"
    ):
        await listener(other)


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_an_engine_elsewhere_is_refused(monkeypatch):
    async with open_sandbox("docker", limits=SMALL, image=TEST_IMAGE) as opened:
        monkeypatch.setattr(container.Engine, "first_process", lambda *_: os.getpid())
        with pytest.raises(IsolationError, match="run as root on the machine of the engine"):
            await listener(opened)


_AS_ANOTHER = """
import asyncio
from tests.tools.sandbox.test_listener import SMALL, called, listener, open_local, shout

async def main():
    async with open_local(SMALL, tier="B") as opened:
        sock = await listener(opened)
        async with await asyncio.start_server(shout, sock=sock):
            print((await called(opened, sock.getsockname()[1])).text())

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all of the above")
def test_an_ordinary_user_has_one_too():
    # Another user may not get to the interpreter of this one.
    paths = (str(Path(__file__).parents[3]), sysconfig.get_path("purelib"))
    ran = subprocess.run(
        ["/usr/bin/python3", "-c", _AS_ANOTHER], user=65534, group=65534, extra_groups=[], cwd="/",
        capture_output=True, text=True, timeout=280, check=False, env={"PYTHONPATH": ":".join(paths)},
    )  # fmt: skip
    if "ImportError" in ran.stderr or "ModuleNotFoundError" in ran.stderr or "user namespaces" in ran.stderr:
        pytest.skip("another user cannot read this project, or make namespaces")
    assert ran.stdout == "HELLO\n\n", ran.stderr
