"""Whether the rollouts of an evaluation passed, as the environment says."""

from dataclasses import replace

import numpy as np

from environments.base_env import AgentEnv
from environments.containment.in_flight import InFlight, Watch
from environments.data.tasks import GroupTask
from environments.rollout.failures import failure_of
from environments.trajectory import Failure, Trajectory, TrajectoryGroup
from tools.errors import RewardError


async def judged(
    env: AgentEnv, task: GroupTask, group: TrajectoryGroup, watch: Watch
) -> tuple[TrajectoryGroup, tuple[bool, ...]]:
    """A group whose rollouts without a verdict are failures, and the verdict on each that is left."""
    kept: list[Trajectory] = []
    verdicts: list[bool] = []
    failures = list(group.failures)
    for trajectory in group.trajectories:
        verdict = await _verdict(env, task, trajectory, watch)
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            kept.append(trajectory)
            verdicts.append(verdict)
    failures.sort(key=lambda failure: failure.sibling)
    return replace(group, trajectories=tuple(kept), failures=tuple(failures)), tuple(verdicts)


async def _verdict(env: AgentEnv, task: GroupTask, trajectory: Trajectory, watch: Watch) -> bool | Failure:
    in_flight = InFlight(item_id=task.item_id, sibling=trajectory.sibling)
    try:
        with watch(in_flight), env.hook_calls(in_flight) as calls:
            given = await calls.hook("passed", env.passed, task.for_rollout().item, trajectory)
        if not isinstance(given, (bool, np.bool_)):
            raise RewardError(f"passed gave {given!r:.100}; give True or False")
        return bool(given)  # pyright: ignore[reportUnknownArgumentType]  # numpy's own type is generic
    except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a verdict
        return failure_of(error, sibling=trajectory.sibling, turns=len(trajectory.turns))
