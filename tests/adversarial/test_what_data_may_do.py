"""Rows, tasks, lock files and traces that want more than to be read: see "What data may do"."""

import base64
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tracemalloc
import zipfile
import zlib
from contextlib import suppress

import pytest

from environments.record.sessions.logged_session import Scale, SessionError
from environments.record.sessions.verifiers_trace import read_traces
from environments.rewards.verdict.prepared_test import prepare_test
from environments.shipped.harbor_tasks.task_folder import base_images, find_tasks
from environments.shipped.harbor_tasks.task_toml import read_table
from environments.shipped.swe_tasks import SweTasksEnv
from environments.shipped.swe_tasks.env import SweTasksConfig
from environments.shipped.swe_tasks.patches import apply_patch
from environments.shipped.swe_tasks.repositories import read_tree
from tests.environments.shipped.harbor_tasks.task_folders import write_task
from tests.environments.shipped.swe_tasks.small_repository import dataset, patch_of_tests, row, write
from tests.tables import cases
from tools.errors import ConfigError, DatasetError
from tools.sandbox.archive import ArchivedFile
from tools.sandbox.local import packages

SECRET = "of the host"
_MOST_PEAK = 64 << 20
"""Bytes that a refusal may take: far below what the data would unpack to."""


def git(folder, *words):
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    ran = subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def commit(folder):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all")
    return git(folder, "rev-parse", "HEAD")


def marker(folder):
    """A command that would show that something ran, and the file that it makes."""
    return f"touch {folder}/ran", folder / "ran"


async def load(folder, *rows, **settings):
    """What an environment of these rows has, and each repository once."""
    env = SweTasksEnv(SweTasksConfig(dataset_path=str(dataset(folder, *rows)), **settings))
    return [env._tree_and_digests(item)[0] for item in await env.load_items()]


# Repositories of rows: where they are.


def as_link(data, outside):
    (data / "link").symlink_to(outside)
    return "link"


def as_link_within(data, outside):
    (data / "folder").mkdir()
    (data / "folder" / "link").symlink_to(outside)
    return "folder/link"


PLACES = {
    "a release": lambda data, outside: "iniconfig==2.1.0",
    "absolute": lambda data, outside: str(outside),
    "above": lambda data, outside: "../outside",
    "a link": as_link,
    "a link within": as_link_within,
}


@cases("place", PLACES)
async def test_a_row_names_nothing_outside_of_its_datasets_folder(place, tmp_path):
    outside = write(tmp_path / "outside", {"secret.py": SECRET})
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(DatasetError, match=r"calc-1: no repository at .* --env\.repositories PATH"):
        await load(data, row(PLACES[place](data, outside)))


async def test_an_archive_that_is_not_the_datasets_own_needs_its_digest(tmp_path):
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "calc.tar", "w") as archive:
        archive.add(write(tmp_path / "calc"), "calc")
    digest = hashlib.sha256((tmp_path / "calc.tar").read_bytes()).hexdigest()
    for given in ({}, {"sha256": "0" * 64}):
        with pytest.raises(DatasetError, match=f"has sha256 {digest}"):
            await load(tmp_path / "data", row("calc.tar", **given), repositories=[tmp_path])
    assert await load(tmp_path / "data", row("calc.tar", sha256=digest), repositories=[tmp_path])


