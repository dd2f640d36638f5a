"""A rollout in flight, as those who watch a run see it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True, kw_only=True)
class InFlight:
    """Which rollout it is, since when, and what it waits for."""

    item_id: str
    sibling: int
    started: float = field(default_factory=monotonic)
    """`time.monotonic` when it got its slot."""
    doing: str = "starting"
    """`prepare`, `model, turn 3`, `tool terminal, turn 3`, `compute_reward`, …"""


Watch = Callable[[InFlight], AbstractContextManager[object]]
"""Entered for as long as a rollout is in flight."""
