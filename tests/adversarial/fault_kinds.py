"""What a fault of a model server is: how one answer is spoilt, and what has to come of it."""

import copy
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.adversarial.hostile_server import answer

READ = "read"
"""The answer is a completion."""
LOST = "lost"
"""The call is lost, after one request."""
RETRIED = "retried"
"""The same request is sent again; the call is lost when that does not help."""
OVERFLOW = "overflow"
"""The conversation does not fit the model's context."""


@dataclass(kw_only=True)
class Exchange:
    """One request, and what a sound server would answer."""

    reader: Any
    writer: Any
    reply: dict[str, Any]
    sampled: Any = None
    """The parts of the reply, on a wire of token ids."""
    write: Callable[[Any], dict[str, Any]] = dict
    """Makes a reply of its parts."""

    @property
    def gone(self):
        """Whether the client hung up."""
        return self.reader.at_eof() or self.writer.is_closing()

    @property
    def content(self):
        return json.dumps(self.reply).encode()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()


@dataclass(frozen=True, kw_only=True)
class Fault:
    name: str
    play: Callable[[Exchange], Awaitable[bool | None]]
    """Answers; `True`: the connection can be used again."""
    expected: str
    runs: int = 0
    """Tools that the answer makes run."""
    exact: bool | None = None
    """Whether its tokens are those that were sampled; `None`: not looked at."""
    wire: str | None = None
    """`chat`, or `tokens`: where it can happen; `None`: on any wire."""
    but_on: tuple[tuple[str, str], ...] = ()
    """Wires of token ids whose answers have no such part."""
    heavy: bool = False
    """Some megabytes."""
    stalls: bool = False
    """Ends with the time of the request."""


DEEPEST = 1000
"""As deep as JSON may be for its fastest readers, and deeper than most code goes by itself."""
DEEP = "@deep"
"""Stands in a reply for lists in lists."""


def lost(value):
    """What comes of a reply that holds such a value: JSON that cannot be read is asked for again."""
    unread = value == DEEP or (isinstance(value, int) and abs(value) > 10**300)
    return RETRIED if unread else LOST


def nested(reply):
    """The reply as JSON, with something deep in the place of `DEEP`."""
    return json.dumps(reply).encode().replace(b'"@deep"', b"[" * DEEPEST + b"]" * DEEPEST)


class Kinds:
    """A table of faults of one sort."""

    def __init__(self, wire=None):
        self.wire = wire
        self.faults = []

    def add(self, name, play, expected, **fields):
        self.faults.append(Fault(name=name, play=play, expected=expected, wire=self.wire, **fields))

    def raw(self, name, make, expected, **fields):
        """`make`: bytes of a whole answer, or a function of the sound body that gives them."""

        async def play(exchange):
            await exchange.send(make(exchange.content) if callable(make) else make)

        self.add(name, play, expected, **fields)

    def body(self, name, make, expected, *, status=200, headers=(), **fields):
        """`make`: the body of a well-formed answer, or a function of the sound reply that gives it."""

        async def play(exchange):
            made = make(copy.deepcopy(exchange.reply)) if callable(make) else make
            await exchange.send(answer(made, status=status, headers=headers))
            return True

        self.add(name, play, expected, **fields)

    def parts(self, name, change, expected, **fields):
        """`change`: takes the parts of a reply with token ids, and spoils them."""

        async def play(exchange):
            change(exchange.sampled)
            await exchange.send(answer(nested(exchange.write(exchange.sampled))))
            return True

        self.add(name, play, expected, **fields)
