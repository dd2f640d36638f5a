"""The first rollout goes alone: a bug that all rollouts share is told once, whole, before it costs a run."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from environments.data.tasks import GroupTask
from environments.run.stopped import StoppedError
from environments.trajectory import Failure, TrajectoryGroup
from tools.errors import ConfigError

MOST_ALIKE = 3
"""First rollouts that fail alike, of so many items: there is no point in the others."""
_NOBODY_PLAYS = "NoModelError"
_OF_OURS = frozenset({"ConfigError", "RewardError", "RefusedSettingError"})
"""Errors of ours, which have no place, of a bug in the environment's code or of a setting all the same."""


class AlikeFailuresError(StoppedError):
    """The first rollouts of several items failed at the same place of the environment's code."""


class FirstAlone:
    """Goes on to the next item while first rollouts fail in the environment's own code."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Begin; `say` shows text to the user."""
        self.done = False
        """Whether the others may go."""
        self._say = say
        self._failed: Counter[tuple[str, str | None]] = Counter()

    def take(self, task: GroupTask, group: TrajectoryGroup) -> GroupTask:
        """Judge a group of one rollout; the task, with that rollout done.

        Raises:
            AlikeFailuresError: it is one of too many that failed alike.
            ConfigError: it asks a judge or a user that nobody plays, which no item changes.
        """
        failure = next(iter(group.failures), None)
        if failure is not None and failure.error_class == _NOBODY_PLAYS:
            raise ConfigError(failure.error.partition(": ")[2])
        if failure is None or (failure.where is None and failure.error_class not in _OF_OURS):
            self.done = True
        else:
            self._note(task, failure)
        return replace(task, rolled_out=(*group.trajectories, *group.failures))

    def _note(self, task: GroupTask, failure: Failure) -> None:
        kind = failure.error_class, failure.where
        self._failed[kind] += 1
        if self._failed[kind] == 1:
            self._say(
                f"the first rollout, of item {task.item_id}, failed; the next item's goes alone\n"
                f"{failure.error if failure.stop_reason else failure.traceback.rstrip()}"
            )
        if self._failed[kind] == MOST_ALIKE:
            how = failure.error if failure.where is None else f"{failure.error_class} at {failure.where}"
            raise AlikeFailuresError(f"the first rollouts of {MOST_ALIKE} items failed alike: {how}")


async def first_alone(
    tasks: Iterator[GroupTask],
    roll_out: Callable[[GroupTask], Awaitable[TrajectoryGroup]],
    say: Callable[[str], None],
    ready: Callable[[], Awaitable[object]] | None = None,
) -> list[GroupTask]:
    """Roll out the first siblings one after another, until one does not fail in the environment's code.

    `ready` is waited for before a task is taken.

    Returns:
        The tasks that were begun, each with its first rollout done: it is not rolled out again.

    Raises:
        AlikeFailuresError: `MOST_ALIKE` of them failed at the same place.
    """
    first = FirstAlone(say)
    begun: list[GroupTask] = []
    while not first.done:
        if ready is not None:
            await ready()
        task = next(tasks, None)
        if task is None:
            break
        begun.append(first.take(task, await roll_out(task)))
    return begun
