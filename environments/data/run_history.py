"""What came out of a run so far, as `next_items` gets it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast, overload

from environments.trajectory import CreditedGroup
from tools.errors import ConfigError

MAX_NEXT = 100_000
"""Ids that `next_items` may give at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGroup:
    """One group that ended."""

    item_id: str
    epoch: int
    """How often the item had been rolled out before."""
    status: str
    """`ok`, `no_credit` or `failed`, as in the record."""
    scores: tuple[float | None, ...]
    """Of each rollout that did not break; `None`: nothing was scored."""
    lost: int = 0
    """Rollouts that broke."""

    @property
    def mean_score(self) -> float | None:
        """Of the rollouts that were scored; `None` when none was."""
        known = [score for score in self.scores if score is not None]
        return sum(known) / len(known) if known else None


class RunHistory(Sequence[PastGroup]):
    """The groups that ended, in that order, those of earlier starts included. It never changes."""

    def __init__(self, groups: list[PastGroup], in_flight: Sequence[str]) -> None:
        self._groups = groups
        self._length = len(groups)
        self.in_flight = tuple(in_flight)
        """Ids of the items that are being rolled out, once for each group."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> PastGroup: ...
    @overload
    def __getitem__(self, index: slice) -> list[PastGroup]: ...
    def __getitem__(self, index: int | slice) -> PastGroup | list[PastGroup]:
        # The list grows as groups end: only what was there is seen.
        if isinstance(index, slice):
            return [self._groups[each] for each in range(*index.indices(self._length))]
        return self._groups[range(self._length)[index]]

    def __iter__(self) -> Iterator[PastGroup]:
        return (self._groups[index] for index in range(self._length))

    def of(self, item_id: str) -> list[PastGroup]:
        """The groups of one item."""
        return [group for group in self if group.item_id == item_id]


def past_group(credited: CreditedGroup) -> PastGroup:
    """What is remembered of a group."""
    group = credited.group
    return PastGroup(
        item_id=group.item_id,
        epoch=group.epoch,
        status=credited.status,
        scores=tuple(trajectory.score for trajectory in group.trajectories),
        lost=len(group.failures),
    )


def next_ids(given: Any, known: Collection[str], *, env: str) -> list[str]:
    """What `next_items` gave, as ids of items of the run.

    Raises:
        ConfigError: it gave something else.
    """
    if given is None:
        return []
    wrong = f"environment {env!r}: next_items gave"
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ConfigError(f"{wrong} {given!r:.100}; give a list of item ids, or None")
    ids = list(islice(cast("Sequence[Any]", given), MAX_NEXT + 1))
    if len(ids) > MAX_NEXT:
        raise ConfigError(f"{wrong} more than {MAX_NEXT:,} ids at once; give fewer, it is asked again")
    for each in ids:
        if not isinstance(each, str) or each not in known:
            some = ", ".join(repr(name)[:40] for name in islice(known, 3))
            raise ConfigError(
                f"{wrong} {each!r:.100}, which is the id of none of the run's {len(known)} items; they are "
                f"in self.item_ids: {some}{', …' if len(known) > 3 else ''}"
            )
    return ids
