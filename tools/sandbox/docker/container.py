"""One container: settings, start, supervisor and end. Every function blocks."""

import marshal
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tools.errors import ConfigError, IsolationError, SandboxCreateError, SandboxUnavailable
from tools.sandbox.base import SandboxLimits
from tools.sandbox.docker.engine import (
    BAD_REQUEST,
    CONFLICT,
    NOT_FOUND,
    Connection,
    Engine,
    EngineError,
    Image,
)
from tools.sandbox.host import layout, seccomp, supervisor_code
from tools.sandbox.host.layout import (
    HOST_NAME,
    RESERVED_BYTES,
    RESERVED_PIDS,
    RUN_DIR,
    SYSTEM_PATH,
    VERIFIER_DIR,
    WORKDIR,
)
from tools.sandbox.host.silence import SilentStartError
from tools.sandbox.inside import kernel
from tools.sandbox.inside.account import Configuration
from tools.sandbox.inside.messages import Died, Done, Facts, Ready, RunProgram, encode

_ALWAYS = ("file_mb", "output_mb")
"""Enforced by the supervisor; `problems` checks the network."""
_ROOT_MAY = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "NET_BIND_SERVICE": 10,
}  # fmt: skip
"""Capabilities for installing packages, with the kernel's numbers."""
_OF_ROOT = sum(1 << number for number in _ROOT_MAY.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    memory_bytes: int | None
    pids: int | None
    cpus: float | None
    privileges: tuple[str, str]
    """Effective capabilities and the no_new_privs bit, as in /proc."""
    devices: tuple[str, ...]
    usable: tuple[str, ...]

    @classmethod
    def of(cls, facts: Facts) -> "ContainerFacts":
        lines = dict(line.split(":", 1) for line in facts.status.splitlines() if ":" in line)
        quota = facts.cpu.split()
        return cls(
            memory_bytes=_number(facts.memory),
            pids=_number(facts.pids),
            cpus=int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdigit() else None,
            privileges=(lines.get("CapEff", "?").strip(), lines.get("NoNewPrivs", "?").strip()),
            devices=tuple(line.split(":")[0].strip() for line in facts.devices.splitlines() if ":" in line),
            usable=tuple(facts.usable.split()),
        )

    def problems(self, limits: SandboxLimits, *, whole: bool = False) -> list[str]:
        """Describe privileges beyond the required ones, and what is missing."""
        capabilities, no_new = self.privileges
        is_root = whole and not int(capabilities, 16) & ~_OF_ROOT
        beyond = set(self.devices) - {"lo"}
        wrong = {
            f"capabilities ({capabilities})": capabilities.strip("0") != "" and not is_root,
            "privileges to gain": no_new != "1",
            f"network devices ({', '.join(self.devices)})": limits.network == "none" and bool(beyond),
            "no network, for lack of a bridge (`docker network ls`)": limits.network == "full" and not beyond,
            "no writable workspace": "workdir" not in self.usable,
            "no writable /tmp": "tmp" not in self.usable,
        }
        return [problem for problem, found in wrong.items() if found]

    def list_enforced(self, limits: SandboxLimits, *, whole: bool = False) -> tuple[str, ...]:
        most_bytes = (limits.memory_mb << 20) + RESERVED_BYTES
        holds = {
            "network": limits.network == "none",
            "memory_mb": self.memory_bytes is not None and self.memory_bytes <= most_bytes,
            "pids": self.pids is not None and self.pids <= limits.pids + RESERVED_PIDS,
            "cpus": limits.cpus is not None and self.cpus is not None and self.cpus <= limits.cpus * 1.01,
        }
        disk = "disk_mb_watched" if whole else "disk_mb"
        return tuple(sorted([disk, *_ALWAYS, *(name for name, found in holds.items() if found)]))


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


NEEDS = "an image needs python3 (3.9 or newer) on its PATH, /bin/sh and /bin/bash"

_START_S = 120.0
_REMOVE_S = 20.0
_END_IS_SEEN_S = 2.0
_CLOSED_CODE = 0
"""Exit code of a supervisor after its connection was closed; no signal from inside causes it."""
_ANSWER_S = 10.0
_FEW_UIDS, _FEW_UIDS_COUNT = 10_000, 50_000
_TTL_S, _LOOK_S = 24 * 3600, 60
# Ends the container, which removes itself, once only its own processes run: the supervisor ends with its
# host. The time to live covers unnoticed ends. It starts no process, so it works in a full container.
_KEEP_ALIVE = (
    f"exec {{quiet}}<> <(:); wait $!; for ((i = 0; i < {_TTL_S // _LOOK_S}; i++)); do "
    f"read -rt {_LOOK_S} -u $quiet; set -- /proc/[0-9]*; (($# > $0)) || exit 0; done"
)
_NOT_FOUND_CODES = (126, 127)
_NEW_NET = 0x40000000
_HOME = "/root"
"""Unreadable in most images; root users lend folders below it."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    image: Image
    limits: SandboxLimits
    holds: bool = False
    """The workspace belongs to another user and takes a verifier's files."""
    whole: bool = False
    """The agent is root, on the image's own file system."""
    held: tuple[tuple[str, str], ...] = ()
    """A verifier's read-only mounts for `whole`: host path, path inside."""

    @property
    def workdir(self) -> str:
        return (self.image.workdir or _HOME) if self.whole else WORKDIR


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    id: str
    spec: Spec
    uid: int
    connection: Connection
    facts: ContainerFacts


def start(engine: Engine, spec: Spec, labels: dict[str, str], discard: Callable[[str], None]) -> Container:
    """Create a container and wait until its supervisor answers; `discard` removes one that does not work.

    Raises:
        SandboxCreateError: if it does not start.
        ConfigError: if the image lacks something.
        IsolationError: if the agent would have too many privileges.
    """
    # Processes and quotas are counted per user over all containers.
    few, base = (_FEW_UIDS_COUNT, _FEW_UIDS) if engine.maps_users else (layout.UID_COUNT, layout.UID_BASE)
    uid = 0 if spec.whole else base + secrets.randbelow(few)
    # The number of its own processes: an init is one, unless the agent is root.
    keep_alive = ["/bin/bash", "-c", _KEEP_ALIVE, "1" if spec.whole else "2"]
    try:
        made = engine.create(
            spec.image.id, keep_alive, _host(spec, uid), user="0:0",
            hostname=HOST_NAME, working_dir="/", labels=labels,
        )  # fmt: skip
    except EngineError as error:
        raise SandboxCreateError(f"no container of image {spec.image.digest}: {error}") from error
    try:
        engine.start(made)
    except EngineError as error:
        discard(made)
        raise _not_started(spec, error, ended=False) from error
    try:
        if _lends_in_home(spec):
            # The mount has the mode of the image's folder.
            _run_as_root(engine, made, f"import os; os.chmod({_HOME!r}, 0o755)")
        connection, facts = supervise(engine, made, spec, uid)
    except EngineError as error:
        ended = _has_ended(engine, made)
        discard(made)
        raise _not_started(spec, error, ended=ended) from error
    except BaseException:
        discard(made)
        raise
    return Container(id=made, spec=spec, uid=uid, connection=connection, facts=facts)


def supervise(
    engine: Engine, container: str, spec: Spec, uid: int, *, replaces: bool = False
) -> tuple[Connection, ContainerFacts]:
    """Start the supervisor, which first kills every process of its user; raises as `start`."""
    argv = ["python3", "-I", "-S", "-c", supervisor_code.CONTAINER]
    exec_id, sock = engine.open_exec(container, argv, f"{uid}:{uid}")
    connection = Connection(sock, exec_id)
    try:
        code = supervisor_code.archive()
        sent = len(code).to_bytes(4, "big") + code + _config(engine, spec, uid, replaces)
        connection.send(sent, _START_S)
        found = ContainerFacts.of(_expect(connection, Facts))
        if not replaces and "bash" not in found.usable:
            raise ConfigError(f"image {spec.image.digest} has no /bin/bash; {NEEDS}")
        if not replaces and (problems := found.problems(spec.limits, whole=spec.whole)):
            raise IsolationError(f"a container of this engine leaves the agent {', '.join(problems)}")
        _expect(connection, Ready)
    except (EOFError, OSError) as error:
        connection.close()
        raise _explain_end(engine, exec_id, spec, connection.last_words, error) from error
    except BaseException:
        connection.close()
        raise
    return connection, found


def hold(engine: Engine, container: Container, files: Mapping[str, bytes]) -> None:
    """Write a verifier's files as another user, before the agent's first command."""
    argv = ["python3", "-I", "-S", "-c", supervisor_code.HELD_FILES]
    try:
        exec_id, sock = engine.open_exec(container.id, argv, "0:0")
        with closing(Connection(sock)) as connection:
            try:
                data = marshal.dumps((list(files.items()), VERIFIER_DIR, WORKDIR, encode(Ready())), 2)
                connection.send(len(data).to_bytes(8, "big") + data, _START_S)
                connection.receive(_START_S)
            except (EOFError, OSError) as error:
                code, words = engine.exec_code(exec_id), connection.last_words
                reason = words.rpartition("\n")[2] or f"exit code {code}"
                raise SandboxCreateError(f"the verifier's files cannot be written: {reason}") from error
    except EngineError as error:
        raise SandboxCreateError(f"the verifier's files cannot be written: {error}") from error


def listener(engine: Engine, container: Container) -> socket.socket:
    def listen_in(network: int) -> socket.socket:
        if kernel.libc.setns(network, _NEW_NET):
            raise kernel.failure("setns")
        return socket.create_server(("127.0.0.1", 0))

    try:
        process = Path(f"/proc/{engine.first_process(container.id)}")
    except EngineError as error:
        raise SandboxUnavailable(f"the container is gone: {error}") from error
    try:
        if container.id not in (process / "cgroup").read_text():
            raise ProcessLookupError("it is not on this machine")
        # The thread ends in that namespace.
        with (process / "ns/net").open() as network, ThreadPoolExecutor(1) as thread:
            return thread.submit(listen_in, network.fileno()).result()
    except OSError as error:
        raise IsolationError(
            f"the network of a container cannot be entered ({error}); run as root on the machine of the "
            "engine and in its PID namespace, or use the local sandbox"
        ) from error


def clear(engine: Engine, container: Container) -> None:
    """Kill all agent processes, which might kill the next supervisor."""
    _run_as_root(engine, container.id, f"whole = {container.spec.whole}\n{supervisor_code.CLEAR}")


def judging(engine: Engine, container: Container) -> dict[str, Callable[[], Any]]:

    def wake() -> bool:
        with suppress(EngineError):
            return "stopped" in _run_as_root(engine, container.id, supervisor_code.WAKE)
        return False

    return {"counters": partial(engine.counters, container.id), "wake": wake}


def refuse_cut(engine: Engine, connection: Connection) -> None:
    """Raise EngineError if the connection was lost although nobody killed the supervisor."""
    is_cut = connection.channel is not None and connection.channel.is_cut
    if is_cut and _exit_code(engine, connection.exec_id) in (None, _CLOSED_CODE):
        raise EngineError("the connection to its supervisor was lost", None)


def _run_as_root(engine: Engine, container: str, source: str) -> str:
    """Run a program with a time limit; return its stderr."""
    argv = ["python3", "-I", "-S", "-c", source]
    connection = Connection(engine.open_exec(container, argv, "0:0")[1])
    # The program sends no message; only its end matters.
    with closing(connection), suppress(EOFError, OSError):
        connection.receive(_ANSWER_S)
    return connection.last_words


def lacks(engine: Engine, limits: SandboxLimits, *, whole: bool = False) -> tuple[str, ...]:
    missing = {
        "network": limits.network == "full", "oom_score": True, "system_calls": not _filter(engine),
        "disk_mb": whole,
    }  # fmt: skip
    return tuple(name for name, is_missing in missing.items() if is_missing)


def answers(container: Container) -> bool:
    request = RunProgram(("/bin/sh", "-c", "echo on"), (), "", b"", _ANSWER_S, 64)
    try:
        container.connection.send(encode(request), _ANSWER_S)
        reply = container.connection.receive(_ANSWER_S)
    except (EOFError, OSError):
        return False
    return isinstance(reply, Done) and reply.stdout == b"on\n"


def remove(engine: Engine, container: str) -> None:
    """Kill and remove a container, and wait until it is gone."""
    deadline = time.monotonic() + _REMOVE_S
    while True:
        try:
            engine.remove(container)
        except EngineError as error:
            if error.status == NOT_FOUND:
                return
            # The container may be removing itself.
            if error.status != CONFLICT or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _host(spec: Spec, uid: int) -> dict[str, Any]:
    limits = spec.limits
    memory, disk = (limits.memory_mb << 20) + RESERVED_BYTES, limits.disk_mb << 20
    host: dict[str, Any] = {
        "auto_remove": True,
        # A root agent reaches every process but the first.
        "init": not spec.whole,
        "cap_drop": ["ALL"],
        # KILL lets our programs, which run as root, end the agent's processes.
        "cap_add": list(_ROOT_MAY) if spec.whole else ["KILL"],
        "security_opt": ["no-new-privileges"],
        "mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
            for source, target in (*((each, each) for each in limits.read_only), *spec.held)
        ],
        # The host's network would expose its sockets.
        "network_mode": "none" if limits.network == "none" else "bridge",
        "ipc_mode": "private",
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": limits.pids + RESERVED_PIDS,
        "read_only": not spec.whole,
        "shm_size": layout.part(disk, 8),
        "log_config": {"Type": "none"},
        # The agent could lock its own directory.
        "tmpfs": {RUN_DIR: _tmpfs(8 << 20, "mode=1777")},
    }
    if not spec.whole:
        owner = "mode=1777" if spec.holds else f"uid={uid},gid={uid},mode=755"
        host["tmpfs"] |= {
            WORKDIR: _tmpfs(disk, owner), "/tmp": _tmpfs(layout.part(disk, 4), "mode=1777"),
        }  # fmt: skip
    if _lends_in_home(spec):
        host["tmpfs"][_HOME] = _tmpfs(1 << 20, "mode=755")
    if spec.holds:
        host["tmpfs"][VERIFIER_DIR] = _tmpfs(disk, "mode=755")
    if limits.cpus is not None:
        host["nano_cpus"] = int(limits.cpus * 1e9)
    return host


