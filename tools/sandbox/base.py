"""What a sandbox is: the protocol that every backend keeps, its limits and its results."""

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
    """What one sandbox may use. A limit that cannot be enforced is an error, never ignored."""

    memory_mb: int = 1024
    pids: int = 256
    cpus: float | None = None
    """CPU quota in cores; `None` sets no quota."""
    disk_mb: int = 256
    """Size of the writable workspace; kept below the memory limit, because it lives in memory if possible."""
    file_mb: int = 128
    """Largest single file a command may write."""
    output_mb: int = 64
    """A command that writes more than this to one stream is killed."""
    network: Network = "none"
    """`none`: nothing but a loopback of its own. `full`: the host's network, and all that it reaches."""
    read_only: tuple[str, ...] = ()
    """Folders of this machine that are lent, at the same paths inside."""
    packages: tuple[str, ...] = ()
    """What Python imports inside beside its own: requirements, such as `pytest==8.4.2`, or the one path of a
    lock file (`.txt` or `.lock`, with hashes); local sandboxes only."""

    def __post_init__(self) -> None:
        """Refuse what no backend can enforce; another word for `none` must not open the network.

        Raises:
            ConfigError: a limit is no number above 0, `network` is neither of its words, or `packages` is no
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
    """Raise ConfigError for a folder that no sandbox can show at its own path.

    Args:
        folder: of this machine.
        with_parents: whether agents get to it through the folders above it, as without mounts of their own.
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
    """What one item's sandbox has of its own; unset fields follow the settings."""

    image: str | None = None
    """For backends with images."""
    memory_mb: int | None = None
    pids: int | None = None
    cpus: float | None = None
    disk_mb: int | None = None
    network: Network | None = None
    read_only: tuple[str, ...] | None = None
    packages: tuple[str, ...] | None = None
    """See `SandboxLimits.packages`."""
    whole: bool = False
    """For docker: the agent is root of its container, on the image's own files and in its WORKDIR."""
    prepared: str | None = None
    """Key of what `prepare_sandbox` leaves, once for all sandboxes with this key."""

    def __post_init__(self) -> None:
        """Refuse what no sandbox can have.

        Raises:
            ConfigError: a limit as `SandboxLimits` refuses it, or an image that is no name.
        """
        self.limits(SandboxLimits())
        image: Any = self.image
        if image is not None and not (isinstance(image, str) and image):
            raise ConfigError(f"a sandbox cannot have image={image!r:.100}; give its name, or None")
        key: Any = self.prepared
        if key is not None and not (isinstance(key, str) and key):
            raise ConfigError(f"a sandbox cannot have prepared={key!r:.100}; give a key, or None")

    def limits(self, default: SandboxLimits) -> SandboxLimits:
        """The limits, overridden by the fields that are set."""
        names = ("memory_mb", "pids", "cpus", "disk_mb", "network", "read_only", "packages")
        own = {name: getattr(self, name) for name in names}
        return replace(default, **{name: value for name, value in own.items() if value is not None})


class LimitOverrides(TypedDict, total=False):
    """The fields of `SandboxLimits` as keywords."""

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
    """How a rollout was isolated, kept in its trajectory."""

    backend: str
    tier: str
    """What isolates, for example `B` (namespaces) or `C` (Landlock) for the local backend."""
    limits: SandboxLimits
    enforced: tuple[str, ...]
    """Names of the limits that hold, found by doing."""
    image: str | None = None
    """Digest of the image that it was made from; `None` for a backend without images."""
    lacks: tuple[str, ...] = ()
    """What other sandboxes give and this one does not, such as `network`: the host's is within reach.

    See "Tiers" in docs/sandboxes.md for the names. A check about one of them is not asked.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command did. A failed or timed-out command is a result, not an error."""

    exit_code: int
    """Shell convention: 128 + signal when a signal ended it."""
    stdout: bytes
    """Head and tail are kept, the middle is cut."""
    stderr: bytes
    stdout_total: int
    """Bytes written, kept or not."""
    stderr_total: int
    timed_out: bool = False
    oom_killed: bool = False
    shell_restarted: bool = False
    """The persistent shell had to be replaced: its directory and variables are gone."""
    duration_s: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether output was cut from the middle of a stream."""
        return self.stdout_total > len(self.stdout) or self.stderr_total > len(self.stderr)

    def text(self) -> str:
        """Standard output, decoded; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


class ExecOptions(TypedDict, total=False):
    """The keywords of `Sandbox.exec` but its time limit, for functions that pass them on."""

    stdin: bytes
    env: Mapping[str, str] | None
    cwd: str | None
    max_output_bytes: int


class SandboxFileError(OSError):
    """Beside the builtin kind, the type of every error of a file operation in a sandbox.

    What causes them is within the agent's reach, unlike an `OSError` of a hook's own.
    """


