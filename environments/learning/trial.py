"""Estimators tried on an environment: with each, a table policy learns among the scripted agent's choices."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from types import MappingProxyType

from environments.base_env import AgentEnv
from environments.containment.in_flight import Watch
from environments.credit import describe, read_params
from environments.credit.parameters import Value
from environments.data.tasks import GroupTask
from environments.hooks import refuse_missing_parts, writes
from environments.learning.choice_policy import ChoicePolicy
from environments.learning.learned_choices import LearnedState, learned_states
from environments.learning.learner import Learner
from environments.learning.networks import Decision, Table
from environments.learning.paired_change import Played
from environments.learning.rollout_numbers import Numbers, group_numbers, mean_numbers, numbers_of
from environments.learning.trial_plan import FEWEST_ITEMS, GROUPS_A_STEP, Asked, TrialPlan, plan_within
from environments.policy.base import CompletionRequest, Policy
from environments.policy.scripted import Script, ScriptedPolicy
from environments.trajectory import Completion, CreditedGroup
from tools.errors import ConfigError, RunError

REFERENCE, START = "scripted agent at skill 1", "start"
_STATES = 12
_EPOCHS = 100_000
"""Of one seed: its rollouts share no seed with those of another."""

Record = Callable[[CreditedGroup], Awaitable[CreditedGroup]]


class FlawlessScript:
    """The scripted agent at skill 1, whatever skill the choices are taken at."""

    name = REFERENCE

    async def complete(self, request: CompletionRequest) -> Completion:
        """It has no choices without a script.

        Raises:
            ConfigError: always; `AgentEnv` asks whoever `playing` gives.
        """
        raise ConfigError("the reference plays by an environment's scripted_choices: give it to AgentEnv")

    def __init__(self, env: AgentEnv) -> None:
        """Of this environment."""
        self._renderer = env.renderer

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        """Whoever plays one rollout."""
        return ScriptedPolicy(script, skill=1.0, renderer=self._renderer, summary=summary)


@dataclass(slots=True, kw_only=True)
class SeedRun:
    """One estimator with one seed."""

    seed: int
    policy: ChoicePolicy
    learner: Learner
    curve: list[Numbers] = field(default_factory=list[Numbers])
    """The means over the rollouts of each step, before it was taken."""
    end: Mapping[str, Numbers] = field(default_factory=dict[str, Numbers])
    """Of the learned policy, by item."""
    end_groups: Sequence[CreditedGroup] = ()
    states: Sequence[LearnedState] = ()
    met: set[str] = field(default_factory=set[str])
    """States that it had a choice in."""
    decisions: Counter[bool] = field(default_factory=Counter[bool])
    """By whether the state had been met in an earlier step."""
    groups: Counter[str] = field(default_factory=Counter[str])
    """Of all steps, by status."""


@dataclass(slots=True, kw_only=True)
class TriedEstimator:
    """One estimator, with each seed."""

    estimator: str
    params: Mapping[str, Value]
    seeds: Sequence[SeedRun]
    refused: str | None = None
    """Why it cannot compute with the numbers of this environment."""


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
    reference: Mapping[str, Numbers]
    starts: Played
    reference_groups: Sequence[CreditedGroup]
    start_groups: Sequence[CreditedGroup]
    """Of the first seed."""
    failed_groups: int


def checked_estimators(env: AgentEnv, names: Sequence[str]) -> list[str]:
    """Their names in the registry, each once.

    Raises:
        CreditError: there is no such estimator.
        ConfigError: it needs what the environment does not write.
    """
    checked = list(dict.fromkeys(describe(name).name for name in names))
    for name in checked:
        refuse_missing_parts(env, name)
        if name != env.estimator:
            read_params(name, None, {})
    return checked


@dataclass(slots=True, kw_only=True)
class Trial:
    """Plays everything in one open environment: who plays, and who gives credit, changes between groups."""

    env: AgentEnv
    """Open; its policy and its estimator are ours from here on."""
    estimators: Sequence[str]
    """As `checked_estimators` gives them; empty: those that suit it."""
    asked: Asked
    learning_rate: float
    """The same for all."""
    record: Record
    """Takes each group when it ended."""
    watch: Watch
    planned: Callable[[TrialPlan, float, int], None]
    """Is told the plan, the seconds of a group, and how many estimators there are."""
    _failed: int = 0
    _started: float = field(default_factory=monotonic)
    _own: tuple[str, Mapping[str, Value]] = ("", MappingProxyType({}))
    """The environment's estimator and its parameters."""

    def __post_init__(self) -> None:
        """Keep what will be changed."""
        self._own = self.env.estimator, self.env.estimator_params

    async def run(self) -> TrialResult:
        """Measure, learn, measure.

        Raises:
            ConfigError: there is nothing to choose, or the time is too short.
            RunError: every rollout of the first items broke.
        """
        env, tasks = self.env, self.env.tasks()
        few = tasks[:FEWEST_ITEMS]
        flawless = FlawlessScript(env)
        reference = await self._play(flawless, few[:1])
        self._refuse_broken(reference)
        before = monotonic()
        choosing = ChoicePolicy(Table(), env.renderer, name=f"learned: {START}")
        probe = await self._play(choosing, few)
        group_s = (monotonic() - before) / len(few)
        self._refuse_no_choice(choosing, probe)
        names = self.estimators or self._suitable([*reference, *probe])
        plan = plan_within(self.asked, group_s=group_s, arms=len(names), items=len(tasks))
        self.planned(plan, group_s, len(names))
        tasks = tasks[: plan.items]
        reference += await self._play(flawless, tasks[1:])
        starts = [probe + await self._start(0, tasks[len(few) :])]
        starts += [await self._start(seed, tasks) for seed in range(1, plan.seeds)]
        arms = [self._arm(name, plan.seeds) for name in names]
        steps = await self._learn(arms, plan, tasks, group_s)
        await self._end(arms, tasks)
        return TrialResult(
            plan=plan,
            steps=steps,
            seconds=monotonic() - self._started,
            has_state_key=writes(env, "state_key"),
            has_script=writes(env, "scripted_choices"),
            arms=arms,
            reference=_by_item(reference),
            starts=[_by_item(groups) for groups in starts],
            reference_groups=reference,
            start_groups=starts[0],
            failed_groups=self._failed,
        )

    async def _start(self, seed: int, tasks: Sequence[GroupTask]) -> list[CreditedGroup]:
        policy = ChoicePolicy(Table(), self.env.renderer, name=f"learned: {START}, seed {seed}")
        return await self._play(policy, _at(tasks, seed, 0))

    def _arm(self, name: str, seeds: int) -> TriedEstimator:
        runs: list[SeedRun] = []
        for seed in range(seeds):
            policy = ChoicePolicy(Table(), self.env.renderer, name=f"learned: {name}, seed {seed}")
            runs.append(SeedRun(seed=seed, policy=policy, learner=Learner(policy, self.learning_rate)))
        return TriedEstimator(estimator=name, params=self._params(name), seeds=runs)

    def _params(self, name: str) -> Mapping[str, Value]:
        estimator, params = self._own
        return params if name == estimator else read_params(name, None, {})

    async def _learn(
        self, arms: Sequence[TriedEstimator], plan: TrialPlan, tasks: Sequence[GroupTask], group_s: float
    ) -> int:
        """All arms take a step, then all the next, so that they have equally many when the time is over."""
        reserve = group_s * plan.items * plan.seeds * len(arms)
        for step in range(plan.steps):
            began = monotonic()
            for arm in arms:
                for run in arm.seeds if arm.refused is None else ():
                    batch = [
                        tasks[(step * GROUPS_A_STEP + each) % len(tasks)] for each in range(GROUPS_A_STEP)
                    ]
                    batch = [replace(task, epoch=task.epoch + each) for each, task in enumerate(batch)]
                    groups = await self._play(run.policy, _at(batch, run.seed, 2 * step + 1), arm)
                    self._step(arm, run, groups)
            now = monotonic()
            if now - self._started + (now - began) + reserve > self.asked.seconds:
                return step + 1
        return plan.steps

    def _step(self, arm: TriedEstimator, run: SeedRun, groups: Sequence[CreditedGroup]) -> None:
        run.groups.update(credited.status for credited in groups)
        if all(each.status == "failed" and each.group.trajectories for each in groups):
            arm.refused = groups[0].reason
            return
        usable = [credited for credited in groups if credited.status != "failed"]
        rollouts = [each for credited in groups for each in credited.group.trajectories]
        run.curve.append(mean_numbers(numbers_of(each) for each in rollouts))
        decisions = [
            each for rollout in rollouts for each in run.policy.decisions_of(rollout) if _is_choice(each)
        ]
        run.decisions.update(decision.state in run.met for decision in decisions if decision)
        run.met.update(decision.state for decision in decisions if decision)
        turns = run.learner.sampled_turns(usable)
        run.learner.learn(turns, max(1, sum(len(credited.group.trajectories) for credited in usable)))

    async def _end(self, arms: Sequence[TriedEstimator], tasks: Sequence[GroupTask]) -> None:
        for arm in arms:
            for run in arm.seeds if arm.refused is None else ():
                run.end_groups = await self._play(run.policy, _at(tasks, run.seed, 0), arm, forget=False)
                run.end = _by_item(run.end_groups)
                rollouts = [each for credited in run.end_groups for each in credited.group.trajectories]
                run.states = learned_states(run.policy, rollouts, self.env.renderer, most=_STATES)
                run.policy.forget()

    async def _play(
        self,
        policy: Policy,
        tasks: Sequence[GroupTask],
        arm: TriedEstimator | None = None,
        *,
        forget: bool | None = None,
    ) -> list[CreditedGroup]:
        """The groups of these tasks, recorded; with no arm, by the environment's own estimator."""
        env = self.env
        env.policy = policy
        env.estimator, params = self._own if arm is None else (arm.estimator, arm.params)
        env.estimator_params = dict(params)
        groups = await asyncio.gather(*(env.run_group(task, watch=self.watch) for task in tasks))
        self._failed += sum(credited.group.is_lost for credited in groups)
        return [await self.record(credited) for credited in groups]

    def _refuse_broken(self, groups: Sequence[CreditedGroup]) -> None:
        failures = [failure for credited in groups for failure in credited.group.failures]
        if failures and not any(credited.group.trajectories for credited in groups):
            raise RunError(f"every rollout of the first item broke: {failures[0].error}")

    def _refuse_no_choice(self, policy: ChoicePolicy, groups: Sequence[CreditedGroup]) -> None:
        decisions = [
            each
            for credited in groups
            for rollout in credited.group.trajectories
            for each in policy.decisions_of(rollout)
        ]
        policy.forget()
        if not any(_is_choice(each) for each in decisions):
            raise ConfigError(
                f"the scripted agent of {self.env.name!r} has one choice at every turn, so that there is "
                f"nothing to learn: let scripted_choices give several messages, mistakes among them"
            )

    def _suitable(self, groups: Sequence[CreditedGroup]) -> list[str]:
        """Per turn where there are turn rewards, scalar, by states where they have names, and the own one."""
        rollouts = [each for credited in groups for each in credited.group.trajectories]
        has_turns = any(each.rewards is not None and each.rewards.turns is not None for each in rollouts)
        names = ["turn_return"] * has_turns + ["rloo"] + ["gigpo"] * writes(self.env, "state_key")
        return list(dict.fromkeys([*names, self._own[0]]))


def _by_item(groups: Sequence[CreditedGroup]) -> dict[str, Numbers]:
    return {each.group.item_id: group_numbers(each.group) for each in groups if each.group.trajectories}


def _at(tasks: Sequence[GroupTask], seed: int, epoch: int) -> list[GroupTask]:
    """The tasks with the world and the luck of this seed's epoch."""
    return [replace(task, epoch=task.epoch + seed * _EPOCHS + epoch) for task in tasks]


def _is_choice(decision: Decision | None) -> bool:
    return decision is not None and len(decision.choices) > 1
