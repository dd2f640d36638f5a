"""How many rows of padding a group with rewritten histories takes, plain and dense.

    python -m tests.benchmarks.bench_packing [--groups 200]

Random groups, 1 to 12 rows per trajectory, half of them with scores of 0 and 1, half with uniform ones; some
lost siblings. "plain" and "dense" are what `environments.wire.padding` does where a trainer normalises
scores, and where it reads advantages.
"""

import argparse
import random

from environments.wire.padding import pack_rows


def random_group(
    rng: random.Random, siblings: int, *, most_rows: int, binary: bool
) -> tuple[list[int], list[float]]:
    """Return owners of rows, and scores that are not all equal."""
    scores = [0.0] * siblings
    while len(set(scores)) == 1 and siblings > 1:
        scores = [float(rng.random() < 0.5) if binary else rng.random() for _ in range(siblings)]
    owners = [owner for owner in range(siblings) for _ in range(rng.randint(1, most_rows))]
    return owners, scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| size | lost | packing | rows | posts | padding, of all rows |")
    print("|---|---|---|---|---|---|")
    for size, lost in ((4, 0), (4, 1), (8, 0), (8, 1), (8, 2)):
        rng = random.Random(options.seed)
        groups = [
            random_group(rng, size - lost, most_rows=12, binary=number % 2 == 1)
            for number in range(options.groups)
        ]
        rows = sum(len(owners) for owners, _ in groups)
        for name in ("plain", "dense"):
            posts = sum(len(pack_rows(*group, size, keep_scores=name == "plain")) for group in groups)
            print(
                f"| {size} | {lost} | {name} | {rows / len(groups):.1f} | {posts / len(groups):.1f} "
                f"| {1 - rows / (posts * size):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
