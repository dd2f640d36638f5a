"""Messages between host and supervisor (Python 3.9 or newer), and their binary format."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Union

HEADER_BYTES = 4


class RunProgram(NamedTuple):
    argv: tuple[str, ...]
    env: tuple[str, ...]
    """`NAME=value`, added to the default environment."""
    cwd: str
    """Relative to the workspace."""
    stdin: bytes
    timeout_s: float
    max_output_bytes: int


class RunPython(NamedTuple):
    """Run our own program in a fork of the supervisor."""

    source: str
    stdin: bytes
    timeout_s: float
    max_output_bytes: int


class RunInShell(NamedTuple):
    command: str
    timeout_s: float
    max_output_bytes: int


class ReadFile(NamedTuple):
    path: str
    max_bytes: int
    timeout_s: float
    max_output_bytes: int


class WriteFile(NamedTuple):
    path: str
    mode: int
    data: bytes
    timeout_s: float
    max_output_bytes: int


class PackFolder(NamedTuple):
    path: str
    max_bytes: int
    known: bytes
    """JSON of size, mode and SHA-256 by path; equal files are named on stderr instead."""
    timeout_s: float
    max_output_bytes: int


class UnpackArchive(NamedTuple):
    path: str
    archive: bytes
    timeout_s: float
    max_output_bytes: int


class PackTree(NamedTuple):
    """Send everything below a folder with links, modes and times."""

    path: str
    timeout_s: float
    max_output_bytes: int


class UnpackTree(NamedTuple):
    """Extract an archive of `PackTree` without replacing anything."""

    path: str
    archive: bytes
    timeout_s: float
    max_output_bytes: int


class SetPause(NamedTuple):
    """Stop or resume the processes of earlier commands."""

    on: bool
    timeout_s: float
    max_output_bytes: int


class Cancel(NamedTuple):
    """Kill the running command; its result follows."""


class Listen(NamedTuple):
    """Pass a socket that listens on the sandbox's loopback."""


class Ready(NamedTuple):
    """The supervisor is ready for requests."""


class Done(NamedTuple):
    exit_code: int
    """An errno after file operations."""
    stdout: bytes
    stderr: bytes
    stdout_total: int
    stderr_total: int
    timed_out: bool
    oom_killed: bool
    shell_restarted: bool
    duration_s: float


class Refused(NamedTuple):
    """The request started no process."""

    errno: int


class Died(NamedTuple):
    """The supervisor's last message: why it failed."""

    reason: str


class Forked(NamedTuple):
    """The answer of a fork server, with a pidfd."""


class Facts(NamedTuple):
    """The kernel's files of a container, sent before `Ready`."""

    memory: str
    pids: str
    cpu: str
    status: str
    devices: str
    usable: str


FileRequest = Union[ReadFile, WriteFile, PackFolder, UnpackArchive, PackTree, UnpackTree]  # noqa: UP007  # for 3.9
Request = Union[RunProgram, RunPython, RunInShell, FileRequest, SetPause]  # noqa: UP007  # for 3.9
Reply = Union[Done, Refused]  # noqa: UP007  # for 3.9
Message = Union[Request, Cancel, Listen, Ready, Reply, Died, Forked, Facts]  # noqa: UP007  # for 3.9

FILE_REQUESTS = (ReadFile, WriteFile, PackFolder, UnpackArchive, PackTree, UnpackTree)
OWN_REQUESTS = (*FILE_REQUESTS, SetPause)
"""Requests that run none of the agent's programs and can be repeated."""

_KINDS: dict[bytes, type[Any]] = {
    b"X": RunProgram, b"Y": RunPython, b"S": RunInShell, b"G": ReadFile, b"P": WriteFile,
    b"A": PackFolder, b"U": UnpackArchive, b"K": Cancel, b"R": Ready, b"D": Done, b"E": Refused,
    b"Q": Died, b"B": Forked, b"F": Facts, b"Z": SetPause, b"L": Listen, b"T": PackTree, b"V": UnpackTree,
}  # fmt: skip
_BYTES = {kind: byte for byte, kind in _KINDS.items()}


def encode(message: Message) -> bytes:
    body = _BYTES[type(message)] + _join([_encode_field(value) for value in message])
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def decode(body: bytes) -> Message:
    kind = _KINDS.get(body[:1])
    fields = _split(body[1:])
    if kind is None or len(fields) != len(kind._fields):
        raise ValueError(f"no message: {body[:80]!r}")
    readers = [_READERS[kind.__annotations__[name]] for name in kind._fields]
    return kind(*(read(field) for read, field in zip(readers, fields)))  # noqa: B905  # 3.9 has no `strict`


class Inbox:
    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data

    def next(self) -> "Message | None":
        end = HEADER_BYTES + int.from_bytes(self._data[:HEADER_BYTES], "big")
        if len(self._data) < max(end, HEADER_BYTES + 1):
            return None
        body = bytes(memoryview(self._data)[HEADER_BYTES:end])
        del self._data[:end]
        return decode(body)


def _encode_field(value: "bytes | str | float | tuple[str, ...]") -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, tuple):
        return _join([os.fsencode(text) for text in value])
    return os.fsencode(value) if isinstance(value, str) else str(value).encode()


def _join(fields: list[bytes]) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        parts += (len(field).to_bytes(HEADER_BYTES, "big"), field)
    return b"".join(parts)


def _split(data: bytes) -> list[bytes]:
    fields: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + HEADER_BYTES + int.from_bytes(data[at : at + HEADER_BYTES], "big")
        fields.append(data[at + HEADER_BYTES : end])
        at = end
    return fields


_READERS: dict[Any, Callable[[bytes], Any]] = {
    int: int,
    float: float,
    bool: b"True".__eq__,
    str: os.fsdecode,
    bytes: bytes,
    tuple[str, ...]: lambda field: tuple(map(os.fsdecode, _split(field))),
}
