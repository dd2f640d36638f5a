"""Python packages of local sandboxes, installed once into the user's cache by pip or uv.

Only wheels are allowed, because builds would run a package's code on the host. Lock files and wheel metadata
can still request builds (`NAME @ URL`), so pip runs in a process that cannot start programs.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from tools.errors import ConfigError
from tools.sandbox.host.ownership import guard_command
from tools.sandbox.local import tiers

_LOCK_FILES = (".txt", ".lock")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w, .-]*\])?\s*([<>=!~(;].*)?")
_OF_INSTALLERS = ("/INSTALLER", "/REQUESTED", "/RECORD", "/direct_url.json", "/uv_cache.json")
_ABI = "import sysconfig; print(sysconfig.get_config_var('SOABI'))"
_SHOWN = 300
_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
_ALONE = f"""
import runpy, sys
def refuse(event, arguments):
    # pip runs musl's loader to find out which wheels fit.
    if event in {_STARTS} and "/ld-musl-" not in str(arguments[0]):
        raise PermissionError(f"packages are not built: {{arguments[0]}} is not started")
sys.addaudithook(refuse)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""pip's runner for another interpreter."""


@cache
def folder_of(packages: tuple[str, ...]) -> str:
    """Install packages unless cached, and return their folder, or raise ConfigError; blocks."""
    if not packages:
        return ""
    asked, content = _parse(packages)
    python = shutil.which("python3", path=tiers.search_path()) or tiers.interpreter()
    abi = tiers.output_of([python, "-I", "-S", "-c", _ABI]).stdout.encode()
    key = hashlib.sha256(b"\0".join([python.encode(), abi, content])).hexdigest()[:32]
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(caches, "turnwise", "packages", key).absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                scratch = Path(f"{folder}.new")
                shutil.rmtree(scratch, ignore_errors=True)
                _install(asked, packages, python, scratch, lock.fileno())
                _open_to_all(scratch)
                scratch.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"packages cannot be kept in {folder.parent} ({error.strerror or error}); set XDG_CACHE_HOME to "
            f"a folder that can be written"
        ) from error
    return str(folder)


@cache
def versions_of(packages: tuple[str, ...]) -> Mapping[str, str]:
    """Return version and digest of each package, whatever the installer; raises as `folder_of`."""
    versions: dict[str, str] = {}
    for each in distributions(path=[folder_of(packages)]):
        lines = (each.read_text("RECORD") or "").splitlines()
        files = [line for line in lines if line[:3] != "../" and line[-2:] != ",,"]
        own = sorted(line for line in files if not line.partition(",")[0].endswith(_OF_INSTALLERS))
        digest = hashlib.sha256("\n".join(own).encode()).hexdigest()[:16]
        versions[each.name] = f"{each.version} {digest}"
    return versions


def _parse(packages: tuple[str, ...]) -> tuple[list[str], bytes]:
    if len(packages) == 1 and packages[0].endswith(_LOCK_FILES):
        try:
            content = Path(packages[0]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the lock file of packages cannot be read: {error}") from error
        # Comments are dropped, except those that set pip's encoding of the file.
        for line in re.sub(r"\\\n|(^|\s)#(?!.*coding[:=]).*", " ", content).splitlines():
            if line.strip() and not ("==" in line and _REQUIREMENT.fullmatch(line.strip())):
                raise ConfigError(
                    f"{packages[0]} has the line {line.strip()!r:.100}; a lock file gives NAME==VERSION with "
                    f"hashes, and no options, paths or addresses: those of indexes are in pip's configuration"
                )
        return ["--require-hashes", "-r", packages[0]], content.encode()
    for each in packages:
        if not _REQUIREMENT.fullmatch(each):
            raise ConfigError(
                f"packages has {each!r:.100}; give names with versions, ('pytest==8.4.2',), or one path of a "
                f"lock file that ends in {' or '.join(_LOCK_FILES)}"
            )
    return list(packages), "\n".join(packages).encode()


def _install(asked: list[str], packages: tuple[str, ...], python: str, into: Path, lock: int) -> None:
    uv = shutil.which("uv")
    pip = importlib.util.find_spec("pip")
    if pip is not None and pip.origin is not None:
        runner = str(Path(pip.origin).with_name("__pip-runner__.py"))
        program = [python, "-I", "-c", _ALONE, runner, "install", "--no-input"]
    elif uv is not None:
        program = [uv, "pip", "install", "--python", python]
    else:
        raise ConfigError("packages are installed by pip or uv, and neither is here: python -m ensurepip")
    words = [*program, "--quiet", "--only-binary", ":all:", "--target", str(into), *asked]
    # The guards of the installer inherit the lock.
    done = subprocess.run(
        guard_command(words), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        pass_fds=(lock,), start_new_session=True,
    )  # fmt: skip
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no reason was given"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR: ")), lines[-1])
        away = "; the package index does not answer" if "Retrying" in done.stderr else ""
        raise ConfigError(
            f"packages {', '.join(packages)} cannot be installed for {python}: "
            f"{reason.removeprefix('ERROR: ')[:_SHOWN]}{away} (only wheels are taken, nothing is built)"
        )


def _open_to_all(folder: Path) -> None:
    folder.mkdir(exist_ok=True)  # pip creates no folder if no requirement applies here
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o555 if path.stat().st_mode & 0o100 else 0o444)
