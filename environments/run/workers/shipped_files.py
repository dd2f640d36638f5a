"""An environment's files for workers on machines that do not have them.

They lie below a folder of the worker's own, each at the absolute path that it has where the driver runs, so
that whatever names another by a relative path finds it there.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.sandbox.host.process_ids import has_ended, identity

_PREFIX = "turnwise-worker."
_CLEAN = 'exec 3<&0; { cat <&3; rm -rf -- "$0"; } >/dev/null &'
"""Waits for the end of a worker's supervisor, even by SIGKILL; no child of it, as Ray ends those with it."""


@contextmanager
def unpacked(files: Mapping[str, bytes] | None, folder: str) -> Generator[str]:
    """The root below which the files and `folder` lie, as long as it is entered; empty where none are needed.

    They go with this process, however it ends, and what one left here that could not is taken away.
    """
    if files is None:
        yield ""
        return
    scratch = Path(tempfile.gettempdir())
    for left in scratch.glob(f"{_PREFIX}*"):
        if has_ended(left.name.removeprefix(_PREFIX).rpartition(".")[0]):
            shutil.rmtree(left, ignore_errors=True)
    root = tempfile.mkdtemp(prefix=f"{_PREFIX}{identity(os.getpid())}.", dir=scratch)
    command = ["/bin/sh", "-c", _CLEAN, root]
    cleaner = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        for name, content in files.items():
            file = Path(below(root, name))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        Path(below(root, folder)).mkdir(parents=True, exist_ok=True)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        cleaner.communicate()


def below(root: str, path: str) -> str:
    """Where an absolute path of the driver's is for this worker."""
    return root + path


def path_below(root: str, path: Sequence[str], own: Sequence[str]) -> list[str]:
    """Where a worker finds modules: as the driver, or as the machine it is on, then in what was sent."""
    if not root:
        return list(path)
    sent = [root + each for each in path if each and os.path.isdir(root + each)]  # noqa: PTH112
    return [*own, *sent]