async def test_a_dataset_file_that_is_a_link_opens_no_other_folder(tmp_path):
    write(tmp_path / "outside" / "calc", {"secret.py": SECRET})
    rows = dataset(tmp_path / "outside", row("calc"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").symlink_to(rows)
    with pytest.raises(DatasetError, match="calc-1: no repository at"):
        await SweTasksEnv(SweTasksConfig(dataset_path=str(tmp_path / "data" / "rows.jsonl"))).load_items()


async def test_links_of_a_plain_folder_bring_nothing(tmp_path):
    write(tmp_path / "outside", {"secret.py": SECRET})
    folder = write(tmp_path / "data" / "calc")
    (folder / "file").symlink_to(tmp_path / "outside" / "secret.py")
    (folder / "folder").symlink_to(tmp_path / "outside")
    (tree,) = await load(tmp_path / "data", row("calc"))
    assert sorted(tree) == ["calc.py", "tests/test_calc.py"]


# Git folders of rows: what they bring beside files.


def with_filter(folder, run):
    git(folder, "config", "filter.f.smudge", f"{run}; cat")
    git(folder, "config", "filter.f.process", run)
    (folder / ".git" / "info" / "attributes").write_text("* filter=f diff=f\n")


def with_watcher(folder, run):
    git(folder, "config", "core.fsmonitor", run)
    git(folder, "config", "core.pager", run)
    git(folder, "config", "core.sshCommand", run)


def with_hooks(folder, run):
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        (folder / ".git" / "hooks" / name).write_text(f"#!/bin/sh\n{run}\n")
        (folder / ".git" / "hooks" / name).chmod(0o755)


def with_include(folder, run):
    (folder / "more").write_text(f"[core]\nfsmonitor = {run}\nsshCommand = {run}\n")
    git(folder, "config", "include.path", str(folder / "more"))


def with_promisor(folder, run):
    """A clone that lacks its objects and says whom to ask: a program."""
    git(folder, "config", "core.repositoryFormatVersion", "1")
    git(folder, "config", "extensions.partialClone", "evil")
    git(folder, "config", "remote.evil.promisor", "true")
    git(folder, "config", "remote.evil.url", "evil.example:x")
    git(folder, "config", "core.sshCommand", f"{run};")
    blob = git(folder, "rev-parse", "HEAD:calc.py")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    tree = git(folder, "rev-parse", "HEAD^{tree}")
    (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()


@cases("make", [with_filter, with_watcher, with_hooks, with_include, with_promisor])
async def test_a_git_folder_runs_nothing_on_the_host(make, tmp_path):
    run, ran = marker(tmp_path)
    folder = write(tmp_path / "calc")
    head = commit(folder)
    make(folder, run)
    if make is with_promisor:
        with pytest.raises(DatasetError, match="calc-1: git: "):
            await load(tmp_path, row("calc", head))
    else:
        (tree,) = await load(tmp_path, row("calc", head))
        assert sorted(tree)[:1] == ["calc.py"]
    assert not ran.exists()


def with_alternates(folder, private):
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{private}/.git/objects\n")


def with_linked_objects(folder, private):
    shutil.rmtree(folder / ".git" / "objects")
    (folder / ".git" / "objects").symlink_to(private / ".git" / "objects")


def with_linked_pack(folder, private):
    git(private, "repack", "-adq")
    shutil.rmtree(folder / ".git" / "objects" / "pack")
    (folder / ".git" / "objects" / "pack").symlink_to(private / ".git" / "objects" / "pack")


def with_git_elsewhere(folder, private):
    shutil.rmtree(folder / ".git")
    (folder / ".git").symlink_to(private / ".git")


def with_git_file(folder, private):
    shutil.rmtree(folder / ".git")
    (folder / ".git").write_text(f"gitdir: {private}/.git\n")


@cases("make", [with_alternates, with_linked_objects, with_linked_pack, with_git_elsewhere, with_git_file])
async def test_a_git_folder_brings_no_objects_of_another_one(make, tmp_path):
    private = write(tmp_path / "private", {"secret.py": SECRET})
    head = commit(private)
    folder = write(tmp_path / "data" / "calc")
    commit(folder)
    make(folder, private)
    with pytest.raises(DatasetError, match=r"has parts elsewhere|no git at"):
        await load(tmp_path / "data", row("calc", head))


def without_file(path):
    path.unlink()


def with_fifo(path):
    path.unlink()
    os.mkfifo(path)


@cases("make", [without_file, with_fifo])
async def test_a_git_folder_that_lacks_a_file_of_the_commit_is_refused(make, tmp_path):
    folder = write(tmp_path / "calc")
    head = commit(folder)
    blob = git(folder, "rev-parse", "HEAD:calc.py")
    make(folder / ".git" / "objects" / blob[:2] / blob[2:])
    with pytest.raises(DatasetError, match="give a clone that has them all"):
        await load(tmp_path, row("calc", head))


def test_git_takes_no_settings_from_files_that_a_patch_touches(tmp_path):
    run, ran = marker(tmp_path)
    folder = write(tmp_path / "calc")
    commit(folder)
    with_filter(folder, run)
    git(folder, "config", "filter.f.clean", run)
    files = {path: ArchivedFile(data=(folder / path).read_bytes()) for path in paths_below(folder)}
    modes = "".join(f"diff --git a/{path} b/{path}\nold mode 100644\nnew mode 100755\n" for path in files)
    with suppress(DatasetError):
        apply_patch(files, (patch_of_tests() + modes).encode())
    assert not ran.exists()


def paths_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_git_keeps_in_an_archive_is_no_file_of_a_repository(tmp_path):
    commit(write(tmp_path / "calc"))
    with tarfile.open(tmp_path / "calc.tar", "w") as archive:
        archive.add(tmp_path / "calc", "calc")
    assert sorted(read_tree(tmp_path / "calc.tar", None)) == ["calc.py", "tests/test_calc.py"]


@cases("name", ["--help", "HEAD:calc.py", "../x"])
async def test_a_commit_is_a_name_and_no_option_or_expression(name, tmp_path):
    commit(write(tmp_path / "calc"))
    with pytest.raises(DatasetError, match="base_commit is"):
        await load(tmp_path, row("calc", name))


def raw_tree(folder, entries):
    """A tree object as no git would write it."""
    data = b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)
    words = ["git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"]
    ran = subprocess.run(words, cwd=folder, input=data, check=True, capture_output=True)
    return ran.stdout.decode().strip()


async def test_a_tree_of_trees_that_are_one_and_the_same_is_not_unpacked(tmp_path):
    folder = write(tmp_path / "calc")
    commit(folder)
    oid, kind = git(folder, "rev-parse", "HEAD:calc.py"), b"100644"
    for _ in range(9):
        oid, kind = raw_tree(folder, [(kind, b"%d" % each, oid) for each in range(10)]), b"40000"
    with pytest.raises(DatasetError):
        await load(tmp_path, row("calc", oid))


# Archives and patches of rows: how large they get.


def zeros(name, size):
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def bomb(size=140 << 20):
    return zeros("f", size) + bytes(size)


def huge_header():
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, 1 << 30
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 28)


def sparse():
    member = tarfile.TarInfo("x")
    member.type = tarfile.GNUTYPE_SPARSE
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def many(kind):
    member = tarfile.TarInfo("x")
    member.type, member.linkname = kind, "y"
    parts = []
    for each in range(10_002):
        member.name = f"x{each}"
        parts.append(member.tobuf(tarfile.GNU_FORMAT))
    return b"".join(parts) + bytes(1024)


ARCHIVES = {
    "zeros in gzip": lambda: gzip.compress(bomb(), 1),
    "a huge header": lambda: gzip.compress(huge_header(), 1),
    "a sparse file": sparse,
    "many files": lambda: many(tarfile.REGTYPE),
    "many links": lambda: gzip.compress(many(tarfile.SYMTYPE), 1),
}


@pytest.mark.parametrize("name", ARCHIVES)
async def test_an_archive_is_bounded_before_it_is_unpacked(name, tmp_path):
    (tmp_path / "calc.tar").write_bytes(ARCHIVES[name]())
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="calc-1: "):
            await load(tmp_path, row("calc.tar"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < _MOST_PEAK


async def test_a_folder_of_sparse_files_is_counted_by_their_length(tmp_path):
    with write(tmp_path / "calc").joinpath("big").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DatasetError, match="more than 10000 files or 128 MB"):
        await load(tmp_path, row("calc"))


async def test_links_of_an_archive_are_left_out(tmp_path):
    folder = write(tmp_path / "calc")
    (folder / ("link" * 40)).symlink_to("/etc/" + "passwd" * 30)
    with tarfile.open(tmp_path / "calc.tar.gz", "w:gz") as archive:
        archive.add(folder, "calc-1.0")
    (tree,) = await load(tmp_path, row("calc.tar.gz"))
    assert sorted(tree) == ["calc.py", "tests/test_calc.py"]


def test_a_small_patch_that_unpacks_to_any_size_is_refused():
    data = zlib.compress(bytes(300 << 20), 9)
    lines = [data[at : at + 52] for at in range(0, len(data), 52)]
    text = "".join(
        f"{chr(len(each) + 64 if len(each) < 27 else len(each) + 70)}{_base85(each)}\n" for each in lines
    )
    head = "diff --git a/b b/b\nnew file mode 100644\nindex 0000000..1111111\nGIT binary patch\n"
    patch = f"{head}literal {300 << 20}\n{text}\nliteral 0\nHcmV?d00001\n\n"
    with pytest.raises(DatasetError, match="git: "):
        apply_patch({}, patch.encode())


def _base85(data):
    return base64.b85encode(data, pad=True).decode()


# Lock files, and what packages say of themselves.

BACKEND = """
import pathlib
pathlib.Path({ran!r}).touch()
def prepare_metadata_for_build_wheel(folder, config_settings=None): raise SystemExit("no")
"""


@pytest.fixture
def source(tmp_path):
    """A source that runs code when it is built, its digest, and the file that it makes."""
    ran = tmp_path / "ran"
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'b'\nbackend-path = ['.']\n"
        "[project]\nname = 'evil'\nversion = '1.0'\n",
        "b.py": BACKEND.format(ran=str(ran)),
        "PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
    }
    path = tmp_path / "evil-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(write(tmp_path / "source", files), "evil-1.0")
    return path, f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}", ran


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    packages.folder_of.cache_clear()


