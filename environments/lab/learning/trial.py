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
from environments.credit.estimator_registry import Value
from environments.data.tasks import GroupTask
from environments.hooks import refuse_missing_parts, writes
from environments.lab.learning.choice_policy import ChoicePolicy
from environments.lab.learning.learned_choices import learned_states
from environments.lab.learning.learner import Learner
from environments.lab.learning.networks import Table
from environments.lab.learning.rollout_numbers import Numbers, group_numbers
from environments.lab.learning.trial_plan import FEWEST_ITEMS, GROUPS_A_STEP, Asked, TrialPlan, plan_within
from environments.lab.learning.tried_estimators import SeedRun, TrialResult, TriedEstimator, is_choice
from environments.policy.base import Policy
from environments.policy.scripted import PlaysByScript, Script, ScriptedPolicy
from environments.run.evaluation_run import judged
from environments.trajectory import CreditedGroup
from tools.errors import ConfigError, RunError

REFERENCE, START = "scripted agent at skill 1", "start"
_STATES = 12
_REFUSALS = 3
"""Steps without any credit after which an estimator is given up."""
_EPOCHS = 100_000
"""Of one seed: its rollouts share no seed with those of another."""

Record = Callable[[CreditedGroup], Awaitable[CreditedGroup]]


class FlawlessScript(PlaysByScript):
    """The scripted agent at skill 1, whatever skill the choices are taken at."""

    def __init__(self, env: AgentEnv) -> None:
        """Of this environment."""
        self._renderer = env.renderer

    @property
    def name(self) -> str:
        """What the record calls it."""
        return REFERENCE

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        """Whoever plays one rollout."""
        return ScriptedPolicy(script, skill=1.0, renderer=self._renderer, summary=summary)


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
    _survived: int = 0
    _lost: Counter[str] = field(default_factory=Counter[str])
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
        self._refuse_broken("the first item", survived=0)
        before, survived = monotonic(), self._survived
        choosing = ChoicePolicy(Table(), env.renderer, name=f"learned: {START}")
        probe = await self._play(choosing, few)
        group_s = (monotonic() - before) / len(few)
        self._refuse_broken("the first items", survived=survived)
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
        survived = self._survived
        await self._end(arms, tasks)
        if any(arm.refused is None for arm in arms):
            self._refuse_broken("the learned policies", survived=survived)
        return TrialResult(
            plan=plan,
            steps=steps,
            seconds=monotonic() - self._started,
            has_state_key=writes(env, "state_key"),
            has_script=writes(env, "scripted_choices"),
            arms=arms,
            reference=await self._measured(reference),
            starts=[await self._measured(groups) for groups in starts],
            reference_groups=reference,
            start_groups=starts[0],
            survived=self._survived,
            lost=self._lost,
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
            began, survived = monotonic(), self._survived
            for arm in arms:
                for run in arm.seeds if arm.refused is None else ():
                    batch = [
                        tasks[(step * GROUPS_A_STEP + each) % len(tasks)] for each in range(GROUPS_A_STEP)
                    ]
                    batch = [replace(task, epoch=task.epoch + each) for each, task in enumerate(batch)]
                    groups = await self._play(run.policy, _at(batch, run.seed, 2 * step + 1), arm)
                    run.take(groups)
                if step + 1 >= min(_REFUSALS, plan.steps):
                    arm.refused = arm.refused or arm.refusal()
            if any(arm.refused is None for arm in arms):
                self._refuse_broken(f"step {step + 1}", survived=survived)
            now = monotonic()
            if now - self._started + (now - began) + reserve > self.asked.seconds:
                return step + 1
        return plan.steps

    async def _end(self, arms: Sequence[TriedEstimator], tasks: Sequence[GroupTask]) -> None:
        for arm in arms:
            for run in arm.seeds if arm.refused is None else ():
                run.end_groups = await self._play(run.policy, _at(tasks, run.seed, 0), arm, forget=False)
                run.end = await self._measured(run.end_groups)
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
        for credited in groups:
            self._survived += len(credited.group.trajectories)
            self._lost.update(failure.error for failure in credited.group.failures)
        return [await self.record(credited) for credited in groups]

    async def _measured(self, groups: Sequence[CreditedGroup]) -> dict[str, Sequence[Numbers]]:
        """By item, with what `evaluate` says of each rollout, which is lost where that breaks."""
        of_items = {task.item_id: task for task in self.env.tasks()}
        measured: dict[str, Sequence[Numbers]] = {}
        for group in (credited.group for credited in groups):
            with_verdicts = await judged(self.env, of_items[group.item_id], group, self.watch)
            broken = [each for each in with_verdicts.failures if each not in group.failures]
            self._survived -= len(broken)
            self._lost.update(failure.error for failure in broken)
            if with_verdicts.trajectories:
                measured[group.item_id] = group_numbers(with_verdicts)
        return measured

    def _refuse_broken(self, what: str, *, survived: int) -> None:
        """Where none of its rollouts is added to those that had survived before."""
        if self._survived == survived:
            raise RunError(f"every rollout of {what} broke: {self._lost.most_common(1)[0][0]}")

    def _refuse_no_choice(self, policy: ChoicePolicy, groups: Sequence[CreditedGroup]) -> None:
        decisions = [
            each
            for credited in groups
            for rollout in credited.group.trajectories
            for each in policy.decisions_of(rollout)
        ]
        policy.forget()
        if not any(is_choice(each) for each in decisions):
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


def _at(tasks: Sequence[GroupTask], seed: int, epoch: int) -> list[GroupTask]:
    """The tasks with the world and the luck of this seed's epoch."""
    return [replace(task, epoch=task.epoch + seed * _EPOCHS + epoch) for task in tasks]
