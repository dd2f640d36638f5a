"""The files that an environment's code opens, observed by an audit hook of this process."""

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any

from environments.rollout.containment.hook_calls import IN_USER_CODE


class OpenedFiles:
    """Absolute paths of opened files, each once, in order; `in_hooks`: only those of hooks and tools."""

    def __init__(self, *, in_hooks: bool = False) -> None:
        self.in_hooks = in_hooks
        self.read: dict[str, None] = {}
        self.written: dict[str, None] = {}
        """Opened for writing, or replaced by another file."""

    @contextmanager
    def watch(self) -> Generator[None]:
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
"""An audit hook cannot be removed, so there is one."""
_EVENTS = frozenset({"open", "os.rename"})


def _note(event: str, args: tuple[Any, ...]) -> None:
    if not _watching or event not in _EVENTS:
        return
    in_hook = IN_USER_CODE.get()
    watching = [opened for opened in _watching if in_hook or not opened.in_hooks]
    if not watching:
        return
    if event == "open":
        path, _, flags = args
    else:
        path, flags = args[1], os.O_WRONLY
    if isinstance(path, int) or not isinstance(flags, int):
        return
    # An error here would be raised by the audited `open`.
    with suppress(OSError, ValueError, TypeError):
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # a `Path` of each takes longer
        for opened in watching:
            is_read = flags & os.O_ACCMODE == os.O_RDONLY
            (opened.read if is_read else opened.written)[absolute] = None


def note_elsewhere(read: Iterable[str], written: Iterable[str]) -> None:
    """Note files that hooks and tools opened in another process."""
    for opened in [each for each in _watching if each.in_hooks]:
        opened.read |= dict.fromkeys(read)
        opened.written |= dict.fromkeys(written)
