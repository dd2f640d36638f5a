"""How many posts a group with rewritten histories takes, plain and dense.

    python -m tests.benchmarks.bench_packing [--groups 200]

Random groups, 1 to 12 rows per trajectory, half of them with scores of 0 and 1, half with uniform ones; some
lost siblings. "plain" and "dense" are what `environments.wire.padding` does where a trainer normalises
scores, and where it reads advantages.
"""

import argparse
import random
from collections.abc import Sequence
from functools import cache
from itertools import chain, product

from environments.wire.padding import pack_rows, padding_scores

Packing = list[list[int]]

PADDING_TOKENS = 2
"""Of one row."""


def fits(taken: Sequence[float], scores: Sequence[float], size: int) -> bool:
    """Whether padding can give a post with these scores the mean and deviation of all."""
    return len(taken) <= size and padding_scores(taken, scores, size - len(taken)) is not None


def in_order(owners: Sequence[int], scores: Sequence[float], size: int) -> Packing:
    """As many of the next rows as fit."""
    packed: Packing = []
    start = 0
    while start < len(owners):
        ends = range(min(start + size, len(owners)), start, -1)
        end = next(
            (end for end in ends if fits([scores[owner] for owner in owners[start:end]], scores, size)),
            start + 1,
        )
        packed.append(list(range(start, end)))
        start = end
    return packed


def fewest_posts(owners: Sequence[int], scores: Sequence[float], size: int) -> int:
    """The fewest posts in which every score keeps its place, by trying all of them: for small groups."""
    numbers = [list(owners).count(owner) for owner in range(len(scores))]
    fitting = [
        taken
        for taken in product(*(range(min(number, size) + 1) for number in numbers))
        if sum(taken) > 0 and fits(_scores(taken, scores), scores, size)
    ]
    # What fits goes on fitting with a row less, so only posts that take no further row matter.
    full = [
        taken
        for taken in fitting
        if not any(
            (*taken[:owner], taken[owner] + 1, *taken[owner + 1 :]) in set(fitting)
            for owner in range(len(taken))
        )
    ]

    @cache
    def posts(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        after = {
            tuple(max(0, number - each) for number, each in zip(left, taken, strict=True))
            for taken in full
            if any(map(min, taken, left))
        }
        return 1 + min(posts(each) for each in after)

    return posts(tuple(numbers))


def _scores(taken: Sequence[int], scores: Sequence[float]) -> list[float]:
    return list(chain.from_iterable([score] * number for number, score in zip(taken, scores, strict=True)))


def random_group(
    rng: random.Random, siblings: int, *, most_rows: int, binary: bool
) -> tuple[list[int], list[float]]:
    """Owners of rows, and scores that are not all equal."""
    scores = [0.0] * siblings
    while len(set(scores)) == 1 and siblings > 1:
        scores = [float(rng.random() < 0.5) if binary else rng.random() for _ in range(siblings)]
    owners = [owner for owner in range(siblings) for _ in range(rng.randint(1, most_rows))]
    return owners, scores


def measured(
    groups: Sequence[tuple[list[int], list[float]]], size: int, *, keep_scores: bool
) -> tuple[float, float, float, float]:
    """Posts and rows of padding per group, share of padding in all rows, share of posts that keep scores."""
    posts = padding = kept = rows = 0
    for owners, scores in groups:
        packed = pack_rows(owners, scores, size, keep_scores=keep_scores)
        posts += len(packed)
        rows += len(packed) * size
        padding += len(packed) * size - len(owners)
        kept += sum(fits([scores[owners[row]] for row in post], scores, size) for post in packed)
    return posts / len(groups), padding / len(groups), padding / rows, kept / posts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| size | lost | rows | packing | posts | padding rows | its tokens | of all rows | keep scores |")
    print("|---|---|---|---|---|---|---|---|---|")
    for size, lost in ((4, 0), (4, 1), (8, 0), (8, 1), (8, 2)):
        rng = random.Random(options.seed)
        groups = [
            random_group(rng, size - lost, most_rows=12, binary=number % 2 == 1)
            for number in range(options.groups)
        ]
        rows = sum(len(owners) for owners, _ in groups) / len(groups)
        for name in ("plain", "dense"):
            posts, padding, share, kept = measured(groups, size, keep_scores=name == "plain")
            print(
                f"| {size} | {lost} | {rows:.1f} | {name} | {posts:.1f} | {padding:.1f} "
                f"| {padding * PADDING_TOKENS:.0f} | {share:.0%} | {kept:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
