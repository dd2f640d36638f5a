"""Arms that learn in an environment, each with every seed: rollouts, their record, a step of the policy."""

import asyncio
import json
import math
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.base import Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.append_file import AppendFile
from environments.record.diagnosis import Cause, cause_of, diagnosis
from environments.record.private_file import write_private
from environments.record.recorder import Recorder
from environments.record.run_folder import RunFolder
from environments.record.totals import Summary
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import origin_of
from environments.run.group_source import score_eval
from environments.run.open_run import OpenRun, logged_run, put_aside, run_facts
from environments.run.progress import Progress
from environments.run.run_list import RunLog
from environments.run.watchdog import watched_run
from environments.trajectory import CreditedGroup, Trajectory
from tools.errors import ConfigError, RecordError, RunError
from turnwise.lab.learning.choice_policy import ChoicePolicy, Learner
from turnwise.lab.learning.rollout_numbers import Numbers, group_numbers, mean_numbers
from turnwise.viewer.learning_values import LearnedStateValues

CURVE, RESULT = "curve.jsonl", "result.json"
TURN, SCALAR = "turn_return", "scalar"
"""The arms whose medians are compared."""
_STATES = 12
"""The most visited ones, whose choices are kept."""

Say = Callable[[str], None]


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
    causes: Counter[Cause | None]
    """Why how many groups of the steps had no credit; `None`: those that had some."""
    survived: int
    """Rollouts that did not break."""
    lost: Counter[str]
    """Those that did, by error."""
    start: Measurement
    end: Measurement
    states: list[LearnedStateValues]
    """Of the last measurement, the most visited first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedArms:
    """The results of each arm with each seed."""

    arms: Sequence[Arm]
    ended: Mapping[str, Sequence[LearnedArm]]
    """By name, in the order of seeds."""
    seconds: float

    def steps(self, name: str) -> list[int | None]:
        """Until the target, seed by seed; `None`: not reached."""
        return [each.steps for each in self.ended[name]]

    def median(self, name: str) -> float | None:
        """Of the steps; `None` where most seeds did not arrive."""
        middle = median(math.inf if each is None else each for each in self.steps(name))
        return None if math.isinf(middle) else middle

    @property
    def ratio(self) -> float | None:
        """Steps that turn credit takes, in those of the scalar; `None` where one of them has no median."""
        turn, scalar = self.median(TURN), self.median(SCALAR)
        return None if turn is None or scalar is None or scalar == 0 else turn / scalar

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        arms = {
            arm.name: {
                "steps": self.steps(arm.name),
                "median": self.median(arm.name),
                "success": [each.curve[-1].success for each in self.ended[arm.name]],
            }
            for arm in self.arms
        }
        return {"arms": arms, "ratio": self.ratio, "seconds": round(self.seconds, 3)}


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
            raise RunError(f"every group of {what} failed: {diagnosis(groups)}")
        return groups

    async def measured(self, tasks: Sequence[GroupTask], what: str) -> Measurement:
        """Roll tasks out, and judge each rollout as `evaluate` does; it is lost where that breaks.

        Raises:
            RunError: see `groups`.
        """
        groups = await self.groups(tasks, what)
        numbers: dict[str, Sequence[Numbers]] = {}
        for task, credited in zip(tasks, groups, strict=True):
            group = await score_eval(self.env, task, credited.group, nullcontext)
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
    with watched_run(env, Progress(Console(stderr=True), log=log)) as watchdog:
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
        return await _learned(setup, arm, seed, policy, recording)


async def _learned(
    setup: LearningSetup, arm: Arm, seed: int, policy: ChoicePolicy, recording: Recording
) -> LearnedArm:
    """One arm with one seed, in an open environment."""
    env, started, step_s = recording.env, monotonic(), 0.0
    learner, shuffle = Learner(policy, arm.learning_rate), np.random.default_rng(seed)
    curve, met = list[LearnedStep](), set[str]()
    choices, causes = Counter[bool](), Counter[Cause | None]()
    start = end = Measurement()
    if setup.is_measured:
        start = await recording.measured(env.tasks(), "the start")
        if not policy.choices_of(rollouts_of(start.groups)):
            raise ConfigError(
                f"the scripted agent of {env.name!r} has one choice at every turn, so that there is nothing "
                f"to learn: let scripted_choices give several messages, mistakes among them"
            )
        policy.forget()
    reserve_s = monotonic() - started  # as the last measurement will take
    tasks = env.tasks_for_ever(len(start.groups))
    while True:
        began = monotonic()
        success = None if setup.success is None else setup.success(policy)
        is_reached = success is not None and success >= setup.target
        is_late = began - started + step_s + reserve_s > setup.seconds
        is_last = is_reached or is_late or policy.step >= setup.cap
        batch = [] if is_last else list(islice(tasks, setup.groups))
        groups = await recording.groups(batch, f"step {policy.step}") if batch else []
        numbers = mean_numbers(each for credited in groups for each in group_numbers(credited.group))
        seconds = monotonic() - started
        curve.append(LearnedStep(step=policy.step, success=success, numbers=numbers, seconds=seconds))
        if is_last:
            break
        causes.update(map(cause_of, groups))
        states = [each.state for each in policy.choices_of(rollouts_of(groups))]
        choices.update(state in met for state in states)
        met.update(states)
        learner.learn_from(groups, permuted_by=shuffle if arm.permuted else None)
        step_s = monotonic() - began
    if setup.is_measured:
        end = await recording.measured(env.tasks(), "the end")
    return LearnedArm(
        arm=arm.name,
        seed=seed,
        steps=policy.step if is_reached else None,
        curve=tuple(curve),
        choices=choices,
        causes=causes,
        survived=recording.survived,
        lost=recording.lost,
        start=start,
        end=end,
        states=policy.learned_states(rollouts_of(end.groups), most=_STATES),
    )


class LearnFolder:
    """A folder that is ours alone while it is open: curves, the result, and a run for each arm and seed."""

    def __init__(self, path: Path, curve: AppendFile) -> None:
        self.path = path
        self._curve = curve

    def add(self, learned: LearnedArm) -> None:
        """Keep a curve."""
        for step in learned.curve:
            line = {
                "arm": learned.arm,
                "seed": learned.seed,
                "step": step.step,
                "success": step.success,
                "seconds": round(step.seconds, 3),
                **step.numbers,
            }
            self._curve.append(json.dumps(line).encode() + b"\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of results."""
        write_private(self.path / name, text.encode())


