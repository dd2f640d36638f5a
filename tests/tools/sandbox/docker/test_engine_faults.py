"""Whose fault it is when the engine fails: nobody's, unless a count shows that the agent made it fail."""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest

from tests.equipment.engine_proxy import (
    container_lost,
    cut,
    cut_head,
    disk_full,
    empty_archive,
    late,
    one_at_a_time,
    parent_pruned,
    proxied,
    refused,
)
from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.errors import AgentCausedError, IsolationError, SandboxError, SandboxUnavailable
from tools.sandbox import open_sandbox
from tools.sandbox.docker import engine
from tools.sandbox.docker.backend import prepare_image
from tools.sandbox.layers import changed_files, changed_paths, changes, take_snapshot

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]

EMPTY = bytes(10240)
READS = {
    "changed_paths": (changed_paths, "/changes"),
    "changed_files": (changed_files, "/changes"),
    "archive": (changed_files, "GET .*/archive"),
    "pause": (changed_files, "/pause"),
    "put_changed": (changes(EMPTY).put_into, "PUT .*/archive"),
    "snapshot": (take_snapshot, "/commit"),
}
STARTS = ("/containers/create", "/start$", "POST .*/containers/.*/exec$", "POST .*/exec/.*/start")
FAULTS = (late, refused, cut, disk_full, container_lost)
QUICK = {("changed_paths", late), ("archive", cut), ("put_changed", disk_full), ("pause", container_lost)}
TABLE = [
    pytest.param(name, fault, marks=[] if (name, fault) in QUICK else pytest.mark.soak)
    for name in READS
    for fault in FAULTS
]


def opened(**options):
    return open_sandbox("docker", image=TEST_IMAGE, whole=True, memory_mb=256, **options)


@pytest.fixture
def proxy(monkeypatch):
    monkeypatch.setattr(engine, "_AGAIN_S", 0.0, raising=False)
    with proxied(monkeypatch) as one:
        yield one


@pytest.mark.parametrize(("operation", "fault"), TABLE)
async def test_no_fault_of_the_engine_while_it_reads_or_writes_is_the_agents(proxy, operation, fault):
    call, pattern = READS[operation]
    async with opened() as sandbox:
        await sandbox.exec("echo mine > /opt/mine")
        proxy.breaks(pattern, fault)
        with pytest.raises(SandboxUnavailable):
            await call(sandbox)
        proxy.mend()


async def test_what_fails_once_is_asked_again(proxy):
    async with opened() as sandbox:
        await sandbox.exec("echo mine > /opt/mine")
        for call, pattern in READS.values():
            proxy.breaks(pattern, cut, times=1)
            assert await call(sandbox) != []


async def test_an_archive_without_what_the_engine_could_not_read_is_not_taken_for_whole(proxy):
    async with opened() as sandbox:
        await sandbox.exec("echo mine > /opt/mine; ln -s /bin/sh /opt/link")
        proxy.breaks("GET .*/archive.*path=%2Fopt", empty_archive)
        with pytest.raises(SandboxUnavailable, match="left out /opt"):
            await changed_files(sandbox)
        proxy.mend()


@pytest.mark.parametrize("pattern", STARTS)
async def test_no_fault_of_the_engine_while_a_container_starts_blames_agent_or_image(proxy, pattern):
    for fault in FAULTS:
        proxy.breaks(pattern, fault)
        with pytest.raises(SandboxError):
            async with opened():
                pass


@pytest.mark.parametrize("fault", [refused, *(pytest.param(each, marks=pytest.mark.soak) for each in FAULTS)])
async def test_a_command_whose_connection_the_engine_loses_has_no_result(proxy, fault):
    async with opened() as sandbox:
        running = asyncio.create_task(sandbox.exec("echo 0 > /opt/reward; sleep 100"))
        await asyncio.wait({running}, timeout=0.5)
        proxy.breaks(".", fault)
        proxy.cut_all()
        with pytest.raises(SandboxUnavailable):
            await running
        proxy.mend()
        with pytest.raises(SandboxUnavailable):
            await sandbox.exec("cat /opt/reward")


