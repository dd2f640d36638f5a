"""The root file system of sandboxes: parts of this system, read-only, and their own /etc."""

import ctypes
import os
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tools.sandbox.base import Network, SandboxLimits
from tools.sandbox.host.layout import HOST_NAME, RUN_DIR, VERIFIER_DIR, WORKDIR, part
from tools.sandbox.host.ownership import identity, remove_folder
from tools.sandbox.inside import held_files
from tools.sandbox.inside.kernel import failure, libc
from tools.sandbox.local import cgroup, tiers

_SYSTEM_DIRS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Nothing here names users, hosts, keys or accounts of this machine.
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "debian_version", "environment.d",
    "fonts", "inputrc", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "locale.alias", "localtime", "magic", "manpath.config", "mime.types", "os-release",
    "perl", "pki/tls/certs", "protocols", "python3", "python3.10", "python3.11", "python3.12",
    "python3.13", "rpc", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
    "xattr.conf",
)  # fmt: skip
# Files of users: packages (ours, and environments with hidden tests), sources, and settings with tokens.
_NOT_LENT = (
    "/usr/etc", "/usr/src", "/usr/local/etc", "/usr/local/src", "/usr/local/lib/python*/dist-packages",
    "/usr/local/lib/python*/site-packages",
)  # fmt: skip
_LENT = "/lent"
_OF_TASKS = {"/app": WORKDIR, "/tests": f"{VERIFIER_DIR}/{held_files.FILES}/tests", "/logs": "/tmp/logs"}
"""Paths in Harbor's task format."""
_OWN = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    kind: Literal["bind", "dir", "link", "tmpfs", "file", "proc", "dev", "pts", "seal", "tree", "copy"]
    path: str
    source: str = ""
    """Source of a bind (read-only), or target of a link."""
    size: int = 0
    mode: int = 0o755
    data: str = ""

    def words(self) -> tuple[str, ...]:
        return self.kind, self.path, self.source, str(self.size), f"{self.mode:o}", self.data


def root_steps(network: Network, read_only: tuple[str, ...] = ()) -> list[Step]:
    """Return the steps of the shared root, with mount points for `own_steps`."""
    made = list(_system_steps())
    made += [Step(kind="file", path=path, data=data) for path, data in _etc_names().items()]
    own = SandboxLimits(network=network)
    made += [Step(kind="file", path=path) for path in _own_files(own, 0, 0) if path not in _etc_names()]
    made += [Step(kind="dir", path=path) for path in ("/proc", "/tmp", RUN_DIR, WORKDIR, VERIFIER_DIR)]
    made += [Step(kind="link", path="/var/tmp", source="/tmp"), Step(kind="dev", path="/dev")]
    made += [Step(kind="link", path=path, source=source) for path, source in _OF_TASKS.items()]
    made += [Step(kind="dir", path=path) for path in ("/dev/pts", "/dev/shm")]
    made += [Step(kind="seal", path="/dev")]
    made += [Step(kind="bind", path=path, source=path) for path in tiers.extra_directories()]
    requested = {_root_place(path): path for path in read_only}
    for path in sorted({*requested, *_find_hidden(tuple(requested.items()))}):
        if path in requested:
            made.append(Step(kind="bind", path=path, source=requested[path]))
        else:
            made.append(Step(kind="tmpfs", path=path, size=4096))
            made += [Step(kind="dir", path=lent) for lent in requested if _is_below(lent, path)]
            made.append(Step(kind="seal", path=path))
    return made


def _root_place(path: str) -> str:
    """Return a lent folder's path in the root, outside of /tmp, which each sandbox covers."""
    return f"{_LENT}{path}" if _is_below(path, "/tmp") else path


def own_steps(
    limits: SandboxLimits, *, uid: int, gid: int, tree: Literal["tree", "copy"] | None = None
) -> list[Step]:
    disk_bytes = limits.disk_mb << 20
    return [
        Step(kind="tmpfs", path=RUN_DIR, size=8 << 20),
        *(Step(kind="file", path=path, data=data) for path, data in _own_files(limits, uid, gid).items()),
        Step(kind="proc", path="/proc"),
        Step(kind="pts", path="/dev/pts"),
        Step(kind="tmpfs", path="/dev/shm", size=part(disk_bytes, 8), mode=0o1777),
        Step(kind="tmpfs", path="/tmp", size=part(disk_bytes, 4), mode=0o1777),
        Step(kind="tmpfs", path=WORKDIR, size=disk_bytes),
        *(Step(kind=kind, path=WORKDIR) for kind in (tree,) if kind is not None),
        *(
            Step(kind="bind", path=path, source=_root_place(path))
            for path in sorted(limits.read_only)
            if _is_below(path, "/tmp")
        ),
    ]


