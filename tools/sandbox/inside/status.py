"""What a shell says at the end of a command: a word that nobody else knows, and the exit status."""

from __future__ import annotations

MOST_BYTES = 4096
"""Of its words at a time; an agent that finds their way can add others."""
_MOST_DIGITS = 3


def find(words: bytes, nonce: bytes) -> int | None:
    """The exit status in whole lines of words; `None` when it is not there."""
    for line in words.split(b"\n")[:-1]:
        word, _, code = line.partition(b" ")
        if word == nonce and code.isdigit() and len(code) <= _MOST_DIGITS:
            return int(code) & 0xFF
    return None