@contextmanager
def opened_folder(path: Path, say: Say) -> Generator[LearnFolder]:
    """A new folder, in the place of a former one, which is put aside.

    Raises:
        RecordError: it cannot be written, holds something else, or another process writes there.
    """
    if os.path.lexists(path):
        if not os.path.isdir(path):  # noqa: PTH112  # `is_dir` may raise
            raise RecordError(f"cannot write {path}: it is a file; give a folder")
        if (path / CURVE).is_file():
            put_aside(path, path / CURVE, say)
        elif any(path.iterdir()):
            raise RecordError(
                f"{path} holds something else than a former `turnwise learn`; give another folder"
            )
    curve = AppendFile(path / CURVE, fresh=False, each_on_disk=False)
    try:
        yield LearnFolder(path, curve)
    finally:
        curve.close()


async def compare_arms(
    setup: LearningSetup, arms: Sequence[Arm], seeds: Sequence[int], *, folder: LearnFolder, say: Say
) -> LearnedArms:
    """Let each arm learn with each seed, and keep the curves in an open folder; `say` shows a line for each.

    Raises:
        RunError: every group of a step failed.
        UsageError: the environment cannot be opened, or the folder not written.
    """
    started = monotonic()
    ended: dict[str, list[LearnedArm]] = {arm.name: [] for arm in arms}
    # Seed by seed, so that all arms are seen from the start.
    for seed in seeds:
        for arm in arms:
            learned = await run_arm(setup, arm, seed, RunFolder(folder.path / arm.name / f"seed-{seed}"))
            folder.add(learned)
            say(_line(learned, setup.target))
            ended[arm.name].append(learned)
    return LearnedArms(arms=arms, ended=ended, seconds=monotonic() - started)


def _line(ended: LearnedArm, target: float) -> str:
    last = ended.curve[-1]
    if last.success is None:
        took = f"{last.step} steps"
    elif ended.steps is None:
        took = f"success {last.success:.2g} after {last.step} steps, target {target:g} not reached"
    else:
        took = f"success {target:g} after {ended.steps} steps"
    return f"{ended.arm} seed {ended.seed}: {took} ({last.seconds:.1f} s)"
