"""Whole containers: the agent is root; a verifier's files, the list of changes and the disk are not."""

import io
import os
import subprocess
import tarfile
from functools import partial

import pytest

from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.errors import AgentCausedError, ConfigError, IsolationError
from tools.sandbox import list_sandboxes, open_sandbox
from tools.sandbox.docker import whole
from tools.sandbox.layers import changed_files, changed_paths, changes, take_snapshot

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]

CHANGES = """
set -e
echo tool > /usr/bin/new; chmod 750 /usr/bin/new; chown 1000:33 /usr/bin/new
mkdir -p /srv/deep/er; echo text > /srv/deep/er/file; ln /srv/deep/er/file /srv/deep/hard
ln -s ../opt /srv/link
touch -d 2001-02-03 /srv/deep
rm /etc/issue; rm -rf /etc/apt; mkdir /etc/apt; echo own > /etc/apt/own
mkdir -p /tests; echo forged > /tests/run
"""
LOOK = """
stat -c '%n %a %u:%g %h' /usr/bin/new /srv/deep/hard; readlink /srv/link; cat /srv/deep/er/file; ls /etc/apt
stat -c '%y' /srv/deep | cut -c 1-10; ls /etc/issue 2>/dev/null; ls /tests 2>/dev/null
"""
ATTACK = """
for f in /tests/run own/check $VERIFIER/tests/run $VERIFIER/own/check; do
    echo forged > $f; rm -f $f; mv $f /tmp; umount $f
done
rm -rf /tests $VERIFIER; mv /tests /t; umount /tests; touch /tests/more
mount -o remount,rw /tests; ln -sf /tmp /tests
"""
CONTROL = b"Package: own\nVersion: 1\nArchitecture: all\nMaintainer: me\nDescription: own\n"
LEFT = ["/usr/bin/new 750 1000:33 1", "/srv/deep/hard 644 0:0 2", "../opt", "text", "own", "2001-02-03"]


def opened(**options):
    return open_sandbox("docker", image=TEST_IMAGE, whole=True, memory_mb=256, **options)


async def ran(sandbox, command):
    done = await sandbox.exec(command)
    assert done.exit_code == 0, done
    return done.text().split("\n")[:-1]


async def test_the_agent_is_root_without_a_way_out_on_the_images_own_files():
    async with opened() as sandbox:
        assert await ran(sandbox, "id -u; pwd; echo $HOME") == ["0", "/root", "/root"]
        tried = await sandbox.exec(
            "mount -t tmpfs none /mnt; mknod /x b 1 1; chroot / true; kill -9 1; echo on"
        )
        held = (await sandbox.exec("grep -E 'CapEff|NoNewPrivs' /proc/self/status")).text().split()
        assert [tried.stdout, held] == [b"on\n", ["CapEff:", "00000000000004fb", "NoNewPrivs:", "1"]]
        assert sandbox.record.lacks == ("oom_score", "disk_mb")


async def test_a_package_can_be_installed():
    async with opened() as sandbox:
        await sandbox.write_file("p/DEBIAN/control", CONTROL)
        await ran(
            sandbox, "mkdir p/opt; echo hi > p/opt/own; chown 1000 p/opt/own; dpkg-deb -b p; dpkg -i p.deb"
        )
        assert await ran(sandbox, "cat /opt/own; dpkg -s own | grep -c 'install ok'") == ["hi", "1"]


async def test_many_changes_in_a_folder_are_asked_for_at_once(monkeypatch):
    monkeypatch.setattr(whole, "_MOST_ARCHIVES", 20)
    async with opened() as agent, opened() as fresh:
        await ran(
            agent, "cd /etc; rm issue; echo own > apt/own; for i in $(seq 150); do echo $i > new$i; done"
        )
        archived = await changed_files(agent)
        with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
            assert not {"etc/passwd", "etc/apt/sources.list"}.intersection(archive.getnames())
        await changes(archived).put_into(fresh)
        assert await ran(fresh, "cat /etc/new150 /etc/apt/own; ls /etc/issue; true") == ["150", "own"]


async def test_what_changed_is_the_same_in_a_fresh_one_but_for_what_is_left_out():
    async with opened() as sandbox:
        await ran(sandbox, CHANGES)
        paths = await changed_paths(sandbox)
        archive = await changed_files(sandbox, exclude=["/tests"])
    assert {"/usr/bin/new", "/srv/deep/er/file", "/etc/issue", "/tests/run"} <= set(paths)
    assert not [path for path in paths if path.startswith(("/dev", "/proc", "/sys", "/run/turnwise"))]
    async with opened() as fresh:
        await changes(archive).put_into(fresh)
        assert (await fresh.exec(LOOK)).text().split("\n")[:-1] == LEFT


async def test_what_the_kernel_keeps_of_files_on_disk_is_no_full_memory():
    async with opened() as sandbox:
        await ran(sandbox, "head -c 400000000 /dev/zero > /opt/large; cat /opt/large > /dev/null")
        assert sandbox.engine.counters(sandbox.container.id)["memory_full"] is False


async def test_odd_and_long_names_in_new_folders_come():
    name = f"ä\n{'x' * 150}"
    async with opened() as agent, opened() as fresh:
        await agent.write_file(f"/srv/new/er/{name}", b"here")
        await ran(agent, "cd /srv/new/er; ln ä* hard; ln -s ä* soft")
        await changes(await changed_files(agent)).put_into(fresh)
        assert await ran(fresh, "cd /srv/new; cat er/soft er/hard; stat -c %h er/hard; ls") == [
            "herehere2",
            "er",
        ]


