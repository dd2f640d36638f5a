"""A running supervisor on the host's side."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tools.sandbox.host.layout import verifier_env
from tools.sandbox.host.ownership import remove_folder
from tools.sandbox.inside.account import Configuration
from tools.sandbox.inside.messages import Died, Inbox, Message, Ready
from tools.sandbox.local import cgroup, tiers
from tools.sandbox.local.fork_server import ForkedProcess

_START_S = 30.0
_STOP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    process: ForkedProcess
    channel: socket.socket
    workdir: str
    enforced: frozenset[str]
    lacks: frozenset[str]
    group: cgroup.Group
    directory: str | None
    """On the host, for tiers without their own file system."""
    again: Callable[[ExitStack], tuple[socket.socket, ForkedProcess]] | None = None
    """Starts another supervisor, if the agent can kill its own."""


def stop(session: Session) -> None:
    """End a session with everything in it; blocks."""
    # The supervisor ends with its channel; if it is process 1, all others end, too.
    with ExitStack() as steps:
        # Each step runs even if an earlier one fails.
        if session.directory is not None:
            steps.callback(_remove, session.directory)
        steps.callback(cgroup.remove, session.group)
        steps.callback(end, session.process)
        session.channel.close()


def _remove(folder: str) -> None:
    """Remove a folder without waiting long: a full one may take 30 s."""
    removal = threading.Thread(target=remove_folder, args=(folder,))
    try:
        removal.start()
    except RuntimeError:
        remove_folder(folder)
    else:
        removal.join(_STOP_S)


def end(process: ForkedProcess) -> None:
    """End a supervisor after its channel was closed."""
    try:
        if not process.ends(within_s=_STOP_S):
            process.kill()
            process.ends(within_s=_STOP_S)
    finally:
        process.close()


def greet(channel: socket.socket, process: ForkedProcess, config: bytes = b"") -> None:
    """Send the remaining configuration and wait until the supervisor is ready."""
    channel.settimeout(_START_S)
    try:
        channel.sendall(config)
        message = receive(channel)
        reason = message.reason if isinstance(message, Died) else repr(message)
    except ConnectionError:
        process.ends(within_s=_STOP_S)
        raise
    if message != Ready():
        process.ends(within_s=_STOP_S)
        raise OSError(reason)


def receive(channel: socket.socket) -> Message:
    inbox = Inbox()
    while (message := inbox.next()) is None:
        data = channel.recv(1 << 16)
        if not data:
            raise ConnectionResetError("it ended without a message")
        inbox.add(data)
    return message


def configuration(
    settings: Mapping[str, str],
    seccomp: bytes = b"",
    steps: Sequence[Sequence[str]] = (),
    files: Mapping[str, bytes] | None = None,
) -> bytes:
    workdir = settings["workdir"]
    env = {
        "PATH": tiers.search_path(), "HOME": workdir, "PWD": workdir, "USER": "agent", "LOGNAME": "agent",
        "LANG": "C.UTF-8", "TERM": "dumb",
    }  # fmt: skip
    if "tmp_dir" in settings:
        env["TMPDIR"] = settings["tmp_dir"]
    if packages := settings["packages"]:
        env |= {"PATH": f"{packages}/bin:{env['PATH']}", "PYTHONPATH": packages}
    if settings["held"]:
        env |= verifier_env(settings["held"], env)
    return Configuration(
        dict(settings), env, seccomp, [list(step) for step in steps], list((files or {}).items())
    ).encode()
