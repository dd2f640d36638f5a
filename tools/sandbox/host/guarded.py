"""Host programs that end with this process, however it ends, and folders for their files."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

from tools.sandbox.host import trees
from tools.sandbox.host.process_ids import has_ended, identity
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


def guarded(argv: Sequence[str], folder: str = "") -> list[str]:
    """Return a guard's command that runs a program and exits with its code, or 128 + signal.

    The program and its descendants end with the guard or this process, which also removes the folder. Without
    pidfds (before Linux 5.3) there is no guard.
    """
    if not hasattr(os, "pidfd_open"):
        return list(argv)
    return [sys.executable, "-IS", "-c", _GUARD, str(os.getpid()), folder, *argv]


async def end(process: asyncio.subprocess.Process) -> None:
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
        await to_the_end(asyncio.to_thread(trees.remove, folder))


@cache
def _remove_orphans() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}.*.rollout-*"):
        if has_ended(folder.name.split(".")[1]):
            trees.remove(str(folder))


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
