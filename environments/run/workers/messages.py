"""What driver, supervisors and workers send each other: pickled values."""

import asyncio
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from environments.rollout.containment.hook_calls import InFlightNow
from environments.trajectory import Failure, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from environments.run.group_source import (
        FinishedGroup,  # a supervisor has no use for it, and it loads slowly
    )

HEAD = struct.Struct(">QQ")
"""Before each message between a worker and its supervisor: the request's number, and bytes that follow."""
NEWS, CANCEL, OWN_REQUEST = 0, 1, 2
"""What a worker sends unasked; a request to cancel another; what its supervisor asks: to open, to close."""
FIRST_REQUEST = 3
"""The numbers of what the driver asks begin here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a worker is asked for."""

    what: Literal["first", "run", "close"]
    item_id: str = ""
    epoch: int = 0
    item_hash: str = ""
    """Of the item as the driver has it: workers load the items themselves."""
    rolled_out: tuple[Trajectory | Failure, ...] = ()
    size: int | None = None
    max_row_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a worker is an experiment with, once it is open."""

    facts: Mapping[str, str]
    """See `RunOrigin.facts`."""
    packages: Mapping[str, str]
    """Versions of the packages that the driver names."""
    tier: str = ""
    """See `Sandboxes.tier`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a worker cannot do what it was asked for."""

    text: str
    is_usage: bool
    """Whether the user's input is wrong (`UsageError`), else the run cannot go on."""
    trace: str = ""
    """Of the environment's code, where that broke."""
    missing_key: str = ""
    """What a `KeyError` of it named: perhaps a variable that only the driver's shell has."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a request that was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker was asked for, and what it met until then that the driver judges by."""

    value: "TrajectoryGroup | FinishedGroup"
    met: tuple[str, ...]
    """Versions of the weights since the last answer or beat, oldest first, see `WeightVersions.met`."""
    read: tuple[str, ...]
    """Files that hooks and tools opened since the last answer, by the driver's paths, see `OpenedFiles`."""
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """How a worker is, twice a second, and what it has to show."""

    in_flight: InFlightNow = field(default_factory=InFlightNow)
    met: tuple[str, ...] = ()
    """As of an `Answer`."""
    lines: tuple[str, ...] = ()
    """Since the last beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Code of the environment blocks the worker's event loop for good, which ends it."""

    item_id: str
    epoch: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a worker ended while it was asked for something."""

    cause: str
    """Such as `exit code 13`, in words."""
    trace: str = ""
    """The end of what it printed to its standard error."""
    blocked: Blocked | None = None
    """Whose fault it was, where that is known."""
    with_supervisor: bool = False
    """Whether its supervisor is gone with it, so that no other worker can be opened there."""


def packed(number: int, value: object) -> bytes:
    """A message with its head."""
    content = value if isinstance(value, bytes) else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(number, len(content)) + content


async def next_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next message. Raises asyncio.IncompleteReadError at the end."""
    number, size = HEAD.unpack(await reader.readexactly(HEAD.size))
    return cast(int, number), await reader.readexactly(cast(int, size))


def read_value(content: bytes) -> Any:
    """The value of a message: both ends run the same code as one user, and nobody else writes to them."""
    return pickle.loads(content)