LOCKS = [
    "evil @ file://{path} {digest}",
    "--no-binary :all:\n--no-index\n--find-links {folder}\nevil==1.0 {digest}",
    "{path} {digest}",
    "-r /etc/passwd",
    "-c /etc/passwd",
    "--index-url http://127.0.0.1:9/\nevil==1.0 {digest}",
    "evil==1.0 \\\n {digest}\n--no-\\\nbinary=:all:",
    "iniconfig==2.1.0 # a comment \\\n--no-binary=:all:",
    "# coding: utf-7\niniconfig==2.1.0 {digest}+AAo--r +AC8-etc/passwd",
]


def test_a_lock_file_builds_nothing_and_names_no_path(source, tmp_path):
    path, digest, ran = source
    for number, text in enumerate(LOCKS):
        lock = tmp_path / f"{number}.txt"
        lock.write_text(text.format(path=path, digest=digest, folder=tmp_path))
        with pytest.raises(ConfigError, match="has the line"):
            packages.folder_of((str(lock),))
    assert not ran.exists()


def test_a_wheel_that_asks_for_a_source_builds_nothing(source, tmp_path, monkeypatch):
    path, _, ran = source
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as packed:
        info = "good-1.0.dist-info"
        packed.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: good\nVersion: 1.0\nRequires-Dist: evil @ file://{path}\n",
        )
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    (tmp_path / "good-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be installed"):
        packages.folder_of(("good==1.0",))
    assert not ran.exists()


