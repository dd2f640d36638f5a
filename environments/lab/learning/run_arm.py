"""One arm of a comparison learns with one seed: rollouts, their record, a step of the policy, and again."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import Any, Literal

import numpy as np

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.lab.learning.choice_policy import ChoicePolicy
from environments.lab.learning.learner import Learner
from environments.lab.learning.networks import MLP, Network, Table
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import say
from environments.record.origin import RunOrigin
from environments.record.recorder import Recorder
from environments.record.run_folder import RunFolder
from environments.record.totals import Summary
from environments.run.experiment import origin_of
from environments.run.open_run import OpenRun, logged_run, run_facts
from environments.run.run_log import RunLog
from environments.trajectory import CreditedGroup
from tools.errors import RunError

NetworkKind = Literal["table", "mlp"]


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

    env_cls: type[AgentEnv]
    config: AgentEnvConfig
    """Its estimator and seed are those of arm and seed."""
    network: NetworkKind = "table"
    groups: int = 2
    """Rolled out side by side for each step."""
    cap: int = 120
    """Steps."""
    success: Callable[[ChoicePolicy], float] | None = None
    """How good a policy is, exactly; `None`: nobody knows, and every run goes on to the cap."""
    target: float = 0.8
    """Of `success`, where a run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStep:
    """A policy after so many steps."""

    step: int
    success: float | None
    """Before this step's rollouts; `None`: unknown."""
    score: float | None = None
    """Mean over this step's rollouts; `None` at the end, where there are none."""
    turns: int = 0
    """Of this step's rollouts."""
    seconds: float
    """Since the start."""

    @property
    def value(self) -> float | None:
        """What a curve shows."""
        return self.score if self.success is None else self.success


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedArm:
    """What came out of one arm with one seed."""

    arm: str
    seed: int
    steps: int | None
    """Until the target; `None`: not reached."""
    curve: tuple[LearnedStep, ...]


async def run_arm(
    setup: LearningSetup, arm: Arm, seed: int, folder: RunFolder, on_step: Callable[[LearnedStep], None]
) -> LearnedArm:
    """Learn from groups k*B, k*B+1, … at step k, all of which are in the record of a new run.

    Args:
        setup: the environment and how long.
        arm: how it is credited.
        seed: of the rollouts, the network and the control.
        folder: of the run.
        on_step: told each step as it is done.

    Raises:
        RunError: every group of a step failed.
        UsageError: the environment cannot be opened, or the record not written.
    """
    renderer = ChatMLRenderer.load(setup.config.tokenizer_name)
    name = f"learned:{arm.name}:seed-{seed}"
    policy = ChoicePolicy(_network(setup.network, renderer, seed), renderer, name=name)
    env = setup.env_cls(_config(setup, arm, seed), policy=policy)
    async with env:
        origin, log = _origin(env, setup, arm), RunLog()
        with Recorder(folder.record, fresh=True, each_on_disk=False) as recorder:
            recorder.begin(origin)
            facts = run_facts(env, origin)
            run = OpenRun(recorder=recorder, folder=folder, resumed=False, say=log.add, facts=facts)
            with logged_run(run, folder, log, title=name):
                run.planned(groups=setup.groups * setup.cap, done=0)
                learning = _Learning(env, setup, arm, seed, recorder)
                curve = await learning.curve(on_step)
                recorder.wait_for_disk()
                done = learning.summary.done
                await run.end(learning.summary, done=done, planned=done, code=0)
    last = curve[-1]
    reached = last.success is not None and last.success >= setup.target
    return LearnedArm(arm=arm.name, seed=seed, steps=last.step if reached else None, curve=tuple(curve))


class _Learning:
    """The steps of one arm and seed."""

    def __init__(self, env: AgentEnv, setup: LearningSetup, arm: Arm, seed: int, recorder: Recorder) -> None:
        assert isinstance(env.policy, ChoicePolicy)
        self._env, self._setup, self._recorder = env, setup, recorder
        self._policy = env.policy
        self._learner = Learner(env.policy, arm.learning_rate)
        self._shuffle = np.random.default_rng(seed) if arm.permuted else None
        self._tasks = env.tasks_for_ever(0)
        self.summary = Summary()
        """Of all groups."""

    async def curve(self, on_step: Callable[[LearnedStep], None]) -> list[LearnedStep]:
        """Until the target or the cap."""
        started, curve = monotonic(), list[LearnedStep]()
        while True:
            step = self._policy.step
            success = None if self._setup.success is None else self._setup.success(self._policy)
            is_last = step >= self._setup.cap or (success is not None and success >= self._setup.target)
            groups = [] if is_last else await self._rolled_out(step)
            scores = [each.score for group in groups for each in group.group.trajectories]
            known = [score for score in scores if score is not None]
            reached = LearnedStep(
                step=step,
                success=success,
                score=sum(known) / len(known) if known else None,
                turns=sum(len(each.turns) for group in groups for each in group.group.trajectories),
                seconds=monotonic() - started,
            )
            curve.append(reached)
            on_step(reached)
            if is_last:
                return curve
            self._learner.learn_from(groups, permuted_by=self._shuffle)

    async def _rolled_out(self, step: int) -> list[CreditedGroup]:
        """The groups of a step that did not all fail; all of them are in the record."""
        tasks = islice(self._tasks, self._setup.groups)
        groups = await asyncio.gather(*(self._env.run_group(task) for task in tasks))
        groups = [self._recorder.append(group) for group in groups]
        for group in groups:
            self.summary.add(group)
        left = [group for group in groups if group.status != "failed"]
        if not left:
            raise RunError(f"every group of step {step} failed, the first because of: {_why(groups[0])}")
        return left


def _network(kind: NetworkKind, renderer: ChatMLRenderer, seed: int) -> Network:
    if kind == "table":
        return Table()

    def encode(text: str) -> Sequence[int]:
        return renderer.completion_ids(say(text), stopped=False)

    return MLP(encode, vocabulary=renderer.vocabulary_size, seed=seed)


def _config(setup: LearningSetup, arm: Arm, seed: int) -> AgentEnvConfig:
    return setup.config.model_copy(
        update={
            "estimator": arm.estimator,
            "estimator_params": dict(arm.params),
            "estimator_preset": None,
            "seed": seed,
        }
    )


def _origin(env: AgentEnv, setup: LearningSetup, arm: Arm) -> RunOrigin:
    """With what shapes the weights, and so the rollouts."""
    origin = origin_of(env)
    how = f"{setup.network}, {setup.groups} groups a step, Adam {arm.learning_rate:g}"
    credit = f"{arm.estimator} {dict(sorted(arm.params.items()))}{', permuted' if arm.permuted else ''}"
    return replace(origin, experiment={**origin.experiment, "learning": f"{how}, {credit}"})


def _why(credited: CreditedGroup) -> str:
    failures = credited.group.failures
    return failures[0].error if failures else credited.reason or "it was refused"
