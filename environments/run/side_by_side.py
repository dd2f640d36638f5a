"""Two runs or evaluations compared: items paired by id and content, differences with their intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.run.compared_side import ItemKey, ItemTotals, Side
from environments.run.evaluation import RESAMPLES, bootstrap_interval, pass_at_k

MOST_K = 16
"""The largest k of pass@k that is compared."""

Measure = Callable[[ItemTotals], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One item that both sides have, with the same content."""

    item_id: str
    item_hash: str
    before: ItemTotals
    after: ItemTotals

    @property
    def flip(self) -> str | None:
        """`gained` or `lost`, where at least half of the rollouts pass on one side alone."""
        a, b = self.before.pass_rate, self.after.pass_rate
        if a is None or b is None or (a >= 0.5) == (b >= 0.5):
            return None
        return "gained" if b >= 0.5 else "lost"

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "item_id": self.item_id,
            "item_hash": self.item_hash,
            "a": self.before.values(),
            "b": self.after.values(),
            "flip": self.flip,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Which items can be compared, and which cannot, by name."""

    pairs: Sequence[Pair]
    changed: Sequence[str]
    """On both sides, with other content."""
    unknown: Sequence[str]
    """On both sides, of which one does not say the content."""
    only_a: Sequence[str]
    only_b: Sequence[str]


def paired(a: Side, b: Side) -> Pairing:
    """The items of two sides, in the order of their ids; never by position."""
    both = sorted(key for key in a.items.keys() & b.items.keys() if key[1] is not None)
    pairs = [
        Pair(item_id=key[0], item_hash=str(key[1]), before=a.items[key], after=b.items[key]) for key in both
    ]
    done = {pair.item_id for pair in pairs}
    of_a, of_b = _hashes(a.items), _hashes(b.items)
    common = sorted((of_a.keys() & of_b.keys()) - done)
    unknown = [each for each in common if None in of_a[each] | of_b[each]]
    return Pairing(
        pairs=pairs,
        changed=[each for each in common if each not in set(unknown)],
        unknown=unknown,
        only_a=sorted(of_a.keys() - of_b.keys()),
        only_b=sorted(of_b.keys() - of_a.keys()),
    )


def compared(a: Side, b: Side, *, seed: int = 0, all_items: bool = False) -> dict[str, Any]:
    """The comparison as JSON values: exact numbers, and `None` where one is unknown.

    Means of a side are over all its items, each of which counts once however many rollouts it has. A
    difference is B minus A over the pairs alone; its 95 % interval is the percentile bootstrap over pairs,
    so that what is hard about an item is hard on both sides (Efron & Tibshirani 1993). The same seed gives
    the same intervals.

    Args:
        a: the first side.
        b: the second side.
        seed: of the resampling.
        all_items: whether every pair is listed; else only flips are.
    """
    pairing = paired(a, b)
    flips = [pair for pair in pairing.pairs if pair.flip is not None]
    numbers: dict[str, Any] = {
        "a": a.values(),
        "b": b.values(),
        "seed": seed,
        "resamples": RESAMPLES,
        "items": {
            "paired": len(pairing.pairs),
            **{name: list(getattr(pairing, name)) for name in ("changed", "unknown", "only_a", "only_b")},
        },
        "score": _measured(a, b, pairing.pairs, lambda item: item.mean_score, seed),
        "pass_at": {str(k): _pass_at(a, b, pairing.pairs, k, seed) for k in range(1, _largest_k(a, b) + 1)},
        "flips": [pair.values() for pair in flips],
    }
    if all_items:
        numbers["pairs"] = [pair.values() for pair in pairing.pairs]
    return numbers


def _pass_at(a: Side, b: Side, pairs: Sequence[Pair], k: int, seed: int) -> dict[str, Any]:
    def at_k(item: ItemTotals) -> float | None:
        return pass_at_k(item.judged, item.passed, k) if item.judged >= k else None

    def at_least(item: ItemTotals) -> float | None:
        tries = item.judged + item.lost
        return pass_at_k(tries, item.passed, k) if tries >= k else None

    least = {f"{name}_at_least": _mean(_values(side.items, at_least)) for name, side in (("a", a), ("b", b))}
    return {**_measured(a, b, pairs, at_k, seed), **least}


def _measured(a: Side, b: Side, pairs: Sequence[Pair], measure: Measure, seed: int) -> dict[str, Any]:
    both = [(measure(pair.before), measure(pair.after)) for pair in pairs]
    moved = [after - before for before, after in both if before is not None and after is not None]
    return {
        "a": _estimated(_values(a.items, measure), seed),
        "b": _estimated(_values(b.items, measure), seed),
        "difference": _estimated(moved, seed),
    }


def _estimated(values: Sequence[float], seed: int) -> dict[str, Any]:
    low, high = bootstrap_interval(values, seed)
    return {"mean": _mean(values), "low": low, "high": high, "items": len(values)}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _values(items: Mapping[ItemKey, ItemTotals], measure: Measure) -> list[float]:
    return [value for item in items.values() if (value := measure(item)) is not None]


def _largest_k(a: Side, b: Side) -> int:
    most = [max((item.judged for item in side.items.values()), default=0) for side in (a, b)]
    # Where one side has no verdicts, the other is shown all the same.
    return min(MOST_K, min(most) or max(most))


def _hashes(items: Mapping[ItemKey, ItemTotals]) -> dict[str, set[str | None]]:
    hashes: dict[str, set[str | None]] = {}
    for identity, content in items:
        hashes.setdefault(identity, set()).add(content)
    return hashes
