"""Noise of three baselines for turns that no sibling reached, over that of the raw return there.

    python -m tests.benchmarks.peerless_turns [--groups 1500]

`totals`: the others' totals less what was earned before, where a turn has no peer (see `credit_bias`).
`loo_total`: the parameter of `turn_return`, which compares every turn with the others' totals. Both have no
bias, so that the ratio of standard deviations is all that differs. The market of `credit_bias` is enumerated;
the other game is sampled: eight turns with a sign of eight, one of four keys is right, and a wrong one ends
the rollout. It pays 1/8 per right key at once (`turn`), the same at the last turn (`delay`), or at once with
0.1 off for every turn (`cost`).
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from environments.credit import Advantages, estimate
from environments.credit.estimator_registry import terms_of, without_peer
from environments.testing import group_of
from environments.trajectory import TrajectoryGroup
from tests.benchmarks.credit_bias import Expectation, Market, a_policy, totals_without_peer

TURNS = SIGNS = 8
KEYS = 4
Pay = Literal["turn", "delay", "cost"]


def raw(group: TrajectoryGroup) -> Advantages:
    """As it is offered."""
    return estimate("turn_return", group)


def loo_total(group: TrajectoryGroup) -> Advantages:
    """Every turn against totals."""
    return estimate("turn_return", group, baseline="loo_total")


WEIGHS: dict[str, Callable[[TrajectoryGroup], Advantages]] = {
    "raw": raw,
    "totals": totals_without_peer,
    "loo_total": loo_total,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """A policy that presses the right key with one probability, whatever the sign."""

    p_right: float
    pay: Pay

    def rollout(self, signs: Sequence[int], draw: random.Random) -> tuple[list[int], list[float]]:
        """Keys that were pressed, the right one being 0, and rewards."""
        keys: list[int] = []
        for _ in signs:
            keys.append(0 if draw.random() < self.p_right else draw.randrange(1, KEYS))
            if keys[-1]:
                break
        rewards = [(key == 0) / TURNS for key in keys]
        if self.pay == "delay":
            rewards = [*[0.0] * (len(keys) - 1), sum(rewards)]
        return keys, [reward - 0.1 * (self.pay == "cost") for reward in rewards]

    def score(self, key: int) -> np.ndarray:
        """Gradient of log pi for the logits of the sign that was seen."""
        expected = np.full(KEYS, (1 - self.p_right) / (KEYS - 1))
        expected[0] = self.p_right
        return np.eye(KEYS)[key] - expected


def sampled(game: Stops, size: int, groups: int) -> tuple[dict[str, float], float]:
    """The deviation of a group's gradient by baseline, and the share of turns without a peer."""
    draw, alone, turns = random.Random(0), 0, 0
    gradients: dict[str, list[np.ndarray]] = {name: [] for name in WEIGHS}
    for _ in range(groups):
        signs = [draw.randrange(SIGNS) for _ in range(TURNS)]
        played = [game.rollout(signs, draw) for _ in range(size)]
        group = group_of([rewards for _, rewards in played])
        flags = without_peer(terms_of("turn_return", group), group)
        alone, turns = alone + sum(map(sum, flags)), turns + sum(map(len, flags))
        for name, weigh in WEIGHS.items():
            gradient = np.zeros((SIGNS, KEYS))
            for (keys, _), row in zip(played, weigh(group), strict=True):
                for sign, key, value in zip(signs, keys, row, strict=False):  # it may have ended early
                    gradient[sign] += value * game.score(key) / size
            gradients[name].append(gradient)
    return {
        name: float(np.sqrt(np.var(rows, axis=0).sum())) for name, rows in gradients.items()
    }, alone / turns


def enumerated(size: int, seed: int) -> dict[str, float]:
    """The same of the market, exactly."""
    market, logits = Market(), a_policy(seed)
    return {name: Expectation(market, size, weigh).noise(logits) for name, weigh in WEIGHS.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1500)
    groups: int = parser.parse_args().groups
    write = sys.stdout.write
    write("| game | policy | group | without a peer | totals | loo_total |\n|---|---|---|---|---|---|\n")
    for size in (2, 3):
        for seed in (0, 1, 2):
            noise = enumerated(size, seed)
            ratios = [f"{noise[name] / noise['raw']:.2f}" for name in ("totals", "loo_total")]
            write(f"| market | seed {seed} | {size} | | {' | '.join(ratios)} |\n")
    for pay in ("turn", "delay", "cost"):
        for p_right in (0.25, 0.5, 0.8):
            for size in (2, 4, 8):
                noise, share = sampled(Stops(p_right=p_right, pay=pay), size, groups)
                ratios = [f"{noise[name] / noise['raw']:.2f}" for name in ("totals", "loo_total")]
                write(f"| {pay} | {p_right:.0%} right | {size} | {share:.0%} | {' | '.join(ratios)} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
