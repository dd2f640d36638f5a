"""What rollouts of older weights do to the step, exactly: trained as they are, withheld, or weighed by turn.

    python -m tests.benchmarks.stale_turns [--group-size 2]

Each sibling of `credit_bias`' market is sampled by older weights with probability 1/2. All groups are
enumerated: the cosine of the expected step with the true gradient is its bias, and the step over its
standard deviation in one group (snr) is what is left to learn from.
"""

import argparse
import sys

import numpy as np

from environments.credit import estimate
from environments.trainers.completion_columns import behaviour_ratios
from tests.benchmarks.credit_bias import Expectation, Market, a_policy, cosine

CUT = 2.0


class StaleMarket(Market):
    """Every session twice: sampled by the policy, and by older weights."""

    def __init__(self, turns, older):
        fresh = Market(turns)
        super().__init__(played=[*fresh.sessions, *fresh.sessions])
        self.older, self.is_old = older, np.arange(len(self.sessions)) >= len(fresh.sessions)

    def probabilities(self, logits):
        of_older = super().probabilities(self.older)
        return np.where(self.is_old, of_older, super().probabilities(logits)) / 2

    def ratios(self, logits, tokens):
        """Behaviour ratios [session, turn] where a turn's first token decides, and the rest are sure."""
        ratios = np.ones(self.taken.shape[:2])
        new, old = (self.taken @ np.log(self.policy(each)).reshape(-1) for each in (logits, self.older))
        for session in np.flatnonzero(self.is_old):
            for turn in range(len(self.sessions[session].steps)):
                sure = [0.0] * (tokens - 1)
                of_turn = [new[session, turn], *sure], [old[session, turn], *sure]
                ratios[session, turn] = behaviour_ratios([turn] * tokens, *of_turn, cut=CUT)[0]
        return ratios


def measured(turns, size, away, seed=0):
    """Return (mean |log ratio| of an old turn, {name: (cosine, snr)})."""
    logits = a_policy()
    older = logits + away * np.random.default_rng(seed).standard_normal(logits.shape)
    market, true = StaleMarket(turns, older), Market(turns).gradient(logits)
    expectation = Expectation(market, size, lambda group: estimate("rloo", group))
    advantages, old = expectation.advantages, market.is_old[:, None]
    weights = {
        "as they are": np.ones_like(old),
        "withheld": ~old,
        "ratio, turns of 1 token": market.ratios(logits, 1),
        "ratio, turns of 8 tokens": market.ratios(logits, 8),
    }
    found = {}
    for name, weight in weights.items():
        expectation.advantages = (
            advantages * np.broadcast_to(weight, old.shape[:1] + advantages.shape[2:])[expectation.members]
        )
        step = expectation.gradient(logits)
        found[name] = cosine(step, true), 1 / expectation.noise(logits)
    chances, real = market.probabilities(logits), market.visited.any(axis=-1)
    apart = np.abs(market.taken @ np.log(market.policy(logits) / market.policy(older)).reshape(-1))
    mass = (chances[:, None] * old) * real
    return float((mass * apart).sum() / mass.sum()), found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group-size", type=int, default=2)
    size = parser.parse_args(argv).group_size
    seeds = range(10)
    for away in (0.1, 0.3, 1.0):
        runs = [measured(3, size, away, seed) for seed in seeds]
        apart = np.mean([each for each, _ in runs])
        for name in runs[0][1]:
            cosines, snrs = np.array([found[name] for _, found in runs]).T
            print(
                f"log ratios {apart:.2f}  {name:25} cosine {cosines.mean():.3f}, "
                f"lowest {cosines.min():.3f}, snr {snrs.mean():.3f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