def _lends_in_home(spec: Spec) -> bool:
    return not spec.whole and any(folder.startswith(f"{_HOME}/") for folder in spec.limits.read_only)


def _tmpfs(size: int, owner: str) -> str:
    return f"rw,exec,nosuid,nodev,size={size},nr_inodes={layout.most_files(size)},{owner}"


def _config(engine: Engine, spec: Spec, uid: int, replaces: bool) -> bytes:
    limits = spec.limits
    settings = {
        "drop": "0", "uid": str(uid), "gid": str(uid), "workdir": spec.workdir, "run_dir": RUN_DIR,
        "fsize": str(limits.file_mb << 20), "as": "", "output": str(limits.output_mb << 20),
        # The supervisor is a process of the same user.
        "nproc": "" if spec.whole else str(limits.pids + 1),
        "guard_fd": "-1", "shell_lost": "1" if replaces else "0",
    }  # fmt: skip
    of_image = dict(pair.split("=", 1) for pair in spec.image.env if "=" in pair)
    env = {
        "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", **of_image,
        "HOME": _HOME if spec.whole else WORKDIR, "PWD": spec.workdir, "USER": "agent", "LOGNAME": "agent",
        "TERM": "dumb",
    }  # fmt: skip
    if spec.whole:
        env |= {"USER": "root", "LOGNAME": "root"}
    if spec.holds or spec.held:
        own = layout.verifier_env(layout.VERIFIER_DIR, env)
        if spec.whole:  # HOME is part of the machine that is judged
            del own["HOME"]
        env |= own
    return Configuration(settings, env, _filter(engine), [], []).encode()


