"""verl: per-turn rewards, and a baseline without bias where the policy decides when to stop.

All groups of three rollouts of a game, each with its probability: at its first turn the policy stops with
probability P. Printed is the expected step on the logit of stopping. Written for verl 0.9.
"""

from itertools import product

import numpy as np
import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

import environments.trainers.verl_credit  # registers turn_return, rloo, gigpo, …

P, SIZE = 0.3, 3
STOPS, GOES_ON = [1.0], [0.5, 0.8]  # rewards of the turns
TRUE = P * (1 - P) * (sum(STOPS) - sum(GOES_ON))  # derivative of the expected sum of rewards


def expected_step(estimator):
    groups = [*product((STOPS, GOES_ON), repeat=SIZE)]
    rows = [row for group in groups for row in group]
    mask = torch.tensor([[1, 0, 1][: 2 * len(row) - 1] + [0] * (4 - 2 * len(row)) for row in rows])
    rewards = torch.zeros(mask.shape)  # a turn is one token here, and the tool's answer another
    for index, row in enumerate(rows):
        rewards[index, : 2 * len(row) : 2] = torch.tensor(row)
    ids = np.repeat(np.arange(len(groups)), SIZE)
    advantages, _ = get_adv_estimator_fn(estimator)(
        token_level_rewards=rewards, response_mask=mask, index=ids, config=None
    )
    chance = [float(np.prod([P if row is STOPS else 1 - P for row in group])) for group in groups]
    score = [1 - P if row is STOPS else -P for row in rows]  # d log π / d logit, of the first turn
    return sum(chance[i // SIZE] * score[i] * float(advantages[i, 0]) for i in range(len(rows))) / SIZE


if __name__ == "__main__":
    print(
        f"true {TRUE:.4f}, turn_return {expected_step('turn_return'):.4f}, grpo {expected_step('grpo'):.4f}"
    )
