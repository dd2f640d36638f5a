"""The groups of a run: which items, in which order, and their results so far."""

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate, count, islice
from typing import Any, cast, overload

from environments.rollout.items.item_json import check_id
from environments.trajectory import CreditedGroup, Failure, Trajectory
from tools.errors import ConfigError, DatasetError


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOrder:
    """A function of seed and item ids, the same after a restart and on every machine."""

    seed: int = 0
    shuffle: bool = False
    weights: Sequence[float] | None = None
    """One per item. In a round of N groups an item occurs N · weight / sum of weights times, rounded up or
    down at random so that the mean is exact (systematic sampling, Madow 1949)."""

    def groups(self, item_ids: Sequence[str], first: int = 0) -> Iterator[tuple[int, int]]:
        size = len(item_ids)
        if self.weights is None:
            for number in count(first // size):
                start = first % size if number == first // size else 0
                yield from ((index, number) for index in self._round(item_ids, number)[start:])
        epochs = Counter[int]()
        group = 0
        for number in count():
            for index in self._draw_round(item_ids, number):
                if group >= first:
                    yield index, epochs[index]
                epochs[index] += 1
                group += 1

    def _round(self, item_ids: Sequence[str], number: int) -> list[int]:
        indices = list(range(len(item_ids)))
        if self.shuffle:
            # By a hash of its name, so that items that are added leave the order of the others alone.
            indices.sort(key=lambda index: self._hash(f"{number}/{item_ids[index]}"))
        return indices

    def _draw_round(self, item_ids: Sequence[str], number: int) -> list[int]:
        assert self.weights is not None
        ids = [f"{number}/{each}" for each in item_ids]
        mixed = sorted(range(len(ids)), key=lambda index: self._hash(f"sample/{ids[index]}"))
        reached = list(accumulate(self.weights[index] for index in mixed))
        last = max(rank for rank, index in enumerate(mixed) if self.weights[index] > 0)
        offset = int.from_bytes(self._hash(f"offset/{number}")) / 2**64
        step = reached[-1] / len(ids)
        drawn = [mixed[min(bisect_right(reached, (offset + n) * step), last)] for n in range(len(ids))]
        return [
            index
            for _, index in sorted((self._hash(f"{n}/{ids[index]}"), index) for n, index in enumerate(drawn))
        ]

    def _hash(self, name: str) -> bytes:
        return hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()


IN_ORDER = ItemOrder()


def item_weights(items: Sequence[Any], field: str) -> list[float]:
    weights = [_weight(item, field, f"item {number}") for number, item in enumerate(items, start=1)]
    if not 0 < math.fsum(weights) < math.inf:
        raise DatasetError(
            f"--env.weight_field {field}: the items' weights sum to {math.fsum(weights):g}; give some "
            f"of them a weight above 0, and none a huge one"
        )
    return weights


def _weight(item: Any, field: str, where: str) -> float:
    if not isinstance(item, Mapping) or field not in item:
        raise DatasetError(f"--env.weight_field {field}: {where} has no such field")
    value = cast("Mapping[str, Any]", item)[field]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise DatasetError(
            f"--env.weight_field {field}: {where} has {value!r:.100} there; a weight is finite and at least 0"
        )
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """One group to roll out."""

    item: Any
    item_id: str
    epoch: int = 0
    rolled_out: tuple[Trajectory | Failure, ...] = ()
    """Results of its first siblings, if they were rolled out before the others."""

    def __post_init__(self) -> None:
        try:
            check_id(self.item_id)
        except DatasetError as error:
            raise DatasetError(f"a GroupTask {error}") from None

    def for_rollout(self) -> "GroupTask":
        """Return the task with a copy of the item, so that hooks cannot change it for siblings."""
        try:
            return replace(self, item=deepcopy(self.item))
        except TypeError:
            return self  # it holds what cannot be copied, such as a lock: shared on purpose

    def seed(self, run_seed: int, sibling: int) -> int:
        """Return a rollout's seed: equal for equal runs, unrelated between rollouts, 31 bits."""
        return self._seed(run_seed, str(sibling))

    def group_seed(self, run_seed: int) -> int:
        return self._seed(run_seed, "group")

    def _seed(self, run_seed: int, what: str) -> int:
        name = f"{run_seed}/{self.item_id}/{self.epoch}/{what}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest()) >> 1


def plan(
    items: Sequence[Any], item_ids: Sequence[str], total: int, order: ItemOrder = IN_ORDER
) -> list[GroupTask]:
    return list(islice(plan_for_ever(items, item_ids, 0, order), len(items) if total == -1 else total))


def plan_for_ever(
    items: Sequence[Any], item_ids: Sequence[str], first: int, order: ItemOrder = IN_ORDER
) -> Iterator[GroupTask]:
    for index, epoch in order.groups(item_ids, first):
        yield GroupTask(item=items[index], item_id=item_ids[index], epoch=epoch)


MAX_NEXT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGroup:
    item_id: str
    epoch: int
    """Number of earlier rounds over the item."""
    status: str
    """`ok`, `no_credit` or `failed`, as in the record."""
    scores: tuple[float | None, ...]
    """One for each surviving rollout but branches; `None`: unscored."""
    lost: int = 0

    @property
    def mean_score(self) -> float | None:
        known = [score for score in self.scores if score is not None]
        return sum(known) / len(known) if known else None


class RunHistory(Sequence[PastGroup]):
    """The finished groups in order, those before a restart included. It is immutable."""

    def __init__(self, groups: list[PastGroup], in_flight: Sequence[str]) -> None:
        self._groups = groups
        self._length = len(groups)
        self.in_flight = tuple(in_flight)
        """Ids of the items that are being rolled out, one for each group."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> PastGroup: ...
    @overload
    def __getitem__(self, index: slice) -> list[PastGroup]: ...
    def __getitem__(self, index: int | slice) -> PastGroup | list[PastGroup]:
        # The shared list grows as groups end; this history has a fixed length.
        if isinstance(index, slice):
            return [self._groups[each] for each in range(*index.indices(self._length))]
        return self._groups[range(self._length)[index]]

    def __iter__(self) -> Iterator[PastGroup]:
        return (self._groups[index] for index in range(self._length))

    def of(self, item_id: str) -> list[PastGroup]:
        return [group for group in self if group.item_id == item_id]


def past_group(credited: CreditedGroup) -> PastGroup:
    group = credited.group
    return PastGroup(
        item_id=group.item_id,
        epoch=group.epoch,
        status=credited.status,
        scores=tuple(trajectory.score for trajectory in group.trajectories if trajectory.trunk is None),
        lost=sum(failure.trunk is None for failure in group.failures),
    )


def next_ids(given: Any, known: Collection[str], *, env: str) -> list[str]:
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


def is_held_out(item_id: str, share: float) -> bool:
    """Whether an item belongs to the held-out share, by its id alone.

    An item that one run trains on is never in another run's evaluation, and a larger share includes a smaller
    one.
    """
    digest = hashlib.blake2b(f"held out/{item_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2**64


def indices_of_share(item_ids: Sequence[str], share: float, *, evaluation: bool) -> list[int]:
    kept = [index for index, each in enumerate(item_ids) if is_held_out(each, share) == evaluation]
    if not kept:
        which = "none is held out" if evaluation else "all are held out"
        raise DatasetError(
            f"--env.eval_share {share:g} of {len(item_ids)} items: {which}, as their ids decide; give "
            f"another share, or more items"
        )
    return kept