def _filter(engine: Engine) -> bytes:
    # Call numbers depend on the architecture; otherwise the engine's filter applies.
    return seccomp.program() if engine.arch == os.uname().machine else b""


def _expect(connection: Connection, kind: type[M]) -> M:
    message = connection.receive(_START_S)
    if isinstance(message, Died):
        raise SandboxCreateError(f"its supervisor broke: {message.reason}")
    if not isinstance(message, kind):
        raise EOFError
    return message


def _exit_code(engine: Engine, exec_id: str) -> int | None:
    deadline = time.monotonic() + _END_IS_SEEN_S
    while (code := engine.exec_code(exec_id)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return code


def _has_ended(engine: Engine, container: str) -> bool:
    # Processes end before the engine reports the container's end.
    deadline = time.monotonic() + _END_IS_SEEN_S
    while True:
        try:
            if not engine.running(container):
                return True
        except EngineError:
            return False
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def _not_started(spec: Spec, error: EngineError, *, ended: bool) -> SandboxCreateError | ConfigError:
    if ended or error.status == BAD_REQUEST:
        # The message depends on how far the container's end has come.
        return ConfigError(f"a container of image {spec.image.digest} does not stay up: {error}; {NEEDS}")
    return SandboxCreateError(f"a container of image {spec.image.digest} does not start: {error}")


def _explain_end(engine: Engine, exec_id: str, spec: Spec, words: str, error: Exception) -> Exception:
    is_end = isinstance(error, EOFError)
    try:
        code = _exit_code(engine, exec_id)
    except EngineError as gone:
        return SilentStartError(f"its supervisor is gone: {gone}")
    if code is None and is_end:
        return EngineError("the connection to a program that runs was lost", None)
    if code is None:
        return SilentStartError(f"its supervisor does not answer: {words}")
    if code in _NOT_FOUND_CODES:
        return ConfigError(f"image {spec.image.digest} cannot start python3; {NEEDS}")
    return SandboxCreateError(f"its supervisor ended: {words or f'exit code {code}'}")
