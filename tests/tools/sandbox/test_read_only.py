"""Folders of the host that are lent to a sandbox: the same path inside, read-only, nothing beside them."""

import os
import shutil
import tempfile
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import NETWORKED, SMALL, TEST_IMAGE
from tools.errors import ConfigError
from tools.sandbox import open_sandbox
from tools.sandbox.local import rootfs
from tools.sandbox.local.backend import open_local


@pytest.fixture
def home():
    """A folder that others cannot get to on this machine."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".turnwise-test-") as made:
        yield Path(made)


@pytest.fixture
def folder(home):
    """A folder to be lent, beside another one."""
    (home / "beside").mkdir()
    (home / "lent").mkdir()
    (home / "lent/file").write_text("here")
    return home / "lent"


@pytest.fixture
def open_folder(folder):
    """The same where others get to it."""
    with tempfile.TemporaryDirectory(dir="/opt" if os.geteuid() == 0 else Path.home()) as made:
        Path(made).chmod(0o755)
        yield Path(shutil.copytree(folder, f"{made}/lent"))


@pytest.fixture
def own(monkeypatch):
    """Make another folder that of this project, which no sandbox may read."""

    def make(path):
        monkeypatch.setattr(rootfs, "_OWN", path.resolve())
        rootfs._find_hidden.cache_clear()
        rootfs.read_rules.cache_clear()

    yield make
    rootfs._find_hidden.cache_clear()
    rootfs.read_rules.cache_clear()


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def lent_to(request):
    options = {}
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
        options = {"image": TEST_IMAGE}

    def opened(*paths):
        limits = replace(SMALL, read_only=tuple(map(str, paths)))
        return open_sandbox(request.param, limits=limits, **options)

    return opened


async def test_programs_of_a_virtual_environment_run_with_its_packages(home, lent_to):
    made = home / "environment"
    venv.EnvBuilder(symlinks=True).create(made)
    for name in ("python", "python3"):
        (made / "bin" / name).unlink(missing_ok=True)
        (made / "bin" / name).symlink_to("/usr/bin/python3")
    (made / "pyvenv.cfg").write_text("home = /usr/bin\n")
    async with lent_to(made) as sandbox:
        asked = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = (await sandbox.exec(["/usr/bin/python3", "-c", asked])).text().strip()
        packages = made / "lib" / f"python{version}" / "site-packages"
        packages.mkdir(parents=True, exist_ok=True)
        (packages / "somepkg.py").write_text("print('imported')")
        result = await sandbox.exec([str(made / "bin/python"), "-c", "import somepkg"])
    assert (result.text(), result.stderr) == ("imported\n", b"")


async def test_nothing_can_be_written_and_nothing_beside_it_is_there(folder, lent_to):
    async with lent_to(folder) as sandbox:
        result = await sandbox.exec(
            f"cat {folder}/file; echo x >{folder}/file; touch {folder}/new; ls {folder}/.."
        )
    assert result.text() == "herelent\n"
    assert [one.name for one in folder.iterdir()] == ["file"]


async def test_a_link_to_a_folder_is_lent_under_its_own_name(folder, lent_to):
    (folder.parent / "link").symlink_to(folder)
    async with lent_to(folder.parent / "link") as sandbox:
        assert (await sandbox.exec(f"cat {folder.parent}/link/file")).text() == "here"


async def test_a_strict_umask_of_this_process_closes_no_folder(folder):
    before = os.umask(0o077)
    try:
        async with open_local(replace(SMALL, read_only=(str(folder),)), tier="B") as sandbox:
            assert (await sandbox.exec(f"cat {folder}/file; ls -d /etc/passwd")).text() == "here/etc/passwd\n"
    finally:
        os.umask(before)


async def test_a_sandbox_that_is_lent_nothing_sees_nothing_of_it(folder, lent_to):
    async with lent_to(folder), lent_to() as other:
        assert (await other.exec(["ls", str(folder)])).exit_code != 0


async def test_landlock_opens_the_folder_alone(open_folder, tier_c):
    beside = open_folder.parent / "beside"
    beside.write_text("closed")
    async with open_local(replace(NETWORKED, read_only=(str(open_folder),)), tier="C") as sandbox:
        result = await sandbox.exec(f"cat {open_folder}/file; echo x >{open_folder}/file; cat {beside}")
    assert result.stdout == b"here"
    assert (open_folder / "file").read_text() == "here"


@pytest.mark.parametrize("tier", ["B", "C"])
async def test_what_is_hidden_stays_so_in_a_lent_folder_unless_it_is_lent_itself(
    tier, open_folder, own, request
):
    if tier == "C":
        request.getfixturevalue("tier_c")
    hidden = open_folder / "own"
    (hidden / "part").mkdir(parents=True)
    for path in (hidden, hidden / "part"):
        (path / "test").write_text(path.name)
    own(hidden)
    link = open_folder.parent / "link"
    link.symlink_to(open_folder)

    async def seen(*paths):
        look = f"cat {paths[0]}/file {paths[0]}/own/test {paths[0]}/own/part/test"
        limits = replace(NETWORKED, read_only=tuple(map(str, paths)))
        async with open_local(limits, tier=tier) as sandbox:
            return (await sandbox.exec(look)).text()

    assert await seen(open_folder) == await seen(link) == "here"
    assert await seen(open_folder, hidden / "part") == "herepart"
    assert await seen(open_folder, hidden) == "hereownpart"


async def test_a_folder_below_tmp_is_lent_with_what_is_hidden_in_it(tmp_path, own, lent_to):
    (tmp_path / "own/part").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "own", tmp_path / "own/part"):
        path.chmod(0o755)
        (path / "name").write_text(path.name)
    own(tmp_path / "own")
    look = f"cat {tmp_path}/own/part/name {tmp_path}/own/name; touch {tmp_path}/new /tmp/new && echo both"
    async with lent_to(tmp_path, tmp_path / "own/part") as sandbox:
        assert (await sandbox.exec(look)).text() == ("part" if sandbox.record.tier == "B" else "partown")


@pytest.mark.parametrize(
    "path",
    ["/", "/proc", "/proc/self", "/tmp", "/var/tmp", "/var", "/workspace/a", "/run", "/etc", "/dev/shm"],
)
async def test_what_a_sandbox_has_of_its_own_is_refused(path, lent_to):
    with pytest.raises(ConfigError, match="cannot show read_only="):
        async with lent_to(path):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="an agent of the same user gets everywhere")
async def test_what_is_closed_to_the_agents_user_is_refused(folder, lent_to):
    folder.chmod(0o700)
    with pytest.raises(ConfigError, match=r"chmod o\+rx .*lent"):
        async with lent_to(folder):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="an agent of the same user gets everywhere")
async def test_without_mounts_a_closed_folder_above_is_refused(folder, tier_c):
    with pytest.raises(ConfigError, match=rf"chmod o\+rx {folder.parent}$"):
        async with open_local(replace(NETWORKED, read_only=(str(folder),)), tier="C"):
            pass