async def test_more_than_the_bound_is_the_agents_doing_with_the_file_as_evidence():
    async with opened() as sandbox:
        await ran(sandbox, "head -c 3000000 /dev/urandom > /opt/large")
        with pytest.raises(AgentCausedError, match="more than 1048576 bytes, with /opt/large of 3000000"):
            await changed_files(sandbox, max_bytes=1 << 20)


async def test_a_link_leads_the_archive_nowhere_else():
    async with opened() as sandbox:
        await ran(sandbox, "ln -s /usr/bin /srv/bin; echo forged > /srv/bin/forged")
        archive = await changed_files(sandbox, exclude=["/usr"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        assert [each.name for each in members if not each.isdir()] == ["srv/bin"]


async def test_roots_programs_cannot_change_a_verifiers_files():
    files = {"/tests/run": b"true", "own/check": b"true"}
    async with opened() as agents:
        await ran(
            agents, "mkdir /tests own; echo forged | tee /tests/run /tests/more own/check; rm -rf /tests/x"
        )
        archive = await changed_files(agents)
    async with opened().for_verifier(files) as fresh:
        await changes(archive).put_into(fresh)
        await fresh.exec(ATTACK)
        seen = await ran(
            fresh, "cat /tests/run own/check $VERIFIER/*/run $VERIFIER/*/check; ls /tests; echo $HOME"
        )
    assert seen == ["truetruetruetruerun", "/root"]


async def test_a_container_that_fills_the_disk_is_ended_as_the_agents_doing(monkeypatch):
    monkeypatch.setattr(whole, "_LOOK_S", 0.05)
    async with opened(disk_mb=20) as sandbox:

        async def fills():
            while True:
                await sandbox.exec("head -c 8000000 /dev/zero >> /opt/$(date +%N)")

        with pytest.raises(AgentCausedError, match="more than disk_mb=20 allows") as lost:
            await fills()
    assert lost.value.cause == "sandbox_lost"


async def test_a_snapshot_is_an_image_of_the_machine_and_goes_with_its_user():
    async def own():
        entries = await list_sandboxes("docker")
        return {entry.name for entry in entries if entry.owner == os.getpid() and "sha256" in entry.name}

    others = await own()  # of commits whose answer an engine lost, in other tests
    async with opened() as sandbox:
        await ran(sandbox, "echo prepared > /opt/prepared")
        snapshot = await take_snapshot(sandbox)
    assert len(await own() - others) == 1
    for _ in range(2):
        async with opened().beginning_with(snapshot) as copy:
            assert await ran(copy, "cat /opt/prepared; pwd; echo changed > /opt/prepared") == [
                "prepared",
                "/root",
            ]
            assert await changed_paths(copy) == ["/opt", "/opt/prepared"]
    await snapshot.discard()
    assert await own() == others


async def test_a_snapshot_outlives_one_that_was_taken_on_top_of_it():
    async with opened() as sandbox:
        first = await take_snapshot(sandbox)
    async with opened().beginning_with(first) as sandbox:
        second = await take_snapshot(sandbox)
    await second.discard()
    async with opened().beginning_with(first) as copy:
        assert await ran(copy, "echo there") == ["there"]
    await first.discard()


@pytest.fixture(scope="module")
def with_volume(docker_engine, tmp_path_factory):
    """Opens whole sandboxes of an image with files in a volume."""
    tmp_path = tmp_path_factory.mktemp("volume")
    name = f"turnwise-volume-{os.getpid()}"
    for each in ("kept", "changed", "removed"):
        (tmp_path / each).write_text(each)
    (tmp_path / "Dockerfile").write_text(
        f"FROM {TEST_IMAGE}\nCOPY kept changed removed /data/\nVOLUME /data\n"
    )
    subprocess.run(["docker", "build", "--quiet", "--tag", name, tmp_path], capture_output=True, check=True)
    yield partial(open_sandbox, "docker", image=name, whole=True, memory_mb=256)
    subprocess.run(["docker", "rmi", "--no-prune", name], capture_output=True, check=True)


async def test_a_snapshot_has_the_files_of_the_images_volumes(with_volume):
    async with with_volume() as sandbox:
        await ran(sandbox, "mkdir /data/deep; echo prepared > /data/deep/file")
        snapshot = await take_snapshot(sandbox)
    async with with_volume().beginning_with(snapshot) as copy:
        assert await ran(copy, "cat /data/deep/file") == ["prepared"]
        assert "/data/deep/file" in await changed_paths(copy)
    await snapshot.discard()


async def test_only_what_the_agent_changed_in_a_volume_is_a_change(with_volume):
    async with with_volume() as sandbox:
        await ran(sandbox, "cd /data; echo new > new; echo more >> changed; rm removed")
        changed = [path for path in await changed_paths(sandbox) if path.startswith("/data/")]
        assert changed == ["/data/changed", "/data/new", "/data/removed"]
        archive = await changed_files(sandbox, max_bytes=1 << 20)
    async with with_volume().beginning_with(changes(archive)) as fresh:
        assert await ran(fresh, "cd /data; ls; cat changed") == ["changed", "kept", "new", "changedmore"]


async def test_a_sandbox_that_is_not_whole_knows_nothing_of_changes():
    async with open_sandbox("docker", image=TEST_IMAGE) as sandbox:
        with pytest.raises(IsolationError, match=r"give SandboxSpec\(whole=True\)"):
            await changed_files(sandbox)


def test_a_backend_without_machines_refuses_a_whole_one():
    with pytest.raises(ConfigError, match="no whole machines; choose docker"):
        open_sandbox("local", whole=True)
