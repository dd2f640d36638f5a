"""One group for a trainer, tried once more when it ran out of time or lost its model."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from environments.data.tasks import GroupTask
from environments.record.origin import RunOrigin
from environments.run.group_source import GroupSource
from environments.run.process_run import AskedTasks
from environments.run.tracking import Track
from environments.serve.model_watch import ModelWatch
from environments.trajectory import CreditedGroup, StopReason, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What `serve` has of an environment."""

    tasks: Callable[[int], Iterable[GroupTask]]
    """What to roll out, in order and without end, from an index on."""
    asked: AskedTasks | None = None
    """What to roll out instead, where the environment is asked for it."""
    source: GroupSource[CreditedGroup]
    credit: Callable[[TrajectoryGroup], CreditedGroup]
    """Gives a group its advantages, such as one that lost a rollout afterwards."""
    aged: Callable[[CreditedGroup], CreditedGroup]
    """Takes the credit of a group that is too old by now."""
    probe: Callable[[], Awaitable[None]]
    """Raises ConfigError while the model server cannot be used; buys no completion."""
    origin: RunOrigin
    track: Track | None = None
    """Takes each group for charts; `None`: nobody asked for any."""


class GroupTries:
    """Rolls groups out, and knows a group that is no fair sample."""

    def __init__(
        self,
        rollouts: Rollouts,
        model: ModelWatch,
        *,
        timeout_s: float | None,
        say: Callable[[str], None],
    ) -> None:
        """Prepare; `timeout_s` is for one try of one group, `None`: no limit."""
        self._rollouts = rollouts
        self._model = model
        self._timeout_s = timeout_s
        self._say = say

    async def run(self, task: GroupTask) -> CreditedGroup | None:
        """The group; one that ran out of time or lost its model is tried once more. `None`: we stop."""
        for last in (False, True):
            credited = await self._in_time(task)
            # What went alone is part of the first try only.
            task = replace(task, rolled_out=())
            while _may_have_lost_its_model(credited) and not await self._model.answers():
                # The item is not spent: it starts again when the server is back.
                if not await self._model.back():
                    return None
                credited = await self._in_time(task)
            if credited is not None and (last or not _failed_by_its_model(credited)):
                return credited
            what = f"took longer than {self._timeout_s:g} s" if credited is None else "lost its model"
            if last:
                return self._timed_out(task, f"the group {what}, twice")
            self._say(f"item {task.item_id}: the group {what}; trying once more")
        raise AssertionError("the second try returns")

    async def _in_time(self, task: GroupTask) -> CreditedGroup | None:
        """The group, or `None` when it ran out of time."""
        clock = asyncio.timeout(self._timeout_s)
        try:
            async with clock:
                return await self._rollouts.source.run(task)
        except TimeoutError:
            if not clock.expired():
                raise
            return None

    def _timed_out(self, task: GroupTask, reason: str) -> CreditedGroup:
        return CreditedGroup(
            group=TrajectoryGroup(
                group_id=uuid.uuid4().hex,
                env=self._rollouts.origin.env,
                item_id=task.item_id,
                epoch=task.epoch,
                trajectories=(),
            ),
            advantages=(),
            policy=self._rollouts.origin.policy,
            estimator=self._rollouts.origin.estimator,
            status="failed",
            reason=reason,
        )


def _may_have_lost_its_model(credited: CreditedGroup | None) -> bool:
    """Whether to ask the server: what is left of a group when it dies or hangs are the short rollouts."""
    return (
        credited is None
        or bool(credited.group.failures)
        or any(each.stop_reason is StopReason.TIME_BUDGET for each in credited.group.trajectories)
    )


def _failed_by_its_model(credited: CreditedGroup) -> bool:
    return credited.status == "failed" and any(
        failure.stop_reason is StopReason.POLICY_ERROR for failure in credited.group.failures
    )
