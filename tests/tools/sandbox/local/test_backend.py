"""From opening to nothing left: refusals, deaths, leftovers, sweeps."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import SMALL
from tools.errors import ConfigError, IsolationError, SandboxCreateError, SandboxUnavailable
from tools.sandbox import SandboxLimits, open_sandbox
from tools.sandbox.base import SandboxFileError
from tools.sandbox.conformance import hosts
from tools.sandbox.host import ownership
from tools.sandbox.host.channel import Channel
from tools.sandbox.inside.messages import Died, Refused, RunInShell, encode
from tools.sandbox.local import cgroup, probe
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.fork_server import _current

_others = set()


@pytest.fixture(autouse=True)
def _processes_of_other_tests():
    """Servers that this worker's tests share live on."""
    _others.clear()
    _others.update(descendants())


def descendants():
    return set(hosts.descendants(os.getpid())) - {each.pid for each in _current.values()} - _others


@pytest.fixture
def no_tier(monkeypatch):
    def refuse(tier, limits):
        raise SandboxCreateError(f"no sandbox of tier {tier}")

    monkeypatch.setattr(probe, "check", refuse)
    probe._best_tier.cache_clear()
    yield
    probe._best_tier.cache_clear()


async def test_opening_chooses_a_tier_that_isolates():
    async with open_sandbox() as sandbox:
        assert sandbox.record.tier == "B"
        assert sandbox.workdir == "/workspace"


async def test_an_unknown_backend_is_named():
    with pytest.raises(ConfigError, match="choose one of"):
        open_sandbox("vm")


async def test_a_workspace_larger_than_the_memory_is_refused():
    with pytest.raises(ConfigError, match="lower disk_mb"):
        async with open_sandbox(limits=SandboxLimits(memory_mb=256, disk_mb=256)):
            pass


@pytest.mark.usefixtures("no_tier")
async def test_a_machine_that_cannot_isolate_is_refused_with_the_fix():
    with pytest.raises(
        IsolationError, match=r"tier B; .*tier C.*user namespaces.*sandbox docker.*--env.allow_unsafe_sandbox"
    ):
        async with open_sandbox():
            pass


@pytest.mark.usefixtures("no_tier")
async def test_without_isolation_it_runs_only_on_request_and_says_so():
    async with open_sandbox(allow_unsafe=True) as sandbox:
        assert sandbox.record.tier == "D"
        assert not {"network", "disk_mb"} & set(sandbox.record.enforced)
        await sandbox.write_file("a", b"1")
        assert (await sandbox.shell("cat a; pwd")).text() == f"1{sandbox.workdir}\n"
        started = "setsid sleep 5001 & sleep 5002"
        assert (await sandbox.exec(started, timeout_s=0.3)).timed_out
        workdir = Path(sandbox.workdir)
    assert not workdir.exists()
    assert subprocess.run(["pgrep", "-f", "sleep 500[12]"], check=False).returncode == 1


@contextmanager
def lowest_free_descriptor(number):
    """Of this process, so that what is opened next has this number."""
    held = [os.open("/dev/null", os.O_RDONLY)]
    while held[-1] < number:
        held.append(os.open("/dev/null", os.O_RDONLY))
    os.close(held.pop())
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)


