"""Whether the rollouts of an evaluation passed, as the environment says."""

from dataclasses import replace
from inspect import isawaitable
from typing import Any

import numpy as np

from environments.base_env import AgentEnv
from environments.data.tasks import GroupTask
from environments.rollout.failures import failure_of
from environments.trajectory import Failure, Trajectory, TrajectoryGroup
from tools.errors import RewardError


async def judged(
    env: AgentEnv, task: GroupTask, group: TrajectoryGroup
) -> tuple[TrajectoryGroup, tuple[bool, ...]]:
    """A group whose rollouts without a verdict are failures, and the verdict on each that is left."""
    kept: list[Trajectory] = []
    verdicts: list[bool] = []
    failures = list(group.failures)
    for trajectory in group.trajectories:
        verdict = await _verdict(env, task, trajectory)
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            kept.append(trajectory)
            verdicts.append(verdict)
    failures.sort(key=lambda failure: failure.sibling)
    return replace(group, trajectories=tuple(kept), failures=tuple(failures)), tuple(verdicts)


async def _verdict(env: AgentEnv, task: GroupTask, trajectory: Trajectory) -> bool | Failure:
    try:
        given: Any = env.passed(task.item, trajectory)
        if isawaitable(given):
            given = await given
        if not isinstance(given, (bool, np.bool_)):
            raise RewardError(f"passed gave {given!r:.100}; give True or False")
        return bool(given)  # pyright: ignore[reportUnknownArgumentType]  # numpy's own type is generic
    except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a verdict
        return failure_of(error, sibling=trajectory.sibling, turns=len(trajectory.turns))
