"""Files that hold rollouts are their owner's alone."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.errors import RecordError


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made here can be read and written by its owner only."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole, or leave it as it was; a link in its place is replaced, not followed.

    Raises:
        RecordError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with open(unfinished, "wb", opener=private) as file:  # `Path.open` takes no opener
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def folder_for(path: Path) -> Generator[None]:
    """The folder of a file to come, made where it lacks; what was made goes again where the work fails.

    Raises:
        RecordError: it cannot be made.
    """
    made = [folder for folder in path.parents if not os.path.isdir(folder)]  # noqa: PTH112  # `is_dir` may raise
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from error
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # somebody else's file came into it
                folder.rmdir()
        raise