# Folders of tasks.


def task_with(root, part, target):
    task = write_task(root, "t", {"environment/Dockerfile": "FROM x\n"}, test="true")
    if (task / part).is_dir():
        shutil.rmtree(task / part)
    else:
        (task / part).unlink(missing_ok=True)
    (task / part).symlink_to(target)


@cases("part", ["instruction.md", "task.toml", "tests", "environment", "solution", "environment/Dockerfile"])
def test_no_part_of_a_task_is_a_link_out_of_it(part, tmp_path):
    outside = write(tmp_path / "outside", {"file": SECRET, "test.sh": "", "solve.sh": ""})
    target = outside / "file" if "." in part or "/" in part else outside
    task_with(tmp_path / "root", part, target)
    tasks, refused = find_tasks(tmp_path / "root")
    assert (tasks, refused) == ([], {"t": f"{part} is a link out of the task's folder"})


@cases("part", ["instruction.md", "task.toml", "environment/Dockerfile", "environment/data", "tests/data"])
def test_texts_and_folders_of_a_task_are_bounded(part, tmp_path):
    task = write_task(tmp_path, "t", {"environment/Dockerfile": "FROM x\n"}, test="true")
    with (task / part).open("wb") as file:
        file.truncate(1 << 40)
    try:
        tasks, refused = find_tasks(tmp_path)
        refused |= {task.task_id: task.images for task in tasks}
    except DatasetError as error:
        refused = {"t": str(error)}
    assert "not a file of at most" in refused["t"] or "has more than" in refused["t"]