def highest_descriptor(pid):
    """Nothing of a process that ends meanwhile."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [max(int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir())]
    return []


@pytest.mark.parametrize("number", [100, 101, 102, 103])
async def test_whatever_numbers_a_sandboxs_descriptors_have_its_shell_works(number):
    with lowest_free_descriptor(number):
        async with open_local(SMALL, tier="B") as sandbox:
            assert (await sandbox.shell("echo one")).text() == "one\n"


async def test_a_supervisor_has_low_descriptors_whatever_numbers_they_have_here(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    # A warm process of its own, started with such numbers, too.
    monkeypatch.setattr("tools.sandbox.local.fork_server._current", {})
    before = descendants()
    try:
        with lowest_free_descriptor(5000):
            async with open_local(SMALL, tier="B") as sandbox:
                await sandbox.write_file("a", b"1")
                await sandbox.shell("true")
                pids = descendants() - before
                highest = [number for pid in pids for number in highest_descriptor(pid)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(highest) > 1
    assert max(highest) < 256


async def test_a_new_shell_takes_no_descriptor_from_jobs_in_the_background():
    async with open_local(replace(SMALL, pids=256), tier="B") as sandbox:
        for _ in range(60):
            await sandbox.exec("sleep 1000 &")
        await sandbox.shell("kill -9 $$")
        assert [(await sandbox.shell("echo on")).text() for _ in range(3)] == ["on\n"] * 3


_REQUEST = RunInShell("true", 60, 0)
SUPERVISOR = """
import sys
from types import SimpleNamespace
from tools.sandbox.inside.supervisor import serve
serve(int(sys.argv[1]), SimpleNamespace(settings={}, env={}))
"""


async def test_what_a_supervisor_says_with_an_answer_is_heard():
    ours, theirs = socket.socketpair()
    channel = await Channel.over(ours)
    with theirs:
        asked = asyncio.create_task(channel.request(_REQUEST))
        theirs.setblocking(False)
        await asyncio.get_running_loop().sock_recv(theirs, 100)
        theirs.sendall(encode(Refused(1)) + encode(Died("OSError(9)")))
    assert await asked == Refused(1)
    with pytest.raises(SandboxUnavailable, match=r"^the sandbox died: OSError\(9\)$"):
        await channel.request(_REQUEST)
    channel.close("")


async def test_a_supervisor_that_breaks_says_why():
    ours, theirs = socket.socketpair()
    with theirs:
        argv = [sys.executable, "-c", SUPERVISOR, str(theirs.fileno())]
        broken = await asyncio.create_subprocess_exec(*argv, pass_fds=[theirs.fileno()])
    channel = await Channel.over(ours)
    with pytest.raises(SandboxUnavailable, match=r"^the sandbox died: KeyError\('drop'\)$"):
        await channel.request(_REQUEST)
    channel.close("")
    await broken.wait()


def test_a_sweep_leaves_the_living_and_the_unknown_alone(tmp_path):
    mine = tmp_path / f"turnwise.{ownership.identity(os.getpid())}.0"
    elsewhere = tmp_path / "turnwise.1-1-1.0"
    gone = tmp_path / f"turnwise.{ownership.identity(os.getpid()).rpartition('-')[0]}-1.0"
    for path in (mine, elsewhere, gone):
        path.mkdir()
    cgroup._sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted((mine, elsewhere))


@pytest.mark.parametrize("limit", ["-f 0", "-f 8", "-n 16", "-n 40", "-u 0"])
def test_a_machine_with_small_limits_is_refused_in_one_line_that_names_them(limit):
    code = "import tools.sandbox.local.probe as p; p.choose_tier(p.SandboxLimits())"
    script = f"ulimit {limit}; exec {sys.executable} -B -c '{code}'"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("tools.errors.IsolationError")
    assert f"`ulimit {limit}".rsplit(" ", 1)[0] in last
    assert "raise these limits" in last


def test_a_limit_below_that_of_a_sandbox_holds_in_it():
    code = "import tools.sandbox.local.probe as p; print(p.choose_tier(p.SandboxLimits()))"
    script = f"ulimit -f 4096; exec {sys.executable} -B -c '{code}'"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout in ("B\n", "C\n")


DISTURBING = {
    "signals that kill": "import os\nopen('on', 'w')\nwhile True:\n"
    "    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n"
    "        try: pid in (1, os.getpid()) or os.kill(pid, 9)\n        except OSError: pass",
    "signals that stop": "import os\nopen('on', 'w')\nwhile True:\n"
    "    for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n"
    "        try: pid in (1, os.getpid()) or os.kill(pid, 19)\n        except OSError: pass",
    "no process left": "import os, time\nopen('on', 'w')\nwhile True:\n"
    "    try:\n        if os.fork() == 0: time.sleep(1000)\n    except OSError: pass",
    "no memory left": "import os\nopen('on', 'w')\nfor _ in range(20):\n    if os.fork() == 0:\n"
    "        x = []\n        while True: x.append(bytearray(1 << 20))",
}


@pytest.mark.parametrize("code", DISTURBING.values(), ids=DISTURBING)
async def test_a_file_can_be_read_whatever_the_agents_processes_do(sandbox, code):
    await sandbox.write_file("f", b"there")
    await sandbox.write_file("disturb.py", code.encode())
    await sandbox.exec(
        "(setsid python3 disturb.py >/dev/null 2>&1 &); until test -e on; do :; done", timeout_s=10
    )
    assert [await sandbox.read_file("f") for _ in range(5)] == [b"there"] * 5


async def test_what_cannot_be_read_is_an_error_of_its_builtin_kind_and_one_of_sandboxes(sandbox):
    await sandbox.exec("mkfifo fifo; mkdir folder; touch closed; chmod 0 closed")
    kinds = {
        "gone": FileNotFoundError,
        "folder": IsADirectoryError,
        "closed": PermissionError,
        "fifo": OSError,
    }
    for path, kind in kinds.items():
        with pytest.raises(kind, match=path) as raised:
            await sandbox.read_file(path)
        assert isinstance(raised.value, SandboxFileError)


async def test_a_pause_ends_with_the_last_of_its_blocks_also_by_an_error(sandbox):
    await sandbox.exec(
        "(while :; do echo x >>grows; sleep 0.01; done) >/dev/null 2>&1 & until test -s grows; do :; done"
    )
    inside = asyncio.Event()

    async def broken():
        async with sandbox.paused():
            inside.set()
            raise KeyError

    async with sandbox.paused():
        with pytest.raises(KeyError):
            await broken()
        cancelled = asyncio.create_task(broken())
        cancelled.cancel()
        await asyncio.wait({cancelled})
        size = await sandbox.read_file("grows")
        await sandbox.exec("sleep 0.1")
        assert await sandbox.read_file("grows") == size
    result = await sandbox.exec(f"until test $(wc -c <grows) -gt {len(size)}; do :; done", timeout_s=90)
    assert result.exit_code == 0
