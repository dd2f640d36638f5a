"""Tier C: what holds without namespaces, what is refused, and what is left when anybody dies."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import NETWORKED, SMALL
from tools.errors import IsolationError, SandboxCreateError
from tools.sandbox import list_sandboxes, open_sandbox, reap_sandboxes
from tools.sandbox.conformance import checks
from tools.sandbox.host.ownership import remove_folder
from tools.sandbox.inside.processes import running
from tools.sandbox.local import launch, probe, session
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.session import stop

pytestmark = pytest.mark.usefixtures("tier_c")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the agent a host user of its own")


@pytest.fixture
async def sandbox():
    async with open_local(NETWORKED, tier="C") as opened:
        yield opened


@pytest.fixture
def only_c(monkeypatch):
    """A machine without namespaces."""
    check = probe.check

    def refuse(tier, limits):
        if tier != "C":
            raise SandboxCreateError(f"no sandbox of tier {tier}: unshare: Operation not permitted")
        check(tier, limits)

    monkeypatch.setattr(probe, "check", refuse)
    probe._best_tier.cache_clear()
    yield
    probe._best_tier.cache_clear()


async def test_without_a_network_it_is_refused_with_every_way_out():
    with pytest.raises(
        IsolationError,
        match=r"off the network.*user namespaces.*sandbox docker.*sandbox_network full.*allow_unsafe_sandbox",
    ):
        async with open_local(SMALL, tier="C"):
            pass


@pytest.mark.usefixtures("only_c")
async def test_on_request_it_runs_without_the_network_cut_and_says_so():
    async with open_sandbox(limits=SMALL, allow_unsafe=True) as sandbox:
        assert (sandbox.record.tier, sandbox.record.limits.network) == ("C", "none")
        assert "network" in sandbox.record.lacks
        assert "network" not in sandbox.record.enforced


@as_root
async def test_the_record_names_what_holds_and_what_is_missing(sandbox):
    assert {"disk_mb_watched", "file_mb", "output_mb", "pids"} <= set(sandbox.record.enforced)
    assert not {"disk_mb", "network"} & set(sandbox.record.enforced)
    assert sandbox.record.lacks == ("disk_mb", "hidden_processes", "network", "own_tmp")


async def test_a_file_of_the_host_that_everybody_may_use_is_closed(sandbox, tmp_path):
    tmp_path.chmod(0o777)
    victim = tmp_path / "victim"
    victim.write_text("kept")
    victim.chmod(0o666)
    attacks = (f"cat {victim}", f"echo x >{victim}", f"ln {victim} here", f"mv {victim} here",
               f"rm -f {victim}", f"truncate -s 0 {victim}", f"ln -s /etc {tmp_path}/link")  # fmt: skip
    for attack in attacks:
        result = await sandbox.exec(attack)
        assert (result.exit_code != 0, result.stdout) == (True, b""), attack
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert victim.read_text() == "kept"


async def test_another_sandbox_is_closed(sandbox):
    async with open_local(NETWORKED, tier="C") as other:
        await other.write_file("private", b"secret", mode=0o666)
        mark = checks.marker()
        victim = await checks.sleeper(other, mark)
        result = await sandbox.exec(f"cat {other.workdir}/private; ls {other.workdir}; kill -9 {victim}")
        assert (result.exit_code, result.stdout) == (1, b"")
        assert checks.host_pids(mark) == [victim]


async def test_processes_of_the_host_can_be_seen_but_neither_read_nor_signalled(sandbox):
    host = os.getpid()
    seen = await sandbox.exec(f"cat /proc/{host}/comm")
    assert seen.exit_code == 0
    script = f"""
