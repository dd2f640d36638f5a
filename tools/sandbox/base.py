"""The protocol of sandboxes, their limits and results."""

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypedDict, get_args

from tools.errors import ConfigError, IsolationError

if TYPE_CHECKING:
    import socket

MAX_READ_BYTES = 10 << 20
MAX_OUTPUT_BYTES = 256 << 10

Network = Literal["none", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of one sandbox. A limit that cannot be enforced is an error."""

    memory_mb: int = 1024
    pids: int = 256
    cpus: float | None = None
    """CPU quota in cores; None sets no quota."""
    disk_mb: int = 256
    """Size of the writable workspace, less than the memory limit because it usually lives in memory."""
    file_mb: int = 128
    """Largest file that a command may write."""
    output_mb: int = 64
    """A command that writes more to one stream is killed."""
    network: Network = "none"
    """`none`: only the sandbox's own loopback. `full`: the host's network."""
    read_only: tuple[str, ...] = ()
    """Host folders that are readable at the same paths inside."""
    packages: tuple[str, ...] = ()
    """Python packages for local sandboxes: requirements such as `pytest==8.4.2`, or the path of one lock file
    with hashes (`.txt` or `.lock`)."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: if a limit is not a positive number, `network` is unknown, or `packages` is not a
                tuple of requirements.
        """
        packages: Any = self.packages
        if isinstance(packages, str) or not all(isinstance(each, str) and each for each in packages):
            raise ConfigError(
                f"packages are a tuple of requirements, ('pytest==8.4.2',), got {packages!r:.100}"
            )
        object.__setattr__(self, "packages", tuple(packages))
        object.__setattr__(self, "read_only", tuple(map(os.path.normpath, self.read_only)))
        for name in ("memory_mb", "pids", "disk_mb", "file_mb", "output_mb"):
            value: Any = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"a sandbox cannot have {name}={value!r}; give a whole number above 0")
        cpus: Any = self.cpus
        if cpus is not None and not (isinstance(cpus, (int, float)) and 0 < cpus < math.inf):
            raise ConfigError(f"a sandbox cannot have cpus={cpus!r}; give a number above 0, or None")
        if self.network not in get_args(Network):
            words = " or ".join(map(repr, get_args(Network)))
            raise ConfigError(f"a sandbox cannot have network={self.network!r}; give {words}")


_NEVER_LENT = ("/", "/etc", "/home", "/root", "/run", "/tmp", "/var")
_NOTHING_BELOW_LENT = ("/dev", "/proc", "/run/turnwise", "/sys", "/var/tmp", "/verifier", "/workspace")


def check_lent(folder: str, *, with_parents: bool = False) -> None:
    """Raise ConfigError if no sandbox can show a host folder at its own path.

    With `with_parents` its parents must be passable, too, as without mounts.
    """
    path = Path(folder)
    never = str(path) in _NEVER_LENT or any(path.is_relative_to(each) for each in _NOTHING_BELOW_LENT)
    if not path.is_absolute() or not path.is_dir() or never:
        raise ConfigError(
            f"a sandbox cannot show read_only={folder!r}; give the absolute path of a folder that is there, "
            f"such as a virtual environment"
        )
    wanted = [(path, 0o005), *((each, 0o001) for each in path.resolve().parents if with_parents)]
    closed = [each for each, bits in wanted if ~each.stat().st_mode & bits]
    if closed and os.geteuid() == 0:
        raise ConfigError(
            f"agents cannot read read_only={folder!r}, they are other users; chmod o+rx {closed[0]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Limits and image of one item's sandbox; unset fields follow the settings."""

    image: str | None = None
    memory_mb: int | None = None
    pids: int | None = None
    cpus: float | None = None
    disk_mb: int | None = None
    network: Network | None = None
    read_only: tuple[str, ...] | None = None
    packages: tuple[str, ...] | None = None
    whole: bool = False
    """The agent is root of its (docker) container, on the image's own files and in its WORKDIR."""
    prepared: str | None = None
    """Key of the state that `prepare_sandbox` leaves, shared by all sandboxes with this key."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: if `SandboxLimits` refuses a limit, or `image` or `prepared` is not a text.
        """
        self.limits(SandboxLimits())
        for name, wanted in (("image", "its name"), ("prepared", "a key")):
            given: Any = getattr(self, name)
            if given is not None and not (isinstance(given, str) and given):
                raise ConfigError(f"a sandbox cannot have {name}={given!r:.100}; give {wanted}, or None")

    def limits(self, default: SandboxLimits) -> SandboxLimits:
        """Return `default` overridden by the fields that are set."""
        names = ("memory_mb", "pids", "cpus", "disk_mb", "network", "read_only", "packages")
        own = {name: getattr(self, name) for name in names}
        return replace(default, **{name: value for name, value in own.items() if value is not None})


class LimitOverrides(TypedDict, total=False):
    """The fields of `SandboxLimits` as keyword arguments."""

    memory_mb: int
    pids: int
    cpus: float | None
    disk_mb: int
    file_mb: int
    output_mb: int
    network: Network
    read_only: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """The isolation of a rollout; part of its trajectory."""

    backend: str
    tier: str
    """The kind of isolation, for example `B` (namespaces) or `C` (Landlock) of the local backend."""
    limits: SandboxLimits
    enforced: tuple[str, ...]
    """Names of the limits that were verified to hold."""
    image: str | None = None
    """Digest of its image; None for a backend without images."""
    lacks: tuple[str, ...] = ()
    """Names of missing protections, such as `network` if the host's is reachable; see "Tiers" in
    docs/sandboxes.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of a command, including failures and timeouts."""

    exit_code: int
    """128 + signal if a signal ended the command, as in shells."""
    stdout: bytes
    """Head and tail; the middle of long output is cut."""
    stderr: bytes
    stdout_total: int
    """Bytes written, including those that were cut."""
    stderr_total: int
    timed_out: bool = False
    oom_killed: bool = False
    shell_restarted: bool = False
    """The persistent shell was replaced, and its directory and variables are lost."""
    duration_s: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether the middle of a stream was cut."""
        return self.stdout_total > len(self.stdout) or self.stderr_total > len(self.stderr)

    def text(self) -> str:
        """Return stdout decoded as UTF-8; invalid bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")


class SandboxFileError(OSError):
    """Additional base class of all file errors in a sandbox.

    It tells errors that the agent can cause from other `OSError`s of a hook.
    """


class Sandbox(Protocol):
    """An isolated machine for one rollout.

    A failed command is an `ExecResult`. Missing or refused files raise the builtin `OSError` family
    (`FileNotFoundError`, `IsADirectoryError`, `PermissionError`, …). Only a broken sandbox raises
    `SandboxError`. Relative paths start at `workdir`.
    """

    @property
    def record(self) -> SandboxRecord:
        """The isolation of this sandbox."""
        ...

    @property
    def workdir(self) -> str:
        """Absolute path of the writable workspace inside."""
        ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command: a string with `sh -c`, a sequence as argv.

        At the time limit every process of the command is killed, whatever group or session it moved to. A
        program that cannot start gives exit code 127 (missing) or 126.

        Raises:
            OSError: if `cwd` is given and is missing, not a directory or not allowed.
        """
        ...

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        """Run a command in the sandbox's persistent shell, which keeps directory, variables and jobs.

        At the time limit the command is killed; the shell and earlier background jobs survive. Damage by the
        agent is a result: after `chmod 0 .; exit` no other shell can start, and commands give exit code 126.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a regular file.

        Raises:
            OSError: if it is missing, a directory, not regular, not allowed or larger than `max_bytes`.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file; missing parent directories are created.

        Raises:
            OSError: if it is not allowed, a directory is in the way, or the workspace is full.
        """
        ...

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        """Extract a tar archive below a folder, which is created if missing.

        Existing files are replaced; links below the folder are not followed. `tools.sandbox.archive.pack`
        builds an archive.

        Raises:
            OSError: if a member is not a plain file or folder or would leave the folder (then nothing is
                written); or if something is in the way, not allowed, or the workspace is full.
        """
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Stop all processes of earlier commands during an `async with` block, and resume them afterwards.

        Commands and file operations of the block work, and processes that they start run. A stopped process
        that resumes by itself is killed.
        """
        ...

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return a folder as an uncompressed tar archive.

        Links, FIFOs, sockets and devices are left out. `tools.sandbox.archive.unpack` reads it without
        writing to this machine.

        Raises:
            OSError: if it is missing, not a folder, not allowed, or the archive exceeds `max_bytes`.
        """
        ...


async def run_python(sandbox: Sandbox, source: str, *, stdin: bytes, timeout_s: float) -> ExecResult:
    """Run a program of the standard library, in a running interpreter if possible.

    It must not contain secrets: it may share memory with the supervisor.
    """
    if (warm := getattr(sandbox, "run_python", None)) is not None:
        return await warm(source, stdin=stdin, timeout_s=timeout_s)
    return await sandbox.exec(["python3", "-I", "-S", "-c", source], stdin=stdin, timeout_s=timeout_s)


async def listener(sandbox: Sandbox) -> "socket.socket":
    """Return a TCP socket of this process that listens on the sandbox's loopback; the caller closes it.

    Programs inside reach nothing else of this machine. Backends provide an optional method `listener()`.

    Raises:
        IsolationError: if the backend or this machine cannot do it.
        SandboxUnavailable: if the sandbox is gone.
    """
    if (own := getattr(sandbox, "listener", None)) is not None:
        return await own()
    raise IsolationError(
        f"sandbox backend {sandbox.record.backend!r} cannot listen in its sandboxes; use 'local' or 'docker'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A part of a sandbox's initial state; see `tools.sandbox.layers`."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the backend's opener."""
    fill: Callable[[Sandbox], Awaitable[None]] | None = None
    """Adds the layer to an open sandbox."""
    by_agent: bool = False

    async def put_into(self, sandbox: Sandbox) -> None:
        if self.fill is not None:
            await self.fill(sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Layer):
    """The initial state of copies of a prepared sandbox.

    Backends provide an optional method `snapshot()` of their sandboxes.
    """

    discard: Callable[[], Awaitable[None]]
    """Releases it after all sandboxes that used it are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEntry:
    """A sandbox or its remains."""

    backend: str
    name: str
    """The backend's name: a control group, folder or container."""
    owner: int | None
    """Process id of the program that opened it, None if unknown."""
    state: Literal["in use", "orphan", "unknown"]
    """`orphan`: the owner provably ended. `unknown`: of another machine, boot or PID namespace."""


class SandboxBackend(Protocol):
    """A function that opens sandboxes, registered in the entry point group `turnwise.sandboxes`."""

    def __call__(
        self,
        limits: SandboxLimits,
        *,
        allow_unsafe: bool = False,
        image: str | None = None,
        verifier_files: Mapping[str, bytes] | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox with `async with`; nothing of it remains afterwards.

        Args:
            limits: all are enforced.
            allow_unsafe: accept weaker isolation.
            image: None for the backend's default.
            verifier_files: see `open_sandbox`; backends that cannot protect them omit this parameter.

        Raises:
            ConfigError: if limits contradict each other, or the backend has no images.
            IsolationError: if a limit cannot be enforced and `allow_unsafe` is not set.
            SandboxCreateError: if it does not start; nothing remains.
        """
        ...


NONE = "none"
"""The setting for rollouts without a sandbox."""


class NoSandbox:
    """Takes the place of a `Sandbox`; any use raises ConfigError."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # Python itself looks up dunder names.
            raise AttributeError(name)
        raise ConfigError(
            f"sandbox.{name}: this rollout has no sandbox, since `sandbox` is {NONE!r}; choose "
            "--env.sandbox local (or set the class attribute), or do without it"
        )


def record_of(sandbox: Sandbox) -> SandboxRecord | None:
    """Return how a rollout was isolated, or None without a sandbox."""
    return None if isinstance(sandbox, NoSandbox) else sandbox.record