@cache
def read_rules(read_only: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """Return Landlock rules for reading; they cannot exclude parts of a folder.

    Around hidden folders every entry is allowed separately; names stay visible.
    """
    requested = [os.path.realpath(path) for path in read_only]
    rules, hidden = list[tuple[str, str]](), _find_hidden(tuple((path, path) for path in requested))
    paths = [*_readable(), *requested]
    while paths:
        path = paths.pop()
        if not any(_is_below(other, path) for other in hidden):
            rules.append(("read", path))
        elif path not in hidden:
            rules.append(("list", path))
            with os.scandir(path) as entries:
                # A rule for a link would allow its target.
                paths += [entry.path for entry in entries if not entry.is_symlink()]
    return tuple(rules)


def find_readable_folder(path: Path) -> str | None:
    """Return the lent folder in which every sandbox can read this file."""
    real = str(path.resolve())
    if any(_is_below(real, hidden) for hidden in _find_hidden()):
        return None
    return next((lent for lent in _readable() if _is_below(real, lent)), None)


def _readable() -> tuple[str, ...]:
    binds = tuple(step.source for step in _system_steps() if step.kind == "bind")
    return binds + tiers.extra_directories()


@cache
def _find_hidden(requested: tuple[tuple[str, str], ...] = ()) -> tuple[str, ...]:
    """Return hidden folders in lent ones; `requested` pairs places in the root with host paths."""
    patterns = [
        *_NOT_LENT,
        *(f"{prefix}/lib/python*/site-packages" for prefix in tiers.extra_directories()),
    ]
    found = {path.resolve() for pattern in patterns for path in Path("/").glob(pattern[1:])}
    if _OWN.name in ("site-packages", "dist-packages"):
        found |= {path for name in ("turnwise*", "environments", "tools") for path in _OWN.glob(name)}
    else:
        found.add(_OWN)
    found -= {Path(source).resolve() for _, source in requested}
    folders = [str(path) for path in found if path.is_dir() and not found & set(path.parents)]
    lent = [
        (at, os.path.realpath(source)) for at, source in (*((path, path) for path in _readable()), *requested)
    ]
    below = ((at, real, path) for path in folders for at, real in lent if _is_below(path, real))
    return tuple(sorted({at + path[len(real) :] for at, real, path in below}))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


@cache
def _system_steps() -> tuple[Step, ...]:
    made = [Step(kind="bind", path="/usr", source="/usr")]
    for name in _SYSTEM_DIRS:
        path = Path(name)
        if path.is_symlink():
            made.append(Step(kind="link", path=name, source=str(path.readlink())))
        elif path.is_dir():
            made.append(Step(kind="bind", path=name, source=name))
    made += [Step(kind="dir", path=path) for path in ("/etc", "/var")]
    for name in _ETC:
        path = Path("/etc") / name
        if path.is_symlink() and not path.readlink().is_relative_to("/etc"):
            made.append(Step(kind="link", path=str(path), source=str(path.readlink())))
        elif path.exists():
            made.append(Step(kind="bind", path=str(path), source=str(path.resolve())))
    return tuple(made)


def _etc_names() -> dict[str, str]:
    return {
        "/etc/hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
        "/etc/hostname": f"{HOST_NAME}\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def _own_files(limits: SandboxLimits, uid: int, gid: int) -> dict[str, str]:
    accounts = {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"agent:x:{uid}:{gid}:agent:{WORKDIR}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "/etc/group": f"root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n",
    }
    return accounts | (_names_of_hosts() if limits.network == "full" else {})


def _names_of_hosts() -> dict[str, str]:
    """Copy name resolution; the host's files may be links out of `/etc`."""
    return {
        "/etc/hosts": f"{_text('/etc/hosts')}\n127.0.0.1 {HOST_NAME}\n",
        "/etc/resolv.conf": _text("/etc/resolv.conf"),
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_AT_FDCWD, _EMPTY_PATH, _CLONE = -100, 0x1000, 1
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A folder that sandboxes copy; in each copy its files belong to the agent."""

    base: str
    """Closed parent folder; its name identifies the owner."""
    uid: int
    writable: bool = False
    """The sandbox fills the folder."""

    @classmethod
    def create(cls) -> "Tree":
        base = tempfile.mkdtemp(prefix=f"{cgroup.PREFIX}.{identity(os.getpid())}.")
        tree = cls(base=base, uid=tiers.draw_uid(), writable=True)
        (Path(base) / "tree").mkdir(mode=0o755)
        return tree

    def remove(self) -> None:
        remove_folder(self.base)

    @contextmanager
    def mount(self) -> Generator[int]:
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
