"""Patches between trees of files: made and applied by a git of this machine, outside of any repository."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.errors import ConfigError, DatasetError
from tools.sandbox.archive import ArchivedFile

Tree = Mapping[str, ArchivedFile]
"""Plain files, by their paths below the repository."""
_OURS = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C",
}  # fmt: skip
_GIT_S = 120.0


def tree_in(folder: Path) -> dict[str, ArchivedFile]:
    """The plain files below a folder; links and what git keeps are left out."""
    files: dict[str, ArchivedFile] = {}
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        for path in (Path(above, name) for name in names):
            if path.is_file() and not path.is_symlink():
                files[str(path.relative_to(folder))] = file_of(path.read_bytes(), path.stat().st_mode)
    return files


def file_of(data: bytes, mode: int) -> ArchivedFile:
    """A file with one of the two modes that a patch knows."""
    return ArchivedFile(data=data, mode=0o755 if mode & 0o100 else 0o644)


def patch_between(before: Tree, after: Tree) -> bytes:
    """What turns one tree into the other, in git's format."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for side, files, others in (("a", before, after), ("b", after, before)):
            _write(folder / side, {path: file for path, file in files.items() if others.get(path) != file})
        words = ("diff", "--no-index", "--no-prefix", "--no-renames", "--no-ext-diff", "--binary", "a", "b")
        return git(*words, cwd=folder, codes=(0, 1))


def patched_files(tree: Tree, patch: bytes) -> dict[str, ArchivedFile | None]:
    """The files that a patch touches, as it leaves them; `None`: gone.

    Raises:
        DatasetError: it does not apply.
    """
    if not patch.strip():
        return {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "patch").write_bytes(patch)
        rows = git("apply", "--numstat", "-z", "patch", cwd=folder).split(b"\0")
        touched = {os.fsdecode(row.split(b"\t", 2)[2]) for row in rows if row}
        touched |= {os.fsdecode(path) for path in re.findall(rb"^rename from (.+)$", patch, re.MULTILINE)}
        _write(folder / "tree", {path: tree[path] for path in touched & tree.keys()})
        git("apply", "--whitespace=nowarn", "../patch", cwd=folder / "tree")
        left = tree_in(folder / "tree")
    return {path: left.get(path) for path in sorted(touched | left.keys())}


def git(*words: str, cwd: Path, codes: tuple[int, ...] = (0,), env: Mapping[str, str] | None = None) -> bytes:
    """What a git command prints; it reads no settings of this machine.

    Raises:
        ConfigError: there is no git.
        DatasetError: it ended with another code, or takes too long.
    """
    # A repository around the folder would bring its settings, too.
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own = {**others, **_OURS, "GIT_CEILING_DIRECTORIES": str(cwd.parent), **(env or {})}
    argv = ["git", "-c", f"core.attributesFile={os.devnull}", *words]
    try:
        ran = subprocess.run(argv, cwd=cwd, env=own, capture_output=True, timeout=_GIT_S)
    except FileNotFoundError:
        raise ConfigError("swe_tasks needs git on this machine, and there is none; install it") from None
    except subprocess.TimeoutExpired:
        raise DatasetError(f"git took longer than {_GIT_S:g} s") from None
    if ran.returncode not in codes:
        why = ran.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise DatasetError(f"git: {why}")
    return ran.stdout


def _write(folder: Path, files: Tree) -> None:
    folder.mkdir()
    for path, file in files.items():
        at = folder / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(file.data)
        at.chmod(file.mode)
