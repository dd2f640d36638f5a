"""tinker-cookbook (0.6.1): its own training loop with turn credit, from the rewards of its `Transition`s.

Rollouts of an environment use `environments.trainers.tinker_datums`.
"""
# pyright: basic, reportMissingImports=false

from functools import partial
from itertools import islice
from typing import Any

import tinker
import torch
from tinker_cookbook.rl import data_processing, train
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, TrajectoryGroup

from environments.credit.array_credit import turn_advantages
from tools.errors import ConfigError

Credit = list[list[float]]
"""`[trajectory][transition]`; the cookbook has one number per trajectory."""


def use_turn_credit(estimator: str = "turn_return", **params: Any) -> None:
    """Make `tinker_cookbook.rl.train` credit transitions; call it before `train.main`.

    A transition's reward is that of its turn; a group's `final_rewards_G` are the outcomes.
    """
    train.compute_advantages = partial(_compute_advantages, estimator=estimator, params=params)
    train.assemble_training_data = _assemble_training_data


def _compute_advantages(groups: list[TrajectoryGroup], *, estimator: str, params: Any) -> list[Credit]:
    rows = [trajectory.transitions for group in groups for trajectory in group.trajectories_G]
    rewards = [[each.reward for each in row] for row in rows]
    params = {"lengths": [[len(each.ac.tokens) for each in row] for row in rows], **params}
    ids = [number for number, group in enumerate(groups) for _ in group.trajectories_G]
    outcomes = [outcome for group in groups for outcome in group.final_rewards_G]
    every = iter(turn_advantages(rewards, ids, outcomes, estimator=estimator, **params))
    return [list(islice(every, len(group.trajectories_G))) for group in groups]


def _assemble_training_data(groups: list[TrajectoryGroup], credit: list[Credit], **given: Any) -> Any:
    ones = [torch.ones(len(group.trajectories_G)) for group in groups]
    data, metadata = data_processing.assemble_training_data(groups, ones, **given)
    values = [
        advantage
        for group, of_group in zip(groups, credit, strict=True)
        for trajectory, of_turns in zip(group.trajectories_G, of_group, strict=True)
        for transition, advantage in zip(trajectory.transitions, of_turns, strict=True)
        if transition.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY, 0.0) < 1.0
        for _ in transition.ac.tokens
    ]
    masks = [datum.loss_fn_inputs["mask"].to_torch() for datum in data]
    trained = [int(mask.sum()) for mask in masks]
    if sum(trained) != len(values):  # the first token of a datum is not a target
        raise ConfigError("an observation before a transition is empty: give it a token, such as the BOS")
    for datum, mask, of_tokens in zip(data, masks, torch.tensor(values).split(trained), strict=True):
        advantages = torch.zeros_like(mask).masked_scatter(mask > 0, of_tokens)
        datum.loss_fn_inputs["advantages"] = tinker.TensorData.from_torch(advantages)
    return data, metadata
