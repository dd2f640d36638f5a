"""Containers: hardened, one program as channel, and nothing left of them whatever happens."""

import asyncio
import subprocess
import sys
import time

import pytest

from tests.tools.sandbox.conftest import SMALL, TEST_IMAGE
from tools.errors import ConfigError, IsolationError, SandboxCreateError
from tools.sandbox.docker import backend, container, engine, orphans
from tools.sandbox.docker.backend import open_docker, prepare_image
from tools.sandbox.docker.orphans import entries, reap
from tools.sandbox.host import ownership
from tools.sandbox.host.layout import RESERVED_BYTES
from tools.sandbox.inside.messages import Ready

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]


def opened(limits=SMALL, **settings):
    return open_docker(limits, **{"image": TEST_IMAGE, **settings})


@pytest.fixture
async def sandbox():
    async with opened() as one:
        yield one


async def own():
    """The containers of this process."""
    mine = orphans.labels()["turnwise.run"]
    return engine.connect().containers(f"turnwise.run={mine}")


async def inspected():
    (one,) = await own()
    return engine.connect()._api.inspect_container(one.id)


async def test_the_engine_confirms_every_hardened_setting(sandbox):
    seen = await inspected()
    host = seen["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert [name.removeprefix("CAP_") for name in host["CapAdd"]] == ["KILL"]
    assert not host["Privileged"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["NetworkMode"] == "none"
    assert host["Memory"] == host["MemorySwap"] == (SMALL.memory_mb << 20) + RESERVED_BYTES
    assert host["PidsLimit"] == SMALL.pids + 16
    assert host["ReadonlyRootfs"]
    assert host["Init"]
    assert host["AutoRemove"]
    assert host["LogConfig"]["Type"] == "none"
    assert set(host["Tmpfs"]) == {"/workspace", "/tmp", "/run/turnwise"}
    assert not host["Binds"]
    assert {"run", "host", "boot_id", "pid", "start_time"} <= {
        name.removeprefix("turnwise.") for name in seen["Config"]["Labels"]
    }


async def test_the_agent_has_no_privileges_and_a_user_of_its_own(sandbox):
    look = "id -u; grep -E '^(CapEff|CapPrm|CapAmb|CapInh|NoNewPrivs|Seccomp):' /proc/self/status"
    async with opened() as other:
        seen = [(await one.exec(look)).text().split() for one in (sandbox, other)]
    assert seen[0][0] != seen[1][0]
    assert "0" not in (seen[0][0], seen[1][0])
    status = dict(zip(seen[0][1::2], seen[0][2::2], strict=True))
    assert {int(status.pop(f"Cap{name}:"), 16) for name in ("Eff", "Prm", "Amb", "Inh")} == {0}
    assert status == {"NoNewPrivs:": "1", "Seccomp:": "2"}


async def test_what_the_agent_runs_under_cannot_be_read(sandbox):
    for name in ("environ", "mem", "maps", "fd/3"):
        result = await sandbox.exec(f"cat /proc/$PPID/{name}")
        assert (result.exit_code, result.stdout) == (1, b"")


async def test_killing_everything_later_costs_no_file_operation(sandbox):
    await sandbox.write_file("kept", b"here")
    started = "mkfifo gone; setsid sh -c 'read x <gone; kill -9 -1' >/dev/null 2>&1 & "
    await sandbox.exec(started)
    await sandbox.exec("until [ -p gone ]; do :; done; echo >gone; sleep 1000", timeout_s=5)
    assert await sandbox.read_file("kept") == b"here"


_HOST = (
    "import asyncio, sys\n"
    "from tools.sandbox.docker import orphans\n"
    "from tools.sandbox.docker.backend import open_docker\n"
    "from tools.sandbox.base import SandboxLimits\n"
    "orphans.LABEL = sys.argv[1]\n"
    "async def main():\n"
    f"    async with open_docker(SandboxLimits(), image={TEST_IMAGE!r}) as sandbox:\n"
    "        print((await sandbox.exec('setsid sleep 1000 >/dev/null 2>&1 & echo up')).text(), flush=True)\n"
    "        await asyncio.sleep(1000)\n"
    "asyncio.run(main())\n"
)


@pytest.fixture
async def host(monkeypatch):
    """Another process with a sandbox; only this test looks for what it leaves, and no other one's sweep."""
    label = f"turnwise.sandbox.{time.monotonic_ns()}"
    monkeypatch.setattr(orphans, "LABEL", label)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOST, label, stdout=subprocess.PIPE)
    assert await process.stdout.readline() == b"up\n"
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()
    await reap()


async def test_a_killed_host_leaves_an_orphan_that_the_next_sweep_takes(sandbox, host):
    (alive,) = [one for one in await entries() if one.owner == host.pid]
    assert alive.state == "in use"
    assert alive.name not in {one.name for one in await reap()}
    host.kill()
    await host.wait()
    assert {one.name for one in await entries() if one.state == "orphan"} >= {alive.name}
    assert alive.name in {one.name for one in await reap()}
    assert alive.name not in {one.name for one in await entries()}
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


_FORKING = f"""
import asyncio, os
from tools.sandbox.docker.backend import open_docker
from tools.sandbox.base import SandboxLimits
async def main():
    async with open_docker(SandboxLimits(), image={TEST_IMAGE!r}) as sandbox:
        return (await sandbox.exec("echo on")).exit_code
assert asyncio.run(main()) == 0
pid = os.fork()
if pid == 0:
    os._exit(asyncio.run(main()))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_opens_sandboxes_of_its_own():
    assert subprocess.run([sys.executable, "-c", _FORKING], check=False, timeout=280).returncode == 0


def test_an_owner_is_gone_only_when_that_is_certain():
    mine = orphans.labels()
    assert orphans.state(mine) == "in use"
    assert orphans.state({**mine, "turnwise.start_time": "1"}) == "orphan"
    assert orphans.state({**mine, "turnwise.boot_id": "another"}) == "unknown"
    assert orphans.state({**mine, "turnwise.pid_namespace": "1"}) == "unknown"
    assert orphans.state({}) == "unknown"
    assert not ownership.has_ended("")


async def test_an_image_that_cannot_be_had_is_named():
    with pytest.raises(ConfigError, match="localhost:1/none"):
        await prepare_image("localhost:1/none")


async def test_a_folder_without_a_dockerfile_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Dockerfile"):
        async with opened(image=str(tmp_path)):
            pass


async def test_a_dockerfile_that_the_engine_refuses_is_the_folders_fault(tmp_path):
    (tmp_path / "Dockerfile").write_text("FRUM nowhere\n")
    with pytest.raises(ConfigError, match="unknown instruction"):
        await prepare_image(str(tmp_path))


async def test_an_image_is_built_from_a_folder_and_its_environment_counts(tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nENV FROM_IMAGE=seen\nCMD false\n")
    told = []
    await prepare_image(str(tmp_path), progress=told.append)
    async with opened(image=str(tmp_path)) as sandbox:
        assert (await sandbox.exec("echo $FROM_IMAGE")).stdout == b"seen\n"
    assert told[0].startswith("building")
    assert told[-1].endswith("done")


@pytest.mark.parametrize("missing", ["python3", "bash"])
async def test_what_an_image_lacks_is_told(tmp_path, missing):
    (tmp_path / "Dockerfile").write_text(
        f"FROM {TEST_IMAGE}\nRUN mv /bin/{missing} /bin/{missing}.not && echo {missing}\n"
    )
    with pytest.raises(ConfigError, match="needs python3"):
        async with opened(image=str(tmp_path)):
            pass
    assert await own() == []


@pytest.mark.parametrize("status", [404, 409, 500], ids=str)
async def test_a_container_that_ends_at_once_is_told_in_whatever_state_the_engine_names_it(
    tmp_path, monkeypatch, status
):
    def open_exec(*arguments):
        raise engine.EngineError("Removal In Progress", status)

    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nRUN mv /bin/bash /bin/bash.not && echo bash\n")
    monkeypatch.setattr(engine.Engine, "open_exec", open_exec)
    with pytest.raises(ConfigError, match=r"does not stay up: Removal In Progress; .*needs python3"):
        async with opened(image=str(tmp_path)):
            pass


@pytest.mark.parametrize("call", ["start", "open_exec"])
async def test_a_failure_of_the_engine_is_no_fault_of_the_image(monkeypatch, call):
    def fail(*arguments):
        raise engine.EngineError("no space left on device", 500)

    monkeypatch.setattr(engine.Engine, call, fail)
    with pytest.raises(SandboxCreateError, match="does not start: no space left on device"):
        async with opened(image=TEST_IMAGE):
            pass
    assert await own() == []


async def test_a_container_that_somebody_kills_as_it_starts_is_no_fault_of_the_image(monkeypatch):
    expect, remove = container._expect, engine.Engine.remove

    def killed(connection, kind):
        if kind is Ready:
            (mine,) = engine.connect().containers(f"turnwise.run={orphans.labels()['turnwise.run']}")
            remove(engine.connect(), mine.id)
            raise EOFError
        return expect(connection, kind)

    monkeypatch.setattr(container, "_expect", killed)
    with pytest.raises(SandboxCreateError, match="its supervisor is gone"):
        async with opened(image=TEST_IMAGE):
            pass


def test_no_engine_is_told_with_the_fix(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(IsolationError, match="DOCKER_HOST"):
        engine.connect.__wrapped__()


async def test_a_limit_that_is_not_enforced_is_refused():
    with pytest.raises(IsolationError, match="memory_mb"):
        backend._check_enforced(SMALL, ("pids",))
