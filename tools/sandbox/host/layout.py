"""Paths, names and file system sizes inside every sandbox."""

from collections.abc import Mapping

from tools.errors import ConfigError
from tools.sandbox.base import SandboxLimits
from tools.sandbox.inside import held_files

WORKDIR = "/workspace"
RUN_DIR = "/run/turnwise"
VERIFIER_DIR = "/verifier"
HOST_NAME = "sandbox"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UID_BASE, UID_COUNT = 0x70000000, 0x0FFF0000
"""Host user ids that distributions and container managers do not assign."""
RESERVED_PIDS = 16
"""Our own processes, so that a full sandbox can still be read and cleaned."""
RESERVED_BYTES = 64 << 20
"""Our own memory, so that a new supervisor starts while file systems are full."""
BYTES_PER_FILE = 4096
"""Limits the number of files, because empty ones use memory, too."""


def verifier_env(folder: str, env: Mapping[str, str]) -> dict[str, str]:
    python = [f"{folder}/{held_files.PYTHON}", *filter(None, [env.get("PYTHONPATH")])]
    return {
        "VERIFIER": f"{folder}/{held_files.FILES}", "HOME": f"{folder}/{held_files.HOME}",
        "PYTHONPATH": ":".join(python),
        "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1",
        # git refuses workspaces of other users.
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    }  # fmt: skip


def part(disk_bytes: int, share: int) -> int:
    return max(1 << 20, disk_bytes // share)


def most_files(disk_bytes: int) -> int:
    return max(1024, disk_bytes // BYTES_PER_FILE)


def memory_bytes(disk_bytes: int) -> int:
    return disk_bytes + part(disk_bytes, 8) + part(disk_bytes, 4)


def check_files_fit(limits: SandboxLimits) -> None:
    """Raise ConfigError if full file systems would use all memory."""
    files_mb = memory_bytes(limits.disk_mb << 20) >> 20
    if files_mb >= limits.memory_mb:
        raise ConfigError(
            f"a sandbox of {limits.memory_mb} MB memory cannot hold a workspace of {limits.disk_mb} MB, "
            f"which with /tmp and /dev/shm takes up to {files_mb} MB of it; raise memory_mb or lower disk_mb"
        )