class Sandbox(Protocol):
    """An isolated machine for one rollout.

    A command that fails is an `ExecResult`. A file that is missing or refused raises the builtin
    `OSError` family (`FileNotFoundError`, `IsADirectoryError`, `PermissionError`, …). Only a broken
    sandbox raises `SandboxError`. Paths that are not absolute start at `workdir`.
    """

    @property
    def record(self) -> SandboxRecord:
        """How this sandbox isolates."""
        ...

    @property
    def workdir(self) -> str:
        """The writable workspace, an absolute path inside."""
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
        """Run one command on its own: a string through `sh -c`, a sequence as argv.

        When the time is up every process of the command dies, whatever group or session it moved to.
        A program that cannot start is a result, too: 127 where it is missing, else 126.

        Raises:
            OSError: a `cwd` was named that is missing, not a directory or not allowed.
        """
        ...

    async def shell(
        self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> ExecResult:
        """Run a command in the sandbox's one persistent shell: directory, variables and jobs stay.

        stderr is kept apart from stdout. On timeout the command dies; the shell and jobs that earlier
        commands left in the background live on. What the agent does to the shell is a result: after
        `chmod 0 .; exit` no other shell can start there, and commands end with 126.
        """
        ...

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The content of a regular file, resolved inside the sandbox.

        Raises:
            OSError: missing, a directory, not allowed, not a regular file, or larger than `max_bytes`.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file, resolved inside the sandbox; missing parent directories are made.

        Raises:
            OSError: not allowed, a directory is in the way, or the workspace is full.
        """
        ...

    async def put_archive(self, archive: bytes, path: str = ".") -> None:
        """Write the files of a tar archive below a folder, which is made when it is missing.

        Files that are there are replaced; nothing is written through a link below the folder.
        `tools.sandbox.archive.pack` makes such an archive.

        Raises:
            OSError: a member is more than a plain file or folder, or would leave the folder, and then nothing
                is written; or it is in the way of something, not allowed, or the workspace is full.
        """
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """For `async with`: what commands left running is stopped meanwhile, and goes on afterwards.

        Files stay as they are while they are looked at, and commands and file operations of the block work.
        What these start runs. A process that makes itself go on is killed.
        """
        ...

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The files and folders below a folder as an uncompressed tar archive.

        Links, FIFOs, sockets and devices are left out. `tools.sandbox.archive.unpack` reads it without
        writing anything to this machine.

        Raises:
            OSError: missing, not a folder, not allowed, or the archive would be larger than `max_bytes`.
        """
        ...


async def run_python(sandbox: Sandbox, source: str, *, stdin: bytes, timeout_s: float) -> ExecResult:
    """Run a program that needs the standard library alone, where there is one in an interpreter that runs.

    Not for what the agent must not know: its memory may be that of the sandbox's supervisor.
    """
    if (warm := getattr(sandbox, "run_python", None)) is not None:
        return await warm(source, stdin=stdin, timeout_s=timeout_s)
    return await sandbox.exec(["python3", "-I", "-S", "-c", source], stdin=stdin, timeout_s=timeout_s)


async def listener(sandbox: Sandbox) -> "socket.socket":
    """A TCP socket of this process that listens on a sandbox's own loopback: on 127.0.0.1 and a free port.

    Programs in there can connect to it and to nothing else of this machine. The caller closes it. A backend
    provides it by a method `listener()`, which is no required part of `Sandbox`.

    Raises:
        IsolationError: the backend cannot, here or at all.
        SandboxUnavailable: the sandbox is gone.
    """
    if (own := getattr(sandbox, "listener", None)) is not None:
        return await own()
    raise IsolationError(
        f"sandbox backend {sandbox.record.backend!r} cannot listen in its sandboxes; use 'local' or 'docker'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A part of what a sandbox has before anything runs in it; see `tools.sandbox.layers`."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keywords of the backend's opener."""
    fill: Callable[[Sandbox], Awaitable[None]] | None = None
    """Puts it into a sandbox that was opened without it."""
    by_agent: bool = False
    """Whether an agent made it."""

    async def put_into(self, sandbox: Sandbox) -> None:
        """Put it into an open sandbox, where it needs no keyword of the opener."""
        if self.fill is not None:
            await self.fill(sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Layer):
    """What sandboxes begin with that are to be like one that was prepared.

    A backend that makes it quickly gives one by a method `snapshot()` of its sandboxes, which is no required
    part of `Sandbox`.
    """

    discard: Callable[[], Awaitable[None]]
    """Gives it back, once no sandbox that began with it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEntry:
    """One sandbox, or what is left of it."""

    backend: str
    name: str
    """What the backend calls it: a control group, a folder or a container."""
    owner: int | None
    """Process id of the program that opened it; `None` when that cannot be known here."""
    state: Literal["in use", "orphan", "unknown"]
    """`orphan`: its owner is provably dead. `unknown`: of another machine, boot or PID namespace."""


class SandboxBackend(Protocol):
    """What opens sandboxes of one kind: a function, registered as an entry point `turnwise.sandboxes`."""

    def __call__(
        self,
        limits: SandboxLimits,
        *,
        allow_unsafe: bool = False,
        image: str | None = None,
        verifier_files: Mapping[str, bytes] | None = None,
    ) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for `async with`; nothing of it is left afterwards.

        Args:
            limits: enforced, all of them.
            allow_unsafe: whether weaker isolation than asked for is accepted.
            image: what the sandbox is made from; `None` for the backend's own choice.
            verifier_files: given only for a verification, see `open_sandbox`. A backend that cannot keep them
                from change has no such keyword.

        Raises:
            ConfigError: limits that contradict each other, or an image where there are none.
            IsolationError: a limit that cannot be enforced here, and `allow_unsafe` is not set.
            SandboxCreateError: it could not be started; nothing of it is left.
        """
        ...


NONE = "none"
"""The kind of sandbox that is never opened."""


class NoSandbox:
    """In the place of a `Sandbox`: any use of it is a `ConfigError`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # What Python asks of every object is no use of a sandbox.
            raise AttributeError(name)
        raise ConfigError(
            f"sandbox.{name}: this rollout has no sandbox, since `sandbox` is {NONE!r}; choose "
            "--env.sandbox local (or set the class attribute), or do without it"
        )


def record_of(sandbox: Sandbox) -> SandboxRecord | None:
    """How a rollout was isolated; `None` where it had no sandbox."""
    return None if isinstance(sandbox, NoSandbox) else sandbox.record