async def test_an_engine_that_does_not_say_whether_it_has_an_image_is_no_missing_image(proxy):
    await prepare_image(TEST_IMAGE)
    for fault in (refused, cut, disk_full):
        proxy.breaks("GET .*/images/", fault)
        with pytest.raises(IsolationError, match="gives no answer on 'turnwise-test:latest'"):
            await prepare_image("turnwise-test:latest")


@pytest.mark.parametrize("fault", [refused, cut])
async def test_an_engine_that_is_lost_amid_a_build_or_pull_says_nothing_about_it(proxy, tmp_path, fault):
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\n")
    proxy.breaks("POST .*/(build|images/create)", fault)
    for image in (str(tmp_path), "localhost:1/none"):
        with pytest.raises(IsolationError, match="gives no answer"):
            await prepare_image(image)


async def test_a_build_whose_last_step_was_pruned_is_repeated(proxy, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nENV A=b\n")
    proxy.breaks("POST .*/build", parent_pruned, times=1)
    assert await prepare_image(str(tmp_path))


async def test_a_lost_file_in_a_container_that_is_gone_is_no_odd_name(proxy):
    async with opened() as sandbox:
        await sandbox.exec("touch $(printf '/opt/\\377')")
        assert await changed_files(sandbox)
        proxy.breaks("POST .*/unpause|GET .*/archive", container_lost)
        with pytest.raises(SandboxUnavailable):
            await changed_files(sandbox)
        proxy.mend()


async def test_a_late_list_of_more_files_than_the_limit_allows_is_the_agents_doing(proxy):
    async with opened(disk_mb=1) as sandbox:
        await sandbox.exec("cd /opt; python3 -c 'for i in range(1100): open(str(i), \"w\")'")
        proxy.breaks("/changes", late)
        with pytest.raises(AgentCausedError, match=r"allows: 10\d\d$") as lost:
            await changed_paths(sandbox)
        assert lost.value.cause == "unreadable_files"
        proxy.mend()


async def test_a_path_that_no_engine_can_read_is_the_agents_doing():
    deep = "import os; os.chdir('/opt'); [(os.mkdir('d' * 200), os.chdir('d' * 200)) for _ in range(30)]"
    async with opened() as sandbox:
        await sandbox.exec(["python3", "-c", deep])
        with pytest.raises(AgentCausedError, match=r"a path of \d+ bytes") as lost:
            await changed_paths(sandbox)
        assert lost.value.cause == "unreadable_files"


@pytest.mark.timeout(600)
async def test_sixteen_at_once_come_through_an_engine_that_serves_one_at_a_time(proxy):
    async def one():
        async with opened() as sandbox:
            await sandbox.exec("echo mine > /opt/mine")
            return "/opt/mine" in await changed_paths(sandbox)

    await prepare_image(TEST_IMAGE)
    proxy.breaks(".", one_at_a_time(0.02))
    assert await asyncio.gather(*(one() for _ in range(16))) == [True] * 16


async def test_an_engine_that_is_the_bottleneck_is_named_once(proxy, monkeypatch, caplog):
    async with opened() as sandbox:
        monkeypatch.setattr(engine, "_BOTTLENECK_S", 0.0)
        for _ in range(2):
            await changed_paths(sandbox)
    lines = [each.getMessage() for each in caplog.records if "bottleneck" in each.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("the Docker engine is the bottleneck: ")


@pytest.mark.parametrize("fault", [refused, cut_head])
async def test_closing_many_at_an_engine_that_fails_is_one_line(proxy, caplog, fault):
    async with AsyncExitStack() as several:
        await asyncio.gather(*(several.enter_async_context(opened()) for _ in range(6)))
        caplog.clear()
        proxy.breaks(".", fault)
        proxy.cut_all()
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(lines) <= 1
    assert all("removes no containers" in line for line in lines)
