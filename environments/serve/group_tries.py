"""When groups for a trainer start, and start again: out of time, without a model, or as all of them fail."""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic

from environments.record.origin import RunOrigin
from environments.rollout.items.tasks import GroupTask
from environments.run.group_source import (
    Breaker,
    FinishedGroup,
    Finishing,
    GroupNote,
    GroupSource,
    Streak,
    Traces,
    finished,
)
from environments.run.observers import Observers
from environments.run.process_run import AskedTasks
from environments.run.tracking import Track
from environments.run.worker_pool import is_cancelled
from environments.trajectory import CreditedGroup, TrajectoryGroup
from tools.errors import ConfigError

OPEN_AFTER = 4
"""Failed groups in a row after which it opens, whatever lost them."""

Entry = tuple[int, GroupTask]
"""A task with its number in the plan."""


class CircuitBreaker(Breaker):
    """Hands out tasks. One that failed is deferred until a group works again.

    Then it counts as failed, if the streak was short; after a streak long enough to open the breaker, which
    was not its own fault, it is tried once more. What is deferred at the end is left to the next `serve`.
    """

    def __init__(
        self,
        entries: Iterator[Entry],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Hand out tasks.

        Args:
            entries: in order and without end.
            say: shows a line to the user.
            clock: in seconds.
        """
        super().__init__(Streak(), say, clock=clock)
        self._entries = entries
        self._deferred: list[Entry] = []
        self._retries: deque[Entry] = deque()
        self._retried: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether groups wait: something is away, or every group fails."""
        return super().is_open or self.streak.length >= OPEN_AFTER

    @property
    def has_retries(self) -> bool:
        """Whether the next task is one that was tried before."""
        return bool(self._retries)

    def take(self) -> Entry | None:
        """The next task to roll out, if there is one; while every group fails, the next one has to wait."""
        entry = self._retries.popleft() if self._retries else next(self._entries, None)
        if entry is not None:
            self.start(entry[0])
        return entry

    def finish(self, entry: Entry, note: GroupNote) -> list[int]:
        """Take note of how a task ended; the numbers of the deferred ones that now count as failed."""
        was_open = self.is_open
        if not self.end(entry[0], note):
            return []
        if self.streak.length:
            self._deferred.append(entry)
            return []
        deferred, self._deferred = self._deferred, []
        retries = [each for each in deferred if was_open and each[0] not in self._retried]
        numbers = {number for number, _ in retries}
        failed = [number for number, _ in deferred if number not in numbers]
        self._retries.extend(retries)
        self._retried.update(numbers)
        self._retried.difference_update(failed, entry[:1])
        if was_open:
            self._say(f"a group has worked; {len(retries)} items that failed meanwhile are tried once more")
        return failed


_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0


class ModelWatch:
    """Asks the model server only after a sign that it is away."""

    def __init__(
        self, probe: Callable[[], Awaitable[None]], stop: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        """Watch a server.

        Args:
            probe: raises ConfigError while the server cannot be used; buys no completion.
            stop: ends every wait.
            say: shows a line to the user.
        """
        self.up = True
        """What the last answer was."""
        self._probe = probe
        self._stop = stop
        self._say = say
        self._one_at_a_time = asyncio.Lock()

    async def answers(self) -> bool:
        """Ask the server now."""
        try:
            await self._probe()
        except ConfigError as error:
            if self.up:
                self._say(f"{error}; no item is started until it is back")
            self.up = False
        else:
            if not self.up:
                self._say("the model server is back")
            self.up = True
        return self.up

    async def back(self) -> bool:
        """Wait until the server answers; false when it is time to stop instead."""
        wait_s = _FIRST_WAIT_S
        async with self._one_at_a_time:
            while not await self.answers():
                try:
                    async with asyncio.timeout(wait_s):
                        await self._stop.wait()
                except TimeoutError:
                    wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                else:
                    return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What `serve` has of an environment."""

    tasks: Callable[[int], Iterable[GroupTask]]
    """What to roll out, in order and without end, from an index on."""
    asked: AskedTasks | None = None
    """What to roll out instead, where the environment is asked for it."""
    source: GroupSource
    finishing: Finishing
    """How the source finishes its groups."""
    withhold_stale: Callable[[FinishedGroup], Awaitable[FinishedGroup]]
    """Takes the credit and the posts of a group that is too old by now."""
    probe: Callable[[], Awaitable[None]]
    """Raises ConfigError while the model server cannot be used; buys no completion."""
    origin: RunOrigin
    track: Track | None = None
    traces: Traces = field(default_factory=lambda: Traces(Observers()))
    """Takes each group for charts; `None`: there are no charts."""
    stride: int = 0
    """Tasks between two of which the first rollout goes alone."""


class GroupTries:
    """Rolls groups out, and knows a group that is no fair sample."""

    def __init__(
        self,
        rollouts: Rollouts,
        model: ModelWatch,
        *,
        timeout_s: float | None,
        max_row_tokens: Callable[[], int | None],
        say: Callable[[str], None],
    ) -> None:
        """Prepare; `timeout_s` is for one try of one group, `max_row_tokens` is asked as one begins."""
        self._rollouts = rollouts
        self._model = model
        self._timeout_s = timeout_s
        self._max_row_tokens = max_row_tokens
        self._say = say

    async def run(self, task: GroupTask) -> FinishedGroup | None:
        """The group; one that ran out of time or lost its model is tried once more. `None`: we stop."""
        for last in (False, True):
            done = await self._in_time(task)
            # What went alone is part of the first try only.
            task = replace(task, rolled_out=())
            while done is None or done.note.may_have_lost_model:
                if not is_cancelled() and await self._model.answers():
                    break
                # The item is not spent: it starts again when the server is back.
                if is_cancelled() or not await self._model.back():
                    return None
                done = await self._in_time(task)
            if done is not None and (last or not done.note.failed_by_model):
                return done
            what = f"took longer than {self._timeout_s:g} s" if done is None else "lost its model"
            if last:
                return self._timed_out(task, f"the group {what}, twice")
            self._say(f"item {task.item_id}: the group {what}; trying once more")
        raise AssertionError("the second try returns")

    async def _in_time(self, task: GroupTask) -> FinishedGroup | None:
        """The group, or `None` when it ran out of time."""
        clock = asyncio.timeout(self._timeout_s)
        try:
            async with clock:
                return await self._rollouts.source.run(task, max_row_tokens=self._max_row_tokens())
        except TimeoutError:
            if not clock.expired():
                raise
            return None

    def _timed_out(self, task: GroupTask, reason: str) -> FinishedGroup:
        credited = CreditedGroup(
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
        return finished(credited, self._rollouts.finishing)
