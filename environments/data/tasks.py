"""The groups of a run, planned from its items."""

import hashlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from environments.data.item_ids import checked_id
from environments.data.item_order import IN_ORDER, ItemOrder
from environments.trajectory import Failure, Trajectory
from tools.errors import DatasetError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """One group to roll out."""

    item: Any
    item_id: str
    epoch: int = 0
    """How often the item had been rolled out before."""
    rolled_out: tuple[Trajectory | Failure, ...] = ()
    """What came of its first siblings, where they were rolled out ahead of the others."""

    def __post_init__(self) -> None:
        """Raise DatasetError for an id that a record could not hold."""
        try:
            checked_id(self.item_id)
        except DatasetError as error:
            raise DatasetError(f"a GroupTask {error}") from None

    def for_rollout(self) -> "GroupTask":
        """The task with an item of this rollout's own: what a hook changes reaches no sibling."""
        try:
            return replace(self, item=deepcopy(self.item))
        except TypeError:
            return self  # it holds what cannot be copied, such as a lock: shared on purpose

    def seed(self, run_seed: int, sibling: int) -> int:
        """A rollout's seed: equal for equal runs, unrelated between rollouts; 31 bits, as servers accept."""
        return self._seed(run_seed, str(sibling))

    def group_seed(self, run_seed: int) -> int:
        """What all siblings may start from; 31 bits, unrelated to their own seeds."""
        return self._seed(run_seed, "group")

    def _seed(self, run_seed: int, what: str) -> int:
        name = f"{run_seed}/{self.item_id}/{self.epoch}/{what}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest()) >> 1


def plan(
    items: Sequence[Any], item_ids: Sequence[str], total: int, order: ItemOrder = IN_ORDER
) -> list[GroupTask]:
    """The first `total` groups, going round the items as often as needed; -1: one round."""
    return list(islice(plan_for_ever(items, item_ids, 0, order), len(items) if total == -1 else total))


def plan_for_ever(
    items: Sequence[Any], item_ids: Sequence[str], first: int, order: ItemOrder = IN_ORDER
) -> Iterator[GroupTask]:
    """The same plan without an end, from group number `first` (0 is the first of all) on."""
    for index, epoch in order.groups(item_ids, first):
        yield GroupTask(item=items[index], item_id=item_ids[index], epoch=epoch)
