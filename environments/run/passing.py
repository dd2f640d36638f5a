"""The groups of an evaluation: whether each rollout passed, as the environment says, and no credit."""

from dataclasses import replace

import numpy as np

from environments.base_env import AgentEnv
from environments.containment.in_flight import InFlight, Watch
from environments.credit import recorded_params
from environments.data.tasks import GroupTask
from environments.rollout.failures import failure_of
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup
from tools.errors import RewardError


async def judged(env: AgentEnv, task: GroupTask, group: TrajectoryGroup, watch: Watch) -> TrajectoryGroup:
    """A group with the verdict on each rollout; those without one are failures."""
    kept: list[Trajectory] = []
    failures = list(group.failures)
    for trajectory in group.trajectories:
        verdict = await _verdict(env, task, trajectory, watch)
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            kept.append(replace(trajectory, passed=verdict))
    failures.sort(key=lambda failure: failure.sibling)
    return replace(group, trajectories=tuple(kept), failures=tuple(failures), is_evaluation=True)


def uncredited(env: AgentEnv, group: TrajectoryGroup) -> CreditedGroup:
    """A group as the record of an evaluation has it; one of which no rollout is left is to be tried again."""
    params = recorded_params(env.estimator, preset=env.config.estimator_preset, params=env.estimator_params)
    return CreditedGroup(
        group=group,
        advantages=tuple((0.0,) * len(trajectory.turns) for trajectory in group.trajectories),
        policy=env.policy_name,
        estimator=env.estimator,
        estimator_params=params,
        status="no_credit" if group.trajectories else "failed",
        reason="an evaluation" if group.trajectories else "no rollout is left",
    )


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
