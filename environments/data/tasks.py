"""The groups of a run, planned from its items."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """One group to roll out."""

    item: Any
    item_id: str
    epoch: int


def plan(items: Sequence[Any], item_ids: Sequence[str], total: int) -> list[GroupTask]:
    """The first `total` groups, going round the items as often as needed; -1: every item once."""
    count = len(items) if total == -1 else total
    rounds = (divmod(number, len(items)) for number in range(count))
    return [
        GroupTask(item=items[position], item_id=item_ids[position], epoch=epoch) for epoch, position in rounds
    ]


def plan_for_ever(items: Sequence[Any], item_ids: Sequence[str], place: int) -> Iterator[GroupTask]:
    """The same plan without an end, from a place on."""
    for epoch, position in (divmod(number, len(items)) for number in count(place)):
        yield GroupTask(item=items[position], item_id=item_ids[position], epoch=epoch)
