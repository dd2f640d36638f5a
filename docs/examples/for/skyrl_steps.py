"""SkyRL: advantages of rollouts with two, three, one and two turns, beside SkyRL's own. For SkyRL 0.3.

SkyRL's generator puts the rewards of an environment's steps on the last token of each step, as here.
"""

import typing

import numpy as np
import torch
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # before Python 3.12, pydantic takes no other
import environments.trainers.skyrl_credit  # noqa: E402  # registers turn_return, and has it see the turns
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry  # noqa: E402

STEP_REWARDS = [[1.0, 0.0], [1.0, 1.0, 1.0], [0.0], [0.0, 1.0]]


def advantages(estimator):
    mask = torch.tensor([[1, 1, 0] * len(row) + [0] * (9 - 3 * len(row)) for row in STEP_REWARDS])
    rewards = torch.zeros(mask.shape)
    for row, given in enumerate(STEP_REWARDS):
        rewards[row, 1 : 3 * len(given) : 3] = torch.tensor(given)
    estimate = AdvantageEstimatorRegistry.get(estimator)
    found, _ = estimate(
        token_level_rewards=rewards, response_mask=mask.bool(), index=np.zeros(4), config=None
    )
    return [
        [round(float(found[row, 3 * turn]), 3) for turn in range(len(given))]
        for row, given in enumerate(STEP_REWARDS)
    ]


if __name__ == "__main__":
    print("turn_return", advantages("turn_return"))
    print("grpo       ", advantages("grpo"))
