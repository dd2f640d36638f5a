"""In which order items are rolled out, and how often each: as they come, shuffled, or by weight."""

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, cast

from tools.errors import DatasetError


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemOrder:
    """A function of the seed and the items' ids: it is the same after a restart and on every machine."""

    seed: int = 0
    shuffle: bool = False
    """Another order in each round over the items."""
    weights: Sequence[float] | None = None
    """One per item. A round of N groups has an item N · weight / sum of weights times: that number rounded
    down or up, by chance such that its mean is exact (systematic sampling, Madow 1949)."""

    def groups(self, item_ids: Sequence[str], first: int = 0) -> Iterator[tuple[int, int]]:
        """Index and epoch of the item of each group, from group number `first` on, without an end."""
        size = len(item_ids)
        if self.weights is None:
            for number in count(first // size):
                start = first % size if number == first // size else 0
                yield from ((index, number) for index in self._round(item_ids, number)[start:])
        epochs = Counter[int]()
        group = 0
        for number in count():
            for index in self._weighted_round(item_ids, number):
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

    def _weighted_round(self, item_ids: Sequence[str], number: int) -> list[int]:
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
    """The number that each item has in a field.

    Raises:
        DatasetError: an item has none that is finite and at least 0, or all are 0.
    """
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
