"""Programs, folders and names that belong to a process, and what removes them when it has ended."""

import asyncio
import itertools
import os
import secrets
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Protocol

from tools.sandbox.inside.processes import process_table, read_entry
from tools.waiting import to_the_end

_PREFIX = "turnwise"
_END_S = 5.0
_XDG = {"CACHE": ".cache", "CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state"}
_TOOLS = str(Path(__file__).parents[2])
# Stubs, because importing the real packages is slow.
_GUARD = f"""
import sys
for name, path in ("tools", {_TOOLS!r}), ("tools.sandbox", {_TOOLS + "/sandbox"!r}):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from tools.sandbox.host.guard import main
main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
"""


def guard_command(argv: Sequence[str], folder: str = "") -> list[str]:
    """Return a guard's command that runs a program and exits with its code, or 128 + signal.

    The program and its descendants end with the guard or this process, which also removes the folder. Without
    pidfds (before Linux 5.3) there is no guard.
    """
    if not hasattr(os, "pidfd_open"):
        return list(argv)
    return [sys.executable, "-IS", "-c", _GUARD, str(os.getpid()), folder, *argv]


class _Program(Protocol):
    pid: int

    async def wait(self) -> int: ...


async def end(process: _Program) -> None:
    """End a guarded program that leads its own session."""
    ended = asyncio.create_task(process.wait())
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait({ended}, timeout=_END_S)
    ended.cancel()


@asynccontextmanager
async def own_folder() -> AsyncGenerator[str]:
    """Create a folder for a rollout's programs; after a kill the next process removes it."""
    if sys.platform != "linux":
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield folder
        return
    await asyncio.to_thread(_remove_orphans)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}.{identity(os.getpid())}.rollout-")
    try:
        yield folder
    finally:
        await to_the_end(asyncio.to_thread(remove_folder, folder))


@cache
def _remove_orphans() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}.*.rollout-*"):
        if has_ended(folder.name.split(".")[1]):
            remove_folder(str(folder))


def home_variables(folder: str, *, shares_home: bool = False) -> dict[str, str]:
    home, temporary, ours = Path(folder, "home"), Path(folder, "tmp"), Path("~").expanduser()
    for each in (home, temporary):
        each.mkdir(mode=0o700)
    if shares_home:
        found = {name: each for name, each in os.environ.items() if name == "HOME" or name.startswith("XDG_")}
        return {**found, "TMPDIR": str(temporary)}
    caches = Path(os.environ.get("XDG_CACHE_HOME") or ours / ".cache")
    used = {"npm_config_cache": ours / ".npm", "PIP_CACHE_DIR": caches / "pip", "UV_CACHE_DIR": caches / "uv"}
    made = {"HOME": home, "TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary}
    made |= {f"XDG_{name}_HOME": home / path for name, path in _XDG.items()}
    return {name: str(path) for name, path in made.items()} | {
        name: os.environ.get(name, str(path)) for name, path in used.items()
    }


def identity(pid: int) -> str:
    """Return a name of a process that is never reused: PID namespace, id and start time."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{namespace}-{pid}-{read_entry(pid)[1]}"


def has_ended(name: str) -> bool:
    """Whether the process provably ended."""
    pid, start = owner_pid(name), name.rpartition("-")[2]
    if pid is None or not start.isdigit():
        return False
    try:
        return read_entry(pid)[1] != int(start)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except PermissionError:
        return False


def owner_pid(name: str) -> int | None:
    parts = name.split("-")
    if len(parts) != 3 or parts[0] != str(Path("/proc/self/ns/pid").stat().st_ino) or not parts[1].isdigit():
        return None
    return int(parts[1])


def children(pid: int) -> list[int]:
    return [child for child, (parent, _) in process_table(ended=True).items() if parent == pid]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(map(cpu_seconds, children(pid)))


def remove_folder(folder: str) -> None:
    """Remove a folder as far as possible.

    Subfolders first move up, so that any depth needs only two descriptors.
    """
    try:
        top = _open(None, folder)
    except OSError:
        return
    try:
        names = map(f".{secrets.token_hex(8)}.{{}}".format, itertools.count())
        while folders := [name for name in _names(top) if not _try_unlink(top, name)]:
            for name in folders:
                _flatten(top, name, names)
        Path(folder).rmdir()
    except OSError:
        return
    finally:
        os.close(top)


def _flatten(top: int, name: str, names: Iterator[str]) -> None:
    """Remove one folder after moving its subfolders to the top."""
    inner = _open(top, name)
    try:
        for each in _names(inner):
            if not _try_unlink(inner, each):
                # Changing `..` requires a writable folder.
                os.close(_open(inner, each))
                os.rename(each, next(names), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _open(parent: int | None, name: str) -> int:
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)  # noqa: PTH101  # a descriptor by its path
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _try_unlink(parent: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        return False
    return True
