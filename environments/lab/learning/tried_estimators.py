"""What a trial keeps of each estimator with each seed, and of all of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from environments.credit.estimator_registry import Value
from environments.lab.learning.choice_policy import ChoicePolicy
from environments.lab.learning.learned_choices import LearnedState
from environments.lab.learning.learner import Learner
from environments.lab.learning.networks import Decision
from environments.lab.learning.paired_change import Played
from environments.lab.learning.rollout_numbers import Numbers, mean_numbers, numbers_of
from environments.lab.learning.trial_plan import TrialPlan
from environments.trajectory import CreditedGroup

Measured = Mapping[str, Sequence[Numbers]]
"""Item → the numbers of each rollout."""


@dataclass(slots=True, kw_only=True)
class SeedRun:
    """One estimator with one seed."""

    seed: int
    policy: ChoicePolicy
    learner: Learner
    curve: list[Numbers] = field(default_factory=list[Numbers])
    """The means over the rollouts of each step, before it was taken."""
    end: Measured = field(default_factory=dict[str, list[Numbers]])
    """Of the learned policy."""
    end_groups: Sequence[CreditedGroup] = ()
    states: Sequence[LearnedState] = ()
    met: set[str] = field(default_factory=set[str])
    """States that it had a choice in."""
    decisions: Counter[bool] = field(default_factory=Counter[bool])
    """By whether the state had been met in an earlier step."""
    groups: Counter[str] = field(default_factory=Counter[str])
    """Of all steps, by status."""
    refusal: str | None = None
    """Why a group has no credit that lost no rollout."""

    def take(self, groups: Sequence[CreditedGroup]) -> None:
        """Take a step on the groups that the policy has rolled out for it."""
        self.groups.update(credited.status for credited in groups)
        for credited in groups:
            if credited.status == "failed" and not credited.group.failures:
                self.refusal = credited.reason
        rollouts = [each for credited in groups for each in credited.group.trajectories]
        self.curve.append(mean_numbers(numbers_of(each) for each in rollouts))
        decisions = [each for rollout in rollouts for each in self.policy.decisions_of(rollout)]
        states = [each.state for each in decisions if is_choice(each)]
        self.decisions.update(state in self.met for state in states)
        self.met.update(states)
        self.learner.learn_from(groups)


@dataclass(slots=True, kw_only=True)
class TriedEstimator:
    """One estimator, with each seed."""

    estimator: str
    params: Mapping[str, Value]
    seeds: Sequence[SeedRun]
    refused: str | None = None
    """Why it cannot compute with the numbers of this environment."""

    def refusal(self) -> str | None:
        """Why no group of any seed has credit, where that is not because rollouts broke."""
        if any(run.groups.keys() - {"failed"} for run in self.seeds):
            return None
        return next((run.refusal for run in self.seeds if run.refusal is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """All that was measured."""

    plan: TrialPlan
    steps: int
    """That were taken; fewer than planned where the time was over."""
    seconds: float
    has_state_key: bool
    has_script: bool
    """Whether the environment writes `scripted_choices`."""
    arms: Sequence[TriedEstimator]
    reference: Measured
    starts: Played
    reference_groups: Sequence[CreditedGroup]
    start_groups: Sequence[CreditedGroup]
    """Of the first seed."""
    survived: int
    """Rollouts that did not break."""
    lost: Counter[str]
    """Those that did, by error."""


def is_choice(decision: Decision | None) -> TypeGuard[Decision]:
    """Whether there was more than one message to choose among."""
    return decision is not None and len(decision.choices) > 1
