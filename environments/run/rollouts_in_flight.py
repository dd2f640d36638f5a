"""The rollouts in flight, and which of them has been for longest."""

import textwrap
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from environments.containment.in_flight import InFlight
from environments.record.summary import duration

_ITEM_CHARS = 80
_DOING_CHARS = 40


class RolloutsInFlight:
    """Knows every rollout from its slot to its end; any thread may ask."""

    def __init__(self) -> None:
        self._rollouts: dict[int, InFlight] = {}

    @contextmanager
    def watch(self, rollout: InFlight) -> Generator[None]:
        """A rollout in flight."""
        self._rollouts[id(rollout)] = rollout
        try:
            yield
        finally:
            del self._rollouts[id(rollout)]

    def __len__(self) -> int:
        return len(self._rollouts)

    def doing(self) -> Counter[str]:
        """How many wait for what: `model`, `tool terminal`, `compute_reward` and so on."""
        rollouts = list(self._rollouts.values())
        return Counter(each.doing.partition(",")[0][:_DOING_CHARS] for each in rollouts)

    def oldest(self, *, least_s: float = 0.0) -> str | None:
        """The one in flight for longest, in words; `None` when none is that old."""
        # The list is made in one step, whatever the event loop does meanwhile; it is in the order of starts.
        rollouts = list(self._rollouts.values())
        age_s = monotonic() - rollouts[0].started if rollouts else 0.0
        if not rollouts or age_s < least_s:
            return None
        oldest = rollouts[0]
        item = textwrap.shorten(oldest.item_id, _ITEM_CHARS) or repr(oldest.item_id)
        return f"item {item}, rollout {oldest.sibling}, {duration(age_s)}, {oldest.doing}"
