"""One arm learns in an environment with one seed: rollouts, their record, a step of the policy, and again."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.data.tasks import GroupTask
from environments.lab.learning.choice_policy import ChoicePolicy, Learner
from environments.lab.learning.rollout_numbers import Numbers, group_numbers, mean_numbers
from environments.policy.base import Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.recorder import Recorder
from environments.record.run_folder import RunFolder
from environments.record.totals import Summary
from environments.run.evaluation_run import judged
from environments.run.experiment import origin_of
from environments.run.open_run import OpenRun, logged_run, run_facts
from environments.run.progress import Progress
from environments.run.run_log import RunLog
from environments.run.watchdog import watchdog_of
from environments.trajectory import CreditedGroup, Trajectory
from environments.viewer.learning_values import LearnedStateValues
from tools.errors import ConfigError, RunError

_STATES = 12
"""The most visited ones, whose choices are kept."""


class MakeEnv(Protocol):
    """Makes an environment: the class itself, or a function that gives it further arguments."""

    def __call__(self, config: AgentEnvConfig, *, policy: Policy) -> AgentEnv:
        """The environment, not yet open."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to credit the same rewards."""

    name: str
    estimator: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    learning_rate: float
    permuted: bool = False
    """Whether each step's advantages change places among its turns: a control, which can learn nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningSetup:
    """What all arms and seeds have in common."""

    make_env: MakeEnv
    config: AgentEnvConfig
    """Its estimator and seed are those of arm and seed."""
    groups: int = 2
    """Rolled out side by side for each step."""
    cap: int = 120
    """Steps."""
    seconds: float = math.inf
    """After which a run takes no further step."""
    success: Callable[[ChoicePolicy], float] | None = None
    """How good a policy is, exactly; `None`: unknown, and every run goes on to the cap."""
    target: float = 0.8
    """Of `success`, where a run ends."""
    is_measured: bool = False
    """Whether the first and the last policy play every item once, beside the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStep:
    """A policy after so many steps."""

    step: int
    success: float | None
    """Before this step's rollouts; `None`: unknown."""
    numbers: Numbers = field(default_factory=dict[str, float])
    """Means over this step's rollouts; empty at the end, where there are none."""
    seconds: float
    """Since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a policy does on each item; empty where it was not measured."""

    groups: Sequence[CreditedGroup] = ()
    numbers: Mapping[str, Sequence[Numbers]] = field(default_factory=dict[str, Sequence[Numbers]])
    """By item, those of each rollout that did not break."""

    @property
    def rollouts(self) -> list[Trajectory]:
        """Of all groups."""
        return rollouts_of(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedArm:
    """The result of one arm with one seed."""

    arm: str
    seed: int
    steps: int | None
    """Until the target; `None`: not reached."""
    curve: tuple[LearnedStep, ...]
    choices: Counter[bool]
    """How many were made, by whether their state had been met in an earlier step."""
    status: Counter[str]
    """Of the groups that were learned from."""
    survived: int
    """Rollouts that did not break."""
    lost: Counter[str]
    """Those that did, by error."""
    start: Measurement
    end: Measurement
    states: list[LearnedStateValues]
    """Of the last measurement, the most visited first."""


@dataclass(slots=True, kw_only=True)
class Recording:
    """The rollouts of an open environment: each group is in the record."""

    env: AgentEnv
    recorder: Recorder
    summary: Summary = field(default_factory=Summary)
    survived: int = 0
    lost: Counter[str] = field(default_factory=Counter[str])

    async def groups(self, tasks: Sequence[GroupTask], what: str) -> list[CreditedGroup]:
        """Roll tasks out side by side.

        Raises:
            RunError: every group failed, and no rollout survived or the estimator refused them.
        """
        groups = await asyncio.gather(*(self.env.run_group(task) for task in tasks))
        groups = [self.recorder.append(group) for group in groups]
        for credited in groups:
            self.summary.add(credited)
            self.survived += len(credited.group.trajectories)
            self.lost.update(failure.error for failure in credited.group.failures)
        is_refused = any(not each.group.failures for each in groups)
        if all(each.status == "failed" for each in groups) and (is_refused or not rollouts_of(groups)):
            failures = groups[0].group.failures
            why = failures[0].error if failures else groups[0].reason or "it was refused"
            raise RunError(f"every group of {what} failed, the first because of: {why}")
        return groups

    async def measured(self, tasks: Sequence[GroupTask], what: str) -> Measurement:
        """Roll tasks out, and judge each rollout as `evaluate` does; it is lost where that breaks.

        Raises:
            RunError: see `groups`.
        """
        groups = await self.groups(tasks, what)
        numbers: dict[str, Sequence[Numbers]] = {}
        for task, credited in zip(tasks, groups, strict=True):
            group = await judged(self.env, task, credited.group, nullcontext)
            broken = [each for each in group.failures if each not in credited.group.failures]
            self.survived -= len(broken)
            self.lost.update(failure.error for failure in broken)
            if group.trajectories:
                numbers[group.item_id] = group_numbers(group)
        return Measurement(groups=groups, numbers=numbers)


def rollouts_of(groups: Sequence[CreditedGroup]) -> list[Trajectory]:
    """Those that did not break."""
    return [each for credited in groups for each in credited.group.trajectories]


@asynccontextmanager
async def recorded(
    env: AgentEnv, folder: RunFolder, *, learning: str, planned: int
) -> AsyncGenerator[Recording]:
    """Open an environment and the record of a new run.

    Args:
        env: not open.
        folder: of the run.
        learning: what shapes the weights, and so the rollouts.
        planned: groups, at most.

    Raises:
        UsageError: the environment cannot be opened, or the record not written.
    """
    log = RunLog()
    with watchdog_of(env, Progress(Console(stderr=True), log=log)) as watchdog:
        async with env:
            origin = origin_of(env)
            origin = replace(origin, experiment={**origin.experiment, "learning": learning})
            with Recorder(folder.record, fresh=True, each_on_disk=False) as recorder:
                recorder.begin(origin)
                facts = run_facts(env, origin)
                run = OpenRun(recorder=recorder, folder=folder, resumed=False, say=log.add, facts=facts)
                with logged_run(run, folder, log, title=env.policy_name), watchdog.armed():
                    run.planned(groups=planned, done=0)
                    recording = Recording(env=env, recorder=recorder)
                    yield recording
                    recorder.wait_for_disk()
                    done = recording.summary.done
                    await run.end(recording.summary, done=done, planned=done, code=0)


async def run_arm(setup: LearningSetup, arm: Arm, seed: int, folder: RunFolder) -> LearnedArm:
    """Learn from groups k*B, k*B+1, … at step k, all of which are in the record of a new run.

    Args:
        setup: the environment and how long.
        arm: how it is credited.
        seed: of the rollouts and the control.
        folder: of the run.

    Raises:
        RunError: every group of a step failed.
        UsageError: the environment cannot be opened, or the record not written, or the scripted agent has
            nothing to choose.
    """
    renderer = ChatMLRenderer.load(setup.config.tokenizer_name)
    policy = ChoicePolicy(renderer, name=f"learned:{arm.name}:seed-{seed}")
    update = {
        "estimator": arm.estimator,
        "estimator_params": dict(arm.params),
        "estimator_preset": None,
        "seed": seed,
    }
    env = setup.make_env(setup.config.model_copy(update=update), policy=policy)
    credit = f"{arm.estimator} {dict(sorted(arm.params.items()))}{', permuted' if arm.permuted else ''}"
    learning = f"table, {setup.groups} groups a step, Adam {arm.learning_rate:g}, {credit}"
    async with recorded(env, folder, learning=learning, planned=setup.groups * setup.cap) as recording:
        return await _Learning(setup, arm, seed, policy, recording).run()


class _Learning:
    """One arm with one seed, in an open environment."""

    def __init__(
        self, setup: LearningSetup, arm: Arm, seed: int, policy: ChoicePolicy, recording: Recording
    ) -> None:
        self._setup, self._arm, self._seed = setup, arm, seed
        self._policy, self._recording = policy, recording
        self._learner = Learner(policy, arm.learning_rate)
        self._shuffle = np.random.default_rng(seed) if arm.permuted else None
        self._started = monotonic()
        self._met: set[str] = set()
        self._choices: Counter[bool] = Counter()
        self._status: Counter[str] = Counter()

    async def run(self) -> LearnedArm:
        start = await self._measured("the start")
        if start.groups and not self._policy.choices_of(start.rollouts):
            raise ConfigError(
                f"the scripted agent of {self._recording.env.name!r} has one choice at every turn, so that "
                f"there is nothing to learn: let scripted_choices give several messages, mistakes among them"
            )
        self._policy.forget()
        curve = await self._curve(len(start.groups), reserve_s=monotonic() - self._started)
        end = await self._measured("the end")
        last = curve[-1]
        is_reached = last.success is not None and last.success >= self._setup.target
        return LearnedArm(
            arm=self._arm.name,
            seed=self._seed,
            steps=last.step if is_reached else None,
            curve=tuple(curve),
            choices=self._choices,
            status=self._status,
            survived=self._recording.survived,
            lost=self._recording.lost,
            start=start,
            end=end,
            states=self._policy.learned_states(end.rollouts, most=_STATES),
        )

    async def _measured(self, what: str) -> Measurement:
        if not self._setup.is_measured:
            return Measurement()
        return await self._recording.measured(self._recording.env.tasks(), what)

    async def _curve(self, first_group: int, *, reserve_s: float) -> list[LearnedStep]:
        """Until the target, the cap or the end of the time, of which `reserve_s` are left over."""
        setup, curve = self._setup, list[LearnedStep]()
        tasks = self._recording.env.tasks_for_ever(first_group)
        step_s = 0.0
        while True:
            step, began = self._policy.step, monotonic()
            success = None if setup.success is None else setup.success(self._policy)
            is_late = began - self._started + step_s + reserve_s > setup.seconds
            is_last = step >= setup.cap or is_late or (success is not None and success >= setup.target)
            groups = [] if is_last else await self._rolled_out(list(islice(tasks, setup.groups)))
            numbers = [each for credited in groups for each in group_numbers(credited.group)]
            seconds = monotonic() - self._started
            curve.append(
                LearnedStep(step=step, success=success, numbers=mean_numbers(numbers), seconds=seconds)
            )
            if is_last:
                return curve
            self._learner.learn_from(groups, permuted_by=self._shuffle)
            step_s = monotonic() - began

    async def _rolled_out(self, tasks: Sequence[GroupTask]) -> list[CreditedGroup]:
        """The groups of a step, after which its states count as met."""
        groups = await self._recording.groups(tasks, f"step {self._policy.step}")
        self._status.update(credited.status for credited in groups)
        states = [each.state for each in self._policy.choices_of(rollouts_of(groups))]
        self._choices.update(state in self._met for state in states)
        self._met.update(states)
        return groups
