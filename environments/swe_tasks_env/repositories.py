"""Where the files of a row's repository come from: a folder, a git, a tar archive, or the package index."""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from environments.swe_tasks_env.patches import Tree, file_of, git, tree_in
from tools.errors import DatasetError
from tools.sandbox.archive import ArchivedFile, clean_path

_RELEASE = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")
_DOWNLOAD_S = 300.0
_NO_SETTINGS = ("-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


def find_repository(row: Mapping[str, Any], folder: Path) -> Path:
    """The folder, bare git or archive of a row, found to be there with its commit.

    Args:
        row: with `repo` and `base_commit`.
        folder: where relative paths start.

    Raises:
        DatasetError: it cannot be had.
    """
    repo, commit = str(row["repo"]), row.get("base_commit")
    if _RELEASE.fullmatch(repo):
        return _downloaded(repo)
    path = folder / Path(repo).expanduser()
    if commit is not None and path.is_dir():
        git(*_NO_SETTINGS, "cat-file", "-e", f"{commit}^{{tree}}", cwd=path)
    elif not path.is_dir() and not (path.is_file() and tarfile.is_tarfile(path)):
        raise DatasetError(
            f"no repository at {path}; give a folder, a bare git, a tar archive, or NAME==VERSION"
        )
    return path


def read_tree(repository: Path, commit: str | None) -> Tree:
    """The plain files at a commit, or those of a folder or an archive as they are.

    Raises:
        DatasetError: they cannot be read.
    """
    if repository.is_file():
        return _archived(repository)
    if commit is None:
        return tree_in(repository)
    with TemporaryDirectory() as name:
        own, at = Path(name, "git"), Path(name, "tree")
        at.mkdir()
        asked = ("--show-object-format", "--git-path", "objects", f"{commit}^{{tree}}")
        said = git(*_NO_SETTINGS, "rev-parse", *asked, cwd=repository)
        form, objects, tree = os.fsdecode(said).removesuffix("\n").split("\n")
        # A git of ours with its objects: filters that its settings name would run on this machine.
        git("init", "--quiet", "--bare", "--template=", f"--object-format={form}", str(own), cwd=at)
        env = {"GIT_DIR": str(own), "GIT_WORK_TREE": str(at)}
        env["GIT_OBJECT_DIRECTORY"] = str((repository / objects).resolve())
        git("read-tree", tree, cwd=at, env=env)
        git("checkout-index", "--all", cwd=at, env=env)
        return tree_in(at)


def _archived(archive: Path) -> Tree:
    files: dict[str, ArchivedFile] = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                data = members.extractfile(member) if member.isreg() else None
                if data is not None:
                    files[clean_path(member.name)] = file_of(data.read(), member.mode)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DatasetError(f"{archive}: {error}") from error
    roots = {path.partition("/")[0] for path in files}
    # That of a source distribution is in one folder.
    return {path.partition("/")[2]: file for path, file in files.items()} if len(roots) == 1 else files


def _downloaded(release: str) -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    downloads = Path(caches, "turnwise", "sources")
    kept = downloads / release
    if not kept.is_dir():
        words = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", release]
        downloads.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=downloads, ignore_cleanup_errors=True) as name:
            ran = subprocess.run(
                [sys.executable, "-m", "pip", *words], cwd=name, capture_output=True, timeout=_DOWNLOAD_S
            )
            if ran.returncode:
                why = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
                raise DatasetError(f"pip cannot download the source of {release}: {why}")
            with suppress(OSError):  # another process was faster
                Path(name).rename(kept)
    return next(kept.iterdir())