@cases("part", ["tests", "environment", "solution"])
def test_a_task_with_links_in_circles_is_refused_by_its_name(part, tmp_path):
    write_task(tmp_path, "good", {}, test="true")
    folder = write_task(tmp_path, "t", {"environment/x": "", "solution/x": ""}, test="true") / part
    (folder / "loop").symlink_to("loop")
    tasks, refused = find_tasks(tmp_path)
    assert [task.task_id for task in tasks] == ["good"]
    assert "loop" in refused["t"]


def test_a_pattern_of_files_to_ignore_that_takes_hours_to_match_is_refused(tmp_path):
    for part in ("environment", "tests"):
        files = {"environment/Dockerfile": "FROM x", f"{part}/.dockerignore": "*a" * 30 + "*b"}
        write_task(tmp_path, part, files, test="true", toml='[verifier]\nenvironment_mode = "separate"')
    tasks, refused = find_tasks(tmp_path)
    assert not tasks
    assert all("/.dockerignore has a pattern with more than 4 stars" in each for each in refused.values())


@cases("name", ["/", "./image", "~/image"])
def test_a_task_has_no_folder_of_the_host_built_as_its_image(name):
    with pytest.raises(DatasetError, match="docker_image: is not a name of an image"):
        read_table(f"[environment]\ndocker_image = {name!r}\n")


def test_the_name_of_an_image_grows_by_no_argument():
    tracemalloc.start()
    try:
        base_images(f"ARG A={'b' * 100_000}\nFROM {'$A' * 10_000}")
        assert tracemalloc.get_traced_memory()[1] < _MOST_PEAK
    finally:
        tracemalloc.stop()


def test_a_size_that_no_machine_has_is_refused():
    with pytest.raises(DatasetError, match=r"environment\.memory"):
        read_table(f"[environment]\nmemory = '{'9' * 400}G'\n")


@cases("test", ["assert " + "-" * 1_000_000 + "1", "assert 1" + "+1" * 200_000, "assert " + "(" * 1_000_000])
def test_a_test_that_no_parser_takes_is_refused_by_its_task(test):
    with pytest.raises(DatasetError, match="the test is not Python"):
        prepare_test(test, "t")


# Tests and traces.


def test_a_trace_whose_branches_repeat_it_without_end_is_refused():
    said = {"role": "user", "content": "x"}
    chain = [{"message": said, "parent": each - 1 if each else None} for each in range(3000)]
    leaves = [{"message": said, "parent": each} for each in range(3000)]
    trace = {"id": "t", "task": {"data": {}}, "nodes": [*chain, *leaves], "ok": True}
    with pytest.raises(SessionError, match="branches repeat more than"):
        read_traces(trace, Scale())
