"""Patches between trees of files, made and applied by the installed git outside of any repository."""

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from tools.errors import ConfigError, DatasetError
from tools.sandbox.archive import ArchivedFile
from tools.sandbox.inside.tar import MAX_MEMBERS

Tree = Mapping[str, ArchivedFile]
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_DIR": os.devnull, "LC_ALL": "C",
}  # fmt: skip
"""Without this `GIT_DIR`, git would read the settings of a repository in or around its working directory."""
_GIT_S = 120.0
_NOT_FOUND, _MOST_WORDS = 127, 4096
MAX_TREE_BYTES = 128 << 20
_SETTINGS = (
    "-c", f"core.attributesFile={os.devnull}", "-c", "core.packedGitLimit=256m",
    "-c", "core.packedGitWindowSize=32m",
)  # fmt: skip


def read_folder(folder: Path) -> dict[str, ArchivedFile]:
    files: dict[str, ArchivedFile] = {}
    size = 0
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        for path in (Path(above, name) for name in names):
            if path.is_file() and not path.is_symlink():
                size += path.stat().st_size
                check_size(len(files) + 1, size, str(folder))
                files[str(path.relative_to(folder))] = file_of(path.read_bytes(), path.stat().st_mode)
    return files


def check_size(count: int, size: int, name: str) -> None:
    if count > MAX_MEMBERS or size > MAX_TREE_BYTES:
        raise DatasetError(
            f"{name} has more than {MAX_MEMBERS} files or {MAX_TREE_BYTES >> 20} MB; leave out what the "
            f"task does not need"
        )


def file_of(data: bytes, mode: int) -> ArchivedFile:
    return ArchivedFile(data=data, mode=0o755 if mode & 0o100 else 0o644)


def patch_between(before: Tree, after: Tree) -> bytes:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for side, files, others in (("a", before, after), ("b", after, before)):
            write_files(
                folder / side, {path: file for path, file in files.items() if others.get(path) != file}
            )
        words = ("diff", "--no-index", "--no-prefix", "--no-renames", "--no-ext-diff", "--binary", "a", "b")
        return git(*words, cwd=folder, codes=(0, 1))


def apply_patch(tree: Tree, patch: bytes) -> dict[str, ArchivedFile | None]:
    """Return the files that a patch touches, after it; `None` for deleted ones.

    Raises:
        DatasetError: if the patch does not apply.
    """
    if not patch.strip():
        return {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "patch").write_bytes(patch)
        rows = git("apply", "--numstat", "-z", "patch", cwd=folder).split(b"\0")
        touched = {os.fsdecode(row.split(b"\t", 2)[2]) for row in rows if row}
        touched |= {os.fsdecode(path) for path in re.findall(rb"^rename from (.+)$", patch, re.MULTILINE)}
        write_files(folder / "tree", {path: tree[path] for path in touched & tree.keys()})
        git("apply", "--whitespace=nowarn", "../patch", cwd=folder / "tree")
        left = read_folder(folder / "tree")
    return {path: left.get(path) for path in sorted(touched | left.keys())}


def git(
    *words: str,
    cwd: Path,
    codes: tuple[int, ...] = (0,),
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    max_bytes: int = 2 * MAX_TREE_BYTES,
) -> bytes:
    """Run a git command that reads no settings of this machine, and return its output.

    A small patch or tree may unpack to any size, so output, files, memory and time have limits.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own = {**others, **_ENVIRONMENT, **(env or {})}
    limited = f'ulimit -f {max_bytes >> 9}; ulimit -v {1 << 20}; exec git "$@"'
    argv = ["sh", "-c", limited, "git", *_SETTINGS, *words]
    with TemporaryFile() as given, TemporaryFile() as printed, TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        with suppress(subprocess.TimeoutExpired):
            ran = subprocess.run(
                argv, cwd=cwd, env=own, stdin=given, stdout=printed, stderr=errors, timeout=_GIT_S
            )
            if ran.returncode == _NOT_FOUND:
                raise ConfigError("swe_tasks needs git on this machine, and there is none; install it")
            if ran.returncode in codes:
                printed.seek(0)
                return printed.read()
        errors.seek(0)
        why = errors.read(_MOST_WORDS).decode("utf-8", "replace").strip().partition("\n")[0]
        limits = f"it wants more than {_GIT_S:g} s, {max_bytes >> 20} MB of output or 1 GB of memory"
        raise DatasetError(f"git: {why or limits}")


def write_files(folder: Path, files: Tree) -> None:
    folder.mkdir(exist_ok=True)
    for path, file in files.items():
        at = folder / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(file.data)
        at.chmod(file.mode)