for f in environ mem maps root/etc/hostname cwd/pyproject.toml fd/0; do cat /proc/{host}/$f && echo open; done
kill -0 {host} && echo signalled
"""
    assert (await sandbox.exec(script)).stdout == b""


async def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox):
    with socket.socket(socket.AF_UNIX) as server:
        name = f"turnwise-landlocked-{os.getpid()}"
        server.bind(f"\0{name}")
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert (await sandbox.exec(["python3", "-c", script])).exit_code == 1


@as_root
@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
async def test_older_versions_of_landlock_close_the_same_files(version, monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "_LANDLOCK_ABI", version)
    (tmp_path / "secret").write_text("secret")
    async with open_local(NETWORKED, tier="C") as sandbox:
        assert (await sandbox.exec(["cat", str(tmp_path / "secret")])).stdout == b""
        assert (await sandbox.exec(f"cat /etc/shadow; ls {tmp_path}; kill -0 {os.getpid()}")).stdout == b""
        await sandbox.write_file("a/b", b"x")
        assert (await sandbox.shell("mv a/b a/c && cat a/c")).stdout == b"x"


async def test_without_landlock_it_does_not_start(monkeypatch):
    monkeypatch.setattr(launch, "_LANDLOCK_ABI", 0)
    with pytest.raises(SandboxCreateError, match=r"Landlock ABI 0.*it needs Landlock"):
        async with open_local(NETWORKED, tier="C"):
            pass
    assert not folders_of(os.getpid())


async def test_its_folder_is_closed_to_others_and_gone_afterwards():
    async with open_local(NETWORKED, tier="C") as sandbox:
        base = Path(sandbox.workdir).parent
        assert [path.stat().st_mode & 0o007 for path in (base, *base.iterdir())] == [0, 0, 0, 0]
        await sandbox.exec("mkdir -p a/b; touch a/b/c; chmod 0 a/b a")
    assert not base.exists()


async def test_a_killed_monitor_takes_everything_along():
    mark = checks.marker()
    async with open_local(NETWORKED, tier="C") as sandbox:
        os.kill(checks.first_process_of(await checks.sleeper(sandbox, mark)), signal.SIGKILL)
        assert await checks.until(lambda: not checks.host_pids(mark), within_s=20)
    assert not folders_of(os.getpid())


HOST = """
import asyncio, sys
from tests.tools.sandbox.conftest import NETWORKED
from tools.sandbox.local.backend import open_local
async def main():
    async with open_local(NETWORKED, tier="C") as sandbox:
        mark = sys.argv[1]
        await sandbox.exec(f"chmod 0 .; trap '' TERM HUP; setsid sleep {mark} & (setsid sleep {mark} &)")
        print("up", flush=True)
        await sandbox.exec("sleep 1000", cwd="/", timeout_s=100)
asyncio.run(main())
"""


@pytest.mark.usefixtures("own_tmp")
async def test_a_killed_host_leaves_a_folder_that_reaping_removes():
    mark = checks.marker()
    host = subprocess.Popen([sys.executable, "-c", HOST, mark], stdout=subprocess.PIPE)  # noqa: ASYNC220  # not waited for
    assert host.stdout.readline() == b"up\n"
    assert await checks.until(lambda: len(checks.host_pids(mark)) == 2, within_s=20)
    (folder,) = folders_of(host.pid)
    host.kill()
    assert host.wait() == -signal.SIGKILL
    host.stdout.close()
    assert await checks.until(lambda: not checks.host_pids(mark), within_s=20)
    assert folder.name in [entry.name for entry in await list_sandboxes("local") if entry.state == "orphan"]
    assert folder.name in [entry.name for entry in await reap_sandboxes("local")]
    assert not folder.exists()


async def test_a_session_that_does_not_end_is_ended(monkeypatch):
    mark = checks.marker()
    session = await asyncio.to_thread(launch.start, "C", NETWORKED)
    monitor = session.process.pid
    for pid in running(monitor):
        os.kill(pid, signal.SIGSTOP)
    os.kill(monitor, signal.SIGSTOP)
    await asyncio.to_thread(stop, session)
    assert not Path(f"/proc/{monitor}").exists()
    assert not checks.host_pids(mark)


def folders_of(pid):
    return list(Path(tempfile.gettempdir()).glob(f"turnwise.*-{pid}-*"))


async def test_a_program_of_ours_is_as_confined_as_the_agents(sandbox):
    result = await sandbox.run_python("open('/etc/turnwise', 'w')")
    assert (result.exit_code, result.stderr[:15]) == (1, b"PermissionError")


async def test_a_folder_that_takes_long_to_remove_keeps_no_rollout_waiting(monkeypatch):
    # A disk may take 30 s for the folders that an agent makes within its limits.
    may_go_on, remove = threading.Event(), remove_folder

    def slowly(folder):
        may_go_on.wait(200)
        remove(folder)

    monkeypatch.setattr(session, "remove_folder", slowly)
    monkeypatch.setattr(session, "_STOP_S", 0.2)
    async with asyncio.timeout(90), open_local(NETWORKED, tier="C") as opened:
        folder = Path(opened.workdir).parent
    assert folder.exists()
    may_go_on.set()
    assert await checks.until(lambda: not folder.exists(), within_s=20)
