"""Files of a row's repository, which is a folder, a git folder or a tar archive. None of its programs runs.

The settings of a repository may name programs, so git reads its objects from a new git folder without them.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from environments.shipped.swe_tasks.patches import (
    Tree,
    check_size,
    file_of,
    git,
    read_folder,
    write_files,
)
from tools.errors import DatasetError
from tools.sandbox.archive import ArchivedFile, clean_path
from tools.sandbox.inside import tar

_COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_REVISION = re.compile(r"\w[\w./+-]*")
_BLOB = re.compile(rb"(?P<mode>100\d{3}) blob (?P<name>\w+) +(?P<size>\w+)\t(?P<path>.+)", re.DOTALL)
"""A plain file in `git ls-tree -l`; git prints BAD as the size of a missing one."""
_LONG_HASH, _MOST_LISTED = 64, 8 << 20


def find_repository(row: Mapping[str, Any], folder: Path | None, others: Sequence[Path]) -> Path:
    roots = [each.expanduser().resolve() for each in (*([] if folder is None else [folder]), *others)]
    for root in roots:
        path = (root / str(row["repo"])).resolve()
        if root in path.parents and (path.is_dir() or path.is_file()):
            wanted, is_own = row.get("sha256"), root == roots[0] and folder is not None
            if path.is_file() and not (is_own and wanted is None):
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest != wanted:
                    raise DatasetError(
                        f"{path} has sha256 {digest}, and its row {wanted!r:.80}; give the right one"
                    )
            return path
    where = " and ".join(map(str, roots)) or "any folder, since a hub dataset has none"
    raise DatasetError(
        f"no repository at {row['repo']!r:.200} below {where}; put a folder, a git folder or a tar archive "
        f"there, or name the folder above it: --env.repositories PATH"
    )


def check_repository(repository: Path, commit: str | None) -> None:
    if repository.is_file():
        _read_archive(repository)
    elif commit is not None:
        with _own_git(repository, commit) as env:
            _list_files(repository, commit, env)


def read_tree(repository: Path, commit: str | None) -> Tree:
    if repository.is_file():
        files = _read_archive(repository)
    else:
        files = read_folder(repository) if commit is None else _read_commit(repository, commit)
    return {path: file for path, file in files.items() if ".git" not in path.split("/")}


@contextmanager
def _own_git(repository: Path, commit: str) -> Generator[dict[str, str]]:
    """Yield variables that give git the objects and refs of the repository, and none of its settings."""
    found = repository / ".git" if (repository / ".git").is_dir() else repository
    kept = [found, found / "objects", found / "refs", found / "HEAD", found / "packed-refs"]
    if not kept[1].is_dir():
        raise DatasetError(f"no git at {repository}; give its folder, or base_commit null for plain files")
    if any(path.is_symlink() for path in kept) or not _is_complete(kept[1]):
        raise DatasetError(f"the git at {repository} has parts elsewhere; give a clone that has them all")
    with TemporaryDirectory() as name:
        own = Path(name, "git")
        form = "sha256" if len(commit) == _LONG_HASH else "sha1"
        git("init", "--quiet", "--bare", "--template=", f"--object-format={form}", str(own), cwd=own.parent)
        write_files(own / "refs", read_folder(kept[2]))
        for path in filter(Path.is_file, kept[3:]):
            check_size(1, path.stat().st_size, str(path))
            (own / path.name).write_bytes(path.read_bytes())
        yield {"GIT_DIR": str(own), "GIT_OBJECT_DIRECTORY": str(kept[1]), "GIT_NO_REPLACE_OBJECTS": "1"}


def _is_complete(objects: str | Path) -> bool:
    """Whether an objects folder has only plain files and folders, and no reference to another one."""
    with os.scandir(objects) as entries:
        return all(
            _is_complete(each.path)
            if each.is_dir(follow_symlinks=False)
            else each.is_file(follow_symlinks=False) and each.name != "alternates"
            for each in entries
        )


def _list_files(repository: Path, commit: str, env: Mapping[str, str]) -> list[re.Match[bytes]]:
    if not _REVISION.fullmatch(commit):
        raise DatasetError(f"base_commit is {commit!r:.100}; give the hash of a commit, or its tag")
    words = ("ls-tree", "-r", "-l", "-z", f"{commit}^{{tree}}")
    listed = git(*words, cwd=repository, env=env, max_bytes=_MOST_LISTED)
    entries = [each for each in map(_BLOB.fullmatch, listed.split(b"\0")) if each]
    if not all(each["size"].isdigit() for each in entries):
        raise DatasetError(f"{repository} lacks files of {commit}; give a clone that has them all")
    check_size(len(entries), sum(int(each["size"]) for each in entries), f"{repository} at {commit}")
    return entries


def _read_commit(repository: Path, commit: str) -> Tree:
    """Read the files of a commit from git's objects: a checkout would run filters."""
    with _own_git(repository, commit) as env:
        entries = _list_files(repository, commit, env)
        names = b"".join(each["name"] + b"\n" for each in entries)
        content = git("cat-file", "--batch", cwd=repository, env=env, stdin=names)
    files: dict[str, ArchivedFile] = {}
    at = 0
    for each in entries:
        start = content.index(b"\n", at) + 1
        at = start + int(each["size"])
        files[clean_path(os.fsdecode(each["path"]))] = file_of(content[start:at], int(each["mode"], 8))
        at += 1
    return files


def _read_archive(archive: Path) -> Tree:
    files: dict[str, ArchivedFile] = {}
    size = 0
    try:
        with archive.open("rb") as file:
            start = file.read(len(b"\xfd7zXZ"))
        opener = next((each for magic, each in _COMPRESSED.items() if start.startswith(magic)), open)
        with opener(archive, "rb") as stream:
            reader = tar.Reader(stream.read, leaves_out_links=True)
            for member in reader:
                if not member.folder:
                    size += reader.left
                    check_size(len(files), size, str(archive))
                    data = b"".join(reader.content())
                    files[os.fsdecode(member.name)] = file_of(data, member.mode)
    except tar.TarError as error:
        raise DatasetError(f"{archive}: {os.fsdecode(error.member)}: {error.reason}") from None
    except (EOFError, OSError, MemoryError, zlib.error, lzma.LZMAError) as error:
        raise DatasetError(f"{archive}: {error}") from error
    roots = {path.partition("/")[0] for path in files}
    # A source distribution has one folder at the top.
    is_nested = len(roots) == 1 and all("/" in path for path in files)
    return {path.partition("/")[2]: file for path, file in files.items()} if is_nested else files
