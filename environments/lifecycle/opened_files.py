"""Which files an environment's code reads, as an audit hook of this process sees them opened."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any


class OpenedFiles:
    """Absolute paths of the files that any thread opens while items are loaded, each once, in that order."""

    def __init__(self) -> None:
        self.read: dict[str, None] = {}
        """Those that were opened for reading."""
        self.written: dict[str, None] = {}
        """Likewise of those that were opened for writing."""

    @contextmanager
    def watched(self) -> Generator[None]:
        """While entered, what is opened is noted."""
        if not _audited:
            _audited.append(True)
            sys.addaudithook(_note)
        _watching.append(self)
        try:
            yield
        finally:
            _watching.remove(self)


_watching: list[OpenedFiles] = []
_audited: list[bool] = []
"""An audit hook stays for as long as the process, so there is one."""


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or not _watching:
        return
    path, _, flags = args
    if isinstance(path, int) or not isinstance(flags, int):
        return
    # What is raised here would be raised by the `open` that it is about.
    with suppress(OSError, ValueError, TypeError):
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # a `Path` of each takes longer
        for opened in _watching:
            is_read = flags & os.O_ACCMODE == os.O_RDONLY
            (opened.read if is_read else opened.written)[absolute] = None
