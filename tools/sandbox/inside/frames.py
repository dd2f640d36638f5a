"""Frames between the host and the supervisor: one kind byte and a list of byte fields."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence

READY, EXEC, SHELL, READ, WRITE, CANCEL = b"R", b"X", b"S", b"G", b"P", b"K"
PACK, UNPACK = b"A", b"U"
FILE_KINDS = (READ, WRITE, PACK, UNPACK)
"""Requests that are ours alone: no program of the agent's runs for them, and they can be done again."""
FOUND = b"F"
"""What is true in a container, told before it is ready; see `in_container.facts`."""
DONE = b"D"
"""Answer: exit code, stdout total, stderr total, flags, microseconds, stdout, stderr."""
FORKED = b"B"
"""From a fork server, with a descriptor of the supervisor's process."""
DIED = b"Q"
"""The last of all frames: what went wrong in the supervisor itself."""
REFUSED = b"E"
"""Answer: an errno; the command never started."""

TIMED_OUT, OOM_KILLED, RESTARTED = b"t", b"o", b"r"
HEADER_BYTES = 4


def pack(kind: bytes, *fields: bytes) -> bytes:
    """One frame, its length in front."""
    parts = [kind]
    for field in fields:
        parts += (len(field).to_bytes(4, "big"), field)
    return sum(map(len, parts)).to_bytes(HEADER_BYTES, "big") + b"".join(parts)


def pack_config(
    settings: Mapping[str, str], env: Mapping[str, str], seccomp: bytes, steps: Sequence[Sequence[str]] = ()
) -> bytes:
    """What a supervisor is told first, with its length; in a format that every Python reads in one call."""
    body = marshal.dumps((dict(settings), dict(env), seccomp, [list(step) for step in steps]), 2)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def reason(fields: Sequence[bytes]) -> str:
    """What a `DIED` frame says."""
    return fields[0].decode("utf-8", "replace")


def unpack(body: bytes) -> tuple[bytes, list[bytes]]:
    """The kind and the fields of a frame without its length."""
    fields: list[bytes] = []
    at = 1
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        fields.append(body[at + 4 : end])
        at = end
    return body[:1], fields
