"""Which files an environment's code reads, as an audit hook of this process sees them opened."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from environments.containment.child_tasks import IN_USER_CODE


class OpenedFiles:
    """Absolute paths of files that were opened for reading, each once, in order of their opening."""

    def __init__(self) -> None:
        self.at_start: dict[str, None] = {}
        """While the environment was set up and its items were loaded, by any thread."""
        self.later: dict[str, None] = {}
        """Afterwards, by hooks and tools."""
        self.written: set[str] = set()
        """Those that were opened for writing, too."""
        self._is_loading = False

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

    @contextmanager
    def loading(self) -> Generator[None]:
        """While entered, what is opened belongs to the start."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False

    def note(self, path: str, *, is_written: bool) -> None:
        """Take one more opening in."""
        if not self._is_loading and not IN_USER_CODE.get():
            return
        if is_written:
            self.written.add(path)
        elif self._is_loading:
            self.at_start[path] = None
        elif path not in self.at_start:
            self.later[path] = None


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
            opened.note(absolute, is_written=flags & os.O_ACCMODE != os.O_RDONLY)
