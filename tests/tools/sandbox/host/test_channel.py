"""A supervisor that lives and does not answer: bounded time, the right one to blame, and nothing left."""

import asyncio
import os
import signal
import time
from types import SimpleNamespace

import pytest

from tests.tools.sandbox.conftest import SMALL, TEST_IMAGE
from tests.tools.sandbox.leftovers import leftovers, settled
from tools.errors import SandboxUnavailable
from tools.sandbox.base import SandboxFileError
from tools.sandbox.check import Target
from tools.sandbox.conformance.checks import first_process_of, host_pids, marker, sleeper, until
from tools.sandbox.docker import container, orphans
from tools.sandbox.docker.container import Spec
from tools.sandbox.docker.engine import connect
from tools.sandbox.docker.manager import manager
from tools.sandbox.host import channel, silence
from tools.sandbox.host.supervised import SupervisedSandbox
from tools.sandbox.inside import messages

DOCKER = Target(backend="docker", options={"image": TEST_IMAGE}, limits=SMALL)
_WITHIN_S = 90


@pytest.fixture
def target():
    return Target(options={"tier": "B"}, limits=SMALL)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(channel, "_GRACE_S", 0.5)
    monkeypatch.setattr(container, "_ANSWER_S", 0.5)


async def running(sandbox, timeout_s):
    """A command that has started, and the process id of it."""
    mark = marker()
    command = asyncio.create_task(sandbox.exec(["sleep", mark], timeout_s=timeout_s))
    return command, (await until(lambda: host_pids(mark), within_s=20))[0]


async def stop(pid):
    """Stop the supervisor above a process of its sandbox."""
    os.kill(first_process_of(pid), signal.SIGSTOP)


def docker_supervisor():
    api = connect()._api
    (program,) = api.inspect_container(docker_container_id())["ExecIDs"]
    return api.exec_inspect(program)["Pid"]


def docker_container_id():
    mine = orphans.labels()["turnwise.run"]
    (one,) = (one for one in connect().containers(orphans.LABEL) if one.labels["turnwise.run"] == mine)
    return one.id


async def test_a_stopped_supervisor_is_an_infrastructure_error(target):
    async with target.open():
        pass
    before = await leftovers(target)
    async with target.open() as sandbox, asyncio.timeout(_WITHIN_S):
        await stop(await sleeper(sandbox, marker()))
        with pytest.raises(SandboxUnavailable, match="does not answer"):
            await sandbox.exec("true", timeout_s=0.1)
        for call in (sandbox.exec("true"), sandbox.shell("true"), sandbox.read_file("a")):
            with pytest.raises(SandboxUnavailable, match="does not answer"):
                await call
    assert await settled(target, before) == before


async def test_a_cancelled_command_of_a_stopped_supervisor_ends(target):
    async with target.open():
        pass
    before = await leftovers(target)
    async with target.open() as sandbox, asyncio.timeout(_WITHIN_S):
        command, pid = await running(sandbox, timeout_s=600)
        await stop(pid)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        with pytest.raises(SandboxUnavailable, match="does not answer"):
            await sandbox.exec("true")
    assert await settled(target, before) == before


AT_A_LIMIT = {
    "processes": "import os\nwhile True:\n    try:\n        if not os.fork(): import time; time.sleep(1000)\n"
    "    except OSError: pass",
    "memory": "import os\nheld = bytearray(140 << 20)\nwhile True:\n"
    "    if not os.fork(): more = bytearray(10**9)\n    os.wait()",
    "processors": "import os\nfor _ in range(8): os.fork()\nwhile True: pass",
}


