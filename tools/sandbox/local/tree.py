"""Host folders that sandboxes of tier B start from, with copy on write."""

import ctypes
import os
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.sandbox.host import trees
from tools.sandbox.host.process_ids import identity
from tools.sandbox.inside.kernel import failure, libc
from tools.sandbox.local import cgroup, tiers

_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_AT_FDCWD, _EMPTY_PATH, _CLONE = -100, 0x1000, 1
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A folder whose files belong to the agent in each copy."""

    base: str
    """Closed parent folder; its name identifies the owner."""
    uid: int
    writable: bool = False
    """The sandbox fills the folder."""

    @classmethod
    def made(cls) -> "Tree":
        base = tempfile.mkdtemp(prefix=f"{cgroup.PREFIX}.{identity(os.getpid())}.")
        tree = cls(base=base, uid=tiers.unused_uid(), writable=True)
        (Path(base) / "tree").mkdir(mode=0o755)
        return tree

    def remove(self) -> None:
        trees.remove(self.base)

    @contextmanager
    def mounted(self) -> Generator[int]:
        """Yield the descriptor of a detached mount."""
        path = f"{self.base}/tree".encode()
        tree = libc.syscall(ctypes.c_long(_OPEN_TREE), _AT_FDCWD, path, _CLONE | os.O_CLOEXEC)
        if tree < 0:
            raise failure("open_tree")
        try:
            flags = _NO_SUID | _NO_DEVICES | (0 if self.writable else _READ_ONLY)
            attributes = struct.pack("4Q", flags, 0, 0, 0)
            size = ctypes.c_size_t(len(attributes))
            if libc.syscall(ctypes.c_long(_MOUNT_SETATTR), tree, b"", _EMPTY_PATH, attributes, size):
                raise failure("mount_setattr")
            yield tree
        finally:
            os.close(tree)
