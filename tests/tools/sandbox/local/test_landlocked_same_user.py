"""Tier C where the agent has the user of its host, as for everybody who is not root."""

import os
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import NETWORKED
from tools.errors import SandboxUnavailable
from tools.sandbox.conformance import checks
from tools.sandbox.inside import kernel
from tools.sandbox.local import tiers
from tools.sandbox.local.backend import open_local
from tools.sandbox.local.tiers import Agent

pytestmark = pytest.mark.skipif(
    kernel.abi() < kernel.SIGNAL_SCOPE_ABI, reason="this kernel's Landlock does not keep signals inside"
)


@pytest.fixture
def _same_user(monkeypatch):
    monkeypatch.setattr(tiers, "agent", lambda: Agent(root=False, uid=os.getuid(), gid=os.getgid()))


@pytest.fixture
async def sandbox(_same_user):
    # Without a control group nobody can bound its processes.
    async with open_local(NETWORKED, tier="C", allow_unsafe=True) as opened:
        yield opened


async def test_the_record_says_what_that_costs(sandbox):
    assert {"file_modes", "unix_sockets"} <= set(sandbox.record.lacks)


@pytest.mark.parametrize(
    "attack",
    [
        "kill -9 $PPID",
        "kill -9 -1",
        "while :; do kill -STOP $PPID; done",
    ],
)
async def test_killing_the_supervisor_is_a_result_and_no_lost_rollout(sandbox, attack):
    await sandbox.write_file("kept", b"1")
    result = await sandbox.exec(attack, timeout_s=30)
    assert (result.exit_code, result.shell_restarted) == (137, True)
    assert (await sandbox.shell("cat kept; echo on")).stdout == b"1on\n"


async def test_a_supervisor_that_is_stopped_once_goes_on_as_if_nothing_had_been(sandbox):
    # Nobody can tell whether the agent or somebody outside stopped it.
    result = await sandbox.exec("kill -STOP $PPID; echo on", timeout_s=30)
    assert (result.exit_code, result.stdout, result.shell_restarted) == (0, b"on\n", False)


async def test_no_killed_supervisor_leaves_a_process(sandbox):
    mark = checks.marker()
    await sandbox.exec(f"setsid sleep {mark} & (setsid sleep {mark} &) ; sleep 0.1; kill -9 $PPID")
    assert not checks.host_pids(mark)


async def test_without_its_monitor_it_is_lost(sandbox):
    monitor = checks.first_process_of(await checks.sleeper(sandbox, checks.marker()))
    os.kill(monitor, 9)
    assert await checks.until(lambda: not Path(f"/proc/{monitor}").exists(), within_s=20)
    with pytest.raises(SandboxUnavailable):
        await sandbox.exec("true")


async def test_the_death_of_a_supervisor_cannot_be_forged(sandbox):
    for attack in ("mkdir ../lost", "touch ../lost", "ln -s / ../lost", "mv ../work ../other"):
        assert (await sandbox.exec(attack)).exit_code != 0


async def test_neither_host_nor_monitor_can_be_signalled(sandbox):
    monitor = checks.first_process_of(await checks.sleeper(sandbox, checks.marker()))
    result = await sandbox.exec(f"for p in {os.getpid()} {monitor} 1; do kill -0 $p && echo $p; done")
    assert result.stdout == b""


async def test_secrets_of_the_host_stay_its_own(sandbox, tmp_path):
    (tmp_path / "key").write_text("secret")
    script = f"""
cat {tmp_path}/key ~root/.bashrc /etc/shadow
for p in {os.getpid()} $PPID; do cat /proc/$p/environ /proc/$p/maps /proc/$p/root/etc/hostname; done
"""
    assert (await sandbox.exec(script)).stdout == b""


async def test_files_of_the_host_are_not_changed_but_for_their_mode_and_times(sandbox, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    attacks = (f"echo x >{victim}", f"truncate -s 0 {victim}", f"rm -f {victim}", f"mv {victim} here",
               f"ln {victim} here")  # fmt: skip
    for attack in attacks:
        assert (await sandbox.exec(attack)).exit_code != 0
    assert victim.read_text() == "kept"
    assert (await sandbox.exec(f"chmod 640 {victim}")).exit_code == 0


async def test_services_of_the_user_cannot_be_talked_to(sandbox):
    script = "import socket; socket.socket(socket.AF_UNIX)"
    assert b"not supported" in (await sandbox.exec(["python3", "-c", script])).stderr
    assert (await sandbox.exec(["python3", "-c", "import socket; socket.socketpair()"])).exit_code == 0


async def test_limits_and_priorities_of_the_host_stay_its_own(sandbox):
    script = f"""
import os, resource
host = {os.getpid()}
calls = [lambda: resource.prlimit(host, resource.RLIMIT_NOFILE, (99, 99)),
         lambda: os.sched_setaffinity(host, {{0}}), lambda: os.setpriority(os.PRIO_PROCESS, host, 5),
         lambda: os.setpriority(os.PRIO_USER, 0, 5)]
for call in calls:
    try:
        call()
        print("done")
    except PermissionError:
        print("refused")
resource.prlimit(0, resource.RLIMIT_NOFILE, (99, 99))
os.setpriority(os.PRIO_PROCESS, 0, 19)
"""
    result = await sandbox.exec(["python3", "-c", script])
    assert (result.text().split(), result.exit_code) == (["refused"] * 4, 0)


async def test_terminals_of_the_user_are_closed(sandbox):
    opened = "for t in /dev/ptmx /dev/pts/* /dev/tty /dev/console; do : <$t && echo $t; done"
    assert (await sandbox.exec(opened)).stdout == b""


async def test_folders_cannot_be_watched(sandbox, tmp_path):
    script = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.inotify_add_watch(libc.inotify_init(), b"{tmp_path}", 0xfff), ctypes.get_errno())
"""
    assert (await sandbox.exec(["python3", "-c", script])).stdout == b"-1 1\n"