async def at_a_limit(sandbox, kind):
    """Leave a program running that is at a limit of its sandbox all the time."""
    await sandbox.write_file("program.py", AT_A_LIMIT[kind].encode())
    await sandbox.exec("setsid python3 program.py >/dev/null 2>&1 &")
    names = {"processes": "pids_full", "memory": "memory", "processors": "cpu_s"}
    counters = getattr(sandbox._channel, "_channel", sandbox._channel)._counters
    assert await until(lambda: counters()[names[kind]] > 0, within_s=40)


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_an_agent_that_stops_its_supervisor_again_and_again_gets_a_result_and_goes_on(monkeypatch):
    # Were it an error, an agent could take its bad rollouts out of their group.
    monkeypatch.setattr(container, "_ANSWER_S", 20.0)
    monkeypatch.setattr(silence, "_BUSY_SHARE", 100.0)
    async with DOCKER.open() as sandbox, asyncio.timeout(100):
        stops = "while :; do kill -STOP $0; done"
        stopping = f"setsid sh -c '{stops}' $PPID >/dev/null 2>&1 &"
        # It may be stopped before it answers this. To be stopped ends what stops it, and then it goes on.
        codes = [(await sandbox.exec(stopping, timeout_s=1)).exit_code]
        while 137 not in codes or codes[-1] != 0:
            codes.append((await sandbox.exec("sleep 0.2; echo on", timeout_s=1)).exit_code)


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_a_frozen_container_is_an_infrastructure_error():
    async with DOCKER.open():
        pass
    before = await leftovers(DOCKER)
    async with DOCKER.open() as sandbox, asyncio.timeout(_WITHIN_S):
        connect()._api.pause(docker_container_id())
        for _ in range(2):
            with pytest.raises(SandboxUnavailable, match="does not answer"):
                await sandbox.exec("true", timeout_s=0.1)
    assert await settled(DOCKER, before) == before


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
async def test_a_file_operation_that_ends_every_supervisor_is_an_error_of_files(monkeypatch):
    # Were it one of infrastructure, an agent could take its bad rollouts out of their group.
    ask = channel.Channel.request

    async def ends_its_supervisor(self, request):
        if not isinstance(request, messages.ReadFile):
            return await ask(self, request)
        os.kill(docker_supervisor(), signal.SIGKILL)
        return await ask(self, request)

    async with DOCKER.open() as sandbox, asyncio.timeout(60):
        await sandbox.write_file("kept", b"here")
        with monkeypatch.context() as patch:
            patch.setattr(channel.Channel, "request", ends_its_supervisor)
            with pytest.raises(SandboxFileError):
                await sandbox.read_file("kept")
        assert await sandbox.read_file("kept") == b"here"


@pytest.mark.docker
async def test_a_container_that_waited_and_does_not_answer_is_not_handed_out(docker_engine):
    managed = manager()
    waiting = await asyncio.to_thread(managed.make, Spec(image=docker_engine.image(TEST_IMAGE), limits=SMALL))
    try:
        assert await asyncio.to_thread(container.answers, waiting)
        os.kill(docker_supervisor(), signal.SIGSTOP)
        async with asyncio.timeout(_WITHIN_S):
            assert not await asyncio.to_thread(container.answers, waiting)
    finally:
        await asyncio.to_thread(managed.drop, waiting)


async def test_an_answer_in_the_moment_of_a_cancellation_is_not_waited_for_once_more():
    one = channel.Channel()
    one.connection_made(SimpleNamespace(write=lambda data: None, abort=lambda: None))
    asking = asyncio.create_task(one.request(messages.ReadFile("a", 1, 1.0, 1)))
    await asyncio.sleep(0)
    asking.cancel()
    one.data_received(messages.encode(messages.Refused(2)))
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert not one.broken


ANSWER = messages.encode(messages.Refused(2))


class Clock:
    """The event loop, but for its time, which stands still unless a test moves it."""

    def __init__(self):
        self.now, self._loop = 0.0, asyncio.get_running_loop()

    def time(self):
        return self.now

    def __getattr__(self, name):
        return getattr(self._loop, name)


async def asked(clock=None, **options):
    """A channel and its request, whose time is over."""
    one = channel.Channel(**options)
    one._loop = clock or one._loop
    one.connection_made(SimpleNamespace(write=lambda data: None, abort=lambda: None))
    asking = asyncio.create_task(one.request(messages.ReadFile("a", 1, 0.0, 1)))
    await asyncio.sleep(0)
    return one, asking


async def test_a_supervisor_whose_answer_still_comes_is_not_silent(monkeypatch):
    monkeypatch.setattr(channel, "_GRACE_S", 0.02)
    one, asking = await asked(clock := Clock())
    for each in ANSWER:
        clock.now += 0.009  # less than half of the grace; all of it takes many
        one.data_received(bytes([each]))
        await asyncio.wait({asking}, timeout=0.02)
    assert await asking == messages.Refused(2)


async def test_an_answer_that_trickles_on_is_none(monkeypatch):
    monkeypatch.setattr(channel, "_TRICKLE_S", 0.5)
    one, asking = await asked()
    async with asyncio.timeout(_WITHIN_S):
        while not asking.done():
            one.data_received(b"")
            await asyncio.wait({asking}, timeout=0.1)
    with pytest.raises(SandboxUnavailable, match="does not answer"):
        await asking


async def test_what_an_agent_used_is_compared_with_how_long_the_silence_was():
    used = iter([0.0, 0.1])

    def counters():  # on a machine that is as busy as that
        time.sleep(1.0)
        return {"cpu_s": next(used)}

    _, asking = await asked(counters=counters)
    with pytest.raises(SandboxUnavailable):
        await asking


async def test_a_file_operation_that_comes_to_no_end_while_nothing_else_runs_is_not_the_agents():
    late = messages.Done(137, b"", b"", 0, 0, True, False, False, 1.0)

    async def answer(request):
        return late if isinstance(request, messages.ReadFile) else late._replace(exit_code=0)

    asked = SimpleNamespace(request=answer)
    with pytest.raises(SandboxUnavailable, match="'a' took too long"):
        await SupervisedSandbox(asked, "/", None).read_file("a")
