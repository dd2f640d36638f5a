"""What a page shows of policies that learned on an environment, beside their first and last rollouts."""

from typing import TypedDict


class LearnedVerdict(TypedDict):
    """What was found, in words."""

    about: str
    """`learnable`, `gamed` or `note`."""
    good: bool | None
    """Whether that is as it should be; `None`: neither."""
    text: str


class LearnedChange(TypedDict):
    """One number of the first policy, the learned one and the reference: means over items and seeds."""

    name: str
    start: float
    end: float
    reference: float | None
    direction: str
    """`up`, `down` or `unclear`: more than noise, on every seed, or not."""


class LearnedPart(TypedDict):
    """What became of a turn reward."""

    part: str
    verdict: str
    """See `turnwise.lab.learning.gamed_rewards`."""
    why: str


class LearnedChoice(TypedDict):
    """A message that the agent could write."""

    message: str
    probability: float


class LearnedStateValues(TypedDict):
    """A state, and what the learned policy does there."""

    state: str
    visits: int
    choices: list[LearnedChoice]


class LearnedRollouts(TypedDict):
    """Groups that are in the page."""

    label: str
    groups: list[str]
    """Their ids."""


class LearningValues(TypedDict):
    """All of it."""

    env: str
    estimator: str
    seeds: int
    steps: int
    groups_a_step: int
    group_size: int
    items: int
    learning_rate: float
    seconds: float
    verdicts: list[LearnedVerdict]
    curves: dict[str, list[list[float | None]]]
    """Number → [seed][step]: means over the rollouts of a step, before it was taken."""
    changes: list[LearnedChange]
    parts: list[LearnedPart]
    states: list[LearnedStateValues]
    """Of the first seed, the most visited first."""
    rollouts: list[LearnedRollouts]
