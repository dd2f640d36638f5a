"""Whether the rollouts of an evaluation passed, as the environment says."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import numpy as np

from environments.base_env import AgentEnv
from environments.data.tasks import GroupTask
from environments.rollout.failures import failure_of
from environments.rollout.in_flight import InFlight
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
        with env.hook_calls(InFlight(item_id=task.item_id, sibling=trajectory.sibling)) as calls:
            verdict = await _verdict(calls.hook("passed", env.passed, task.item, trajectory), trajectory)
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            kept.append(trajectory)
            verdicts.append(verdict)
    failures.sort(key=lambda failure: failure.sibling)
    return replace(group, trajectories=tuple(kept), failures=tuple(failures)), tuple(verdicts)


async def _verdict(answer: Awaitable[Any], trajectory: Trajectory) -> bool | Failure:
    try:
        given = await answer
        if not isinstance(given, (bool, np.bool_)):
            raise RewardError(f"passed gave {given!r:.100}; give True or False")
        return bool(given)  # pyright: ignore[reportUnknownArgumentType]  # numpy's own type is generic
    except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a verdict
        return failure_of(error, sibling=trajectory.sibling, turns=len(trajectory.turns))
