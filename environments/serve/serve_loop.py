"""The serving loop: rolls out while a trainer wants groups, and stops without losing what is finished."""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from time import monotonic

from rich.console import Console, RenderableType

from environments.record.origin import GroupKey, RunOrigin
from environments.record.recorder import Recorder
from environments.record.summary import duration, forks_in_short, headline, print_side_notes
from environments.record.totals import Summary
from environments.rollout.containment.hook_calls import InFlight
from environments.rollout.items.tasks import GroupTask
from environments.run.group_source import (
    Breaker,
    FinishedGroup,
    Finishing,
    GroupNote,
    GroupSource,
    Lessons,
    Streak,
    finished,
)
from environments.run.process_run import AskedTasks
from environments.run.progress import LiveView, RolloutsInFlight, picture
from environments.run.tracking import Observers, Traces
from environments.run.worker_pool import (
    AlikeFailuresError,
    LostWorkerError,
    StoppedError,
    StopSignals,
    first_alone,
    is_cancelled,
    refuse_stray_cancellation,
)
from environments.serve.delivery import ApiLostError, Delivery
from environments.trajectory import CreditedGroup, Failure, TrajectoryGroup
from environments.wire.payloads import ExactTokens
from tools.errors import ConfigError
from tools.waiting import to_the_end

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
        """Hand out tasks."""
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
        """Watch a server."""
        self.up = True
        """What the last answer was."""
        self._probe = probe
        self._stop = stop
        self._say = say
        self._one_at_a_time = asyncio.Lock()

    async def answers(self) -> bool:
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
    track: Callable[[GroupNote], object] = lambda _: None
    traces: Traces = field(default_factory=lambda: Traces(Observers()))
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


def status_line(delivery: Delivery, summary: Summary, *, in_flight: int, wall_s: float) -> str:
    """The line that `serve` shows now and then."""
    state, tally, groups, numbers = delivery.state, delivery.tally, summary.groups, summary.values()
    stale = numbers["weights"]["stale"]
    parts = [
        f"step {state.step} · {state.queued} groups queued at the API"
        if state is not None and delivery.online
        else "API away",
        f"outbox {delivery.waiting}",
        f"in flight {in_flight}",
        f"groups {groups['ok']} ok, {groups['no_credit']} without credit, {groups['failed']} failed",
        f"posts {tally.posts}, {tally.repeated} repeated, {tally.rejected} rejected",
        f"rows too long {tally.too_long}",
        f"stale groups {stale}" if stale else "",
        f"rows withheld {tally.withheld}" if tally.withheld else "",
        headline(numbers),
        forks_in_short(numbers),
        duration(wall_s),
    ]
    return " · ".join(part for part in parts if part)


API_AWAY = 1
"""Exit code when the API was away for longer than asked; every group is kept."""
STOPPED = 1
"""Exit code when it ends of its own accord; every group is kept."""

_LINE_EVERY_S = 10.0
_FLUSH_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    max_in_flight: int
    """Groups at once."""
    max_waiting: int
    """Groups in the outbox and in flight; no new one is started beyond."""
    group_timeout_s: float | None
    grace_s: float
    """For groups in flight when the end is asked for."""
    total_steps: int
    """Trainer steps; -1: the trainer's."""
    send_all: bool = False
    """Whether a signal to end waits until the API has every group."""


class ServeLoop:
    """One run of `serve`. `run` works until a signal, the trainer's last step or an error."""

    def __init__(
        self,
        delivery: Delivery,
        rollouts: Rollouts,
        *,
        bounds: Bounds,
        console: Console,
        recorder: Recorder | None = None,
        watched: RolloutsInFlight | None = None,
    ) -> None:
        """Prepare a run; with a recorder every group is kept, delivered or not.

        `watched` knows the rollouts in flight, for the terminal.
        """
        self.summary = Summary()
        self._watched = RolloutsInFlight() if watched is None else watched
        self._live = LiveView(console, self._picture)
        self.in_flight = 0
        self._delivery = delivery
        self._rollouts = rollouts
        self._bounds = bounds
        self._console = console
        self._recorder, self._traces = recorder, rollouts.traces
        self._exact = ExactTokens(say=self.say)
        self._stop = asyncio.Event()
        self._taken: dict[GroupKey, Entry] = {}
        """Those that have not ended."""
        self._begun: deque[Entry] = deque()
        """Tasks whose first rollout went alone."""
        self._model = ModelWatch(rollouts.probe, self._stop, self.say)
        self._asked = rollouts.asked
        self._tries = GroupTries(
            rollouts,
            self._model,
            timeout_s=bounds.group_timeout_s,
            max_row_tokens=lambda: delivery.max_row_tokens,
            say=self.say,
        )
        has_credit = recorder is not None and recorder.contents.has_credit
        self._lessons = Lessons(self.say, has_credit=has_credit)
        self._started_at = monotonic()

    async def run(self) -> int:
        """Serve; 0 after a signal or the trainer's last step, `API_AWAY` or `STOPPED` otherwise."""
        first, finished = await self._delivery.progress()
        breaker = CircuitBreaker(self._entries(first, finished), self.say)
        delivering = asyncio.create_task(self._delivery.run())
        working = asyncio.create_task(self._work(breaker))
        showing = asyncio.create_task(self._show_lines())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            with StopSignals(self._ask_for_the_end), self._live:
                await asyncio.wait({delivering, working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                asked_to_end = self._stop.is_set()
                self._stop.set()
                if self.in_flight:
                    if (error := _error_of(delivering)) is not None:
                        # At once: the end repeats it, but not before the grace period is over.
                        self.say(f"nothing more can be delivered: {error}")
                    self.say(
                        f"{self.in_flight} groups in flight have {duration(self._bounds.grace_s)} to end"
                    )
                await asyncio.wait({working}, timeout=self._bounds.grace_s)
                await _cancelled(working)
                if not delivering.done():
                    await self._flush(delivering)
            return self._outcome(delivering, working, asked_to_end=asked_to_end)
        finally:
            for task in (delivering, working, showing, stopping):
                await _cancelled(task)
            self.say(self.line())
            print_side_notes(self._console, self.summary)
            if self._delivery.waiting:
                self.say(
                    f"{self._delivery.waiting} groups wait for the next serve with the same outbox, "
                    f"{self._delivery.path}; with --send-all it ends when the API has them"
                )
            if self._delivery.unconfirmed:
                self.say(
                    f"{self._delivery.unconfirmed} posts are at the API, and no trainer is known to have "
                    "them; the next serve with the same outbox sends them again if they are lost"
                )

    async def _flush(self, delivering: asyncio.Task[None]) -> None:
        """Send what may be sent; with `send_all` everything, as long as there is a trainer that takes it."""
        sends_all = self._bounds.send_all and not self._is_last_step()
        if sends_all and self._delivery.waiting:
            self.say(f"waiting until the API has taken the last {self._delivery.waiting} groups")
        flushing = asyncio.create_task(self._delivery.flush(None if sends_all else _FLUSH_S))
        await asyncio.wait({flushing, delivering}, return_when=asyncio.FIRST_COMPLETED)
        # Delivered, or nothing more can be: a moment for the sign-off.
        await asyncio.wait({flushing}, timeout=_FLUSH_S)
        await _cancelled(flushing)

    def _entries(self, first: int, finished: frozenset[int]) -> Iterator[Entry]:
        """The tasks that are left, each with its number."""
        if self._asked is not None:
            numbers = (number for number in count(first) if number not in finished)
            # Not `zip`, which would spend a number where no task is known yet.
            return map(lambda task: (next(numbers), task), self._asked)  # noqa: C417  # a generator would end
        numbered = zip(count(first), self._rollouts.tasks(first), strict=False)
        return (each for each in numbered if each[0] not in finished)

    def line(self) -> str:
        wall_s = monotonic() - self._started_at
        return status_line(self._delivery, self.summary, in_flight=self.in_flight, wall_s=wall_s)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _outcome(
        self, delivering: asyncio.Task[None], working: asyncio.Task[None], *, asked_to_end: bool
    ) -> int:
        for task in (working, delivering):
            error = _error_of(task)
            if isinstance(error, ApiLostError):
                self.say(str(error))
                return API_AWAY
            if isinstance(error, StoppedError):
                self.say(f"stopped: {error}")
                return STOPPED
            if error is not None:
                raise error
        if not asked_to_end:
            self.say("stopped: a part of the serving loop was cancelled by code that nobody asked to")
            return STOPPED
        return 0

    async def _work(self, breaker: CircuitBreaker) -> None:
        await self._begin(breaker)
        try:
            async with asyncio.TaskGroup() as group:
                workers = [
                    group.create_task(self._worker(breaker)) for _ in range(self._bounds.max_in_flight)
                ]
        except BaseExceptionGroup as errors:
            # One error is what people can act on: the others followed from it.
            raise errors.exceptions[0] from None
        if any(worker.cancelled() for worker in workers):
            raise LostWorkerError("a worker was cancelled by code that nobody asked to")
        if self._asked is not None and not self._stop.is_set():
            if self._asked.error is not None:
                raise self._asked.error
            self.say("next_items asks for nothing more")
            self._stop.set()

    async def _begin(self, breaker: CircuitBreaker) -> None:
        """Let first rollouts go alone, each from another place, until one does not fail in user code."""

        async def next_task() -> GroupTask | None:
            if not await self._may_start(breaker):
                return None
            skipped = self._rollouts.stride if numbers else 0
            for _ in range(skipped):
                if (entry := await self._next(breaker, wait=False)) is not None:
                    later.append(entry)
            if (entry := await self._next(breaker, wait=False)) is None:
                return None
            numbers.append(entry[0])
            return entry[1]

        async def roll_out(task: GroupTask) -> TrajectoryGroup:
            self.in_flight += 1
            try:
                return await self._rollouts.source.first(task)
            finally:
                self.in_flight -= 1

        async def bad(task: GroupTask) -> None:
            done = await self._rollouts.source.run(task, len(task.rolled_out))
            await to_the_end(self._finish((numbers[-1], replace(task, rolled_out=())), done, breaker))

        numbers, later = list[int](), list[Entry]()
        has_good = await self._delivery.has_delivered()
        has_good |= self._recorder is not None and bool(self._recorder.finished)
        try:
            begun = await first_alone(next_task, roll_out, bad, self.say, has_good=has_good)
        except AlikeFailuresError:
            for number in numbers:  # the next start tries others
                await self._delivery.finish(number)
            raise
        self._begun.extend([*((numbers[-1], task) for task in begun), *later])

    async def _worker(self, breaker: CircuitBreaker) -> None:
        while await self._may_start(breaker):
            self.in_flight += 1
            try:
                if (entry := await self._next(breaker)) is None:
                    return
                number, task = entry
                # What went alone is part of the first try only.
                entry = number, replace(task, rolled_out=())
                if (done := await self._tries.run(task)) is not None:
                    await to_the_end(self._finish(entry, done, breaker))
                if is_cancelled():
                    raise asyncio.CancelledError  # while the group was on the way
            except asyncio.CancelledError:
                refuse_stray_cancellation()
                raise
            finally:
                self.in_flight -= 1

    async def _next(self, breaker: CircuitBreaker, *, wait: bool = True) -> Entry | None:
        if self._begun and wait:
            return self._begun.popleft()
        if self._asked is not None and not breaker.has_retries:
            await self._asked.ready(wait=wait)
        if (entry := breaker.take()) is not None:
            self._taken[entry[1].item_id, entry[1].epoch] = entry
        return entry

    async def _may_start(self, breaker: CircuitBreaker) -> bool:
        """Wait until one more group is wanted; false when no more are."""
        while not self._stop.is_set():
            state = self._delivery.state
            if self._is_last_step():
                self.say(f"the batches of the trainer's {self._last_step()} steps are made")
                self._stop.set()
            elif (
                state is not None
                and self._model.up
                and self._delivery.waiting + self.in_flight < self._bounds.max_waiting
                and self._delivery.has_room(self.in_flight)
                and breaker.may_start
            ):
                return True
            else:
                await _first(self._delivery.changed(), self._stop.wait(), timeout_s=1.0)
        return False

    def _is_last_step(self) -> bool:
        state = self._delivery.state
        return state is not None and 0 < self._last_step() <= state.step

    def _last_step(self) -> int:
        return self._bounds.total_steps if self._bounds.total_steps != -1 else self._delivery.num_steps

    async def _finish(self, entry: Entry, done: FinishedGroup, breaker: CircuitBreaker) -> None:
        """Into the outbox first: from there on it is neither lost nor rolled out again."""
        self._taken.pop((entry[1].item_id, entry[1].epoch), None)
        done = await self._rollouts.withhold_stale(done)
        note = done.note
        if note.lacking is not None:
            self._exact.add(note.past.item_id, note.lacking, has_others=bool(note.past.scores))
        if done.package is not None or done.malformed is not None:
            await self._delivery.put(done, number=entry[0])
        elif note.past.scores:
            await self._delivery.finish(entry[0])
        await asyncio.to_thread(self._record, done)
        self._traces.add(done)
        for number in breaker.finish(entry, note):
            await self._delivery.finish(number)
        if self._asked is not None:
            self._asked.ended(note.past)
        self.summary.merge(note.summary)
        self._rollouts.track(note)
        self._lessons.add(note)

    def blocked(self, rollout: InFlight, failure: Failure) -> None:
        """Count a group as failed whose code blocks the event loop for good, from another thread."""
        number, task = self._taken[rollout.item_id, rollout.epoch]

        async def finish() -> None:
            done = await self._rollouts.source.run(replace(task, rolled_out=(failure,)), 1)
            await self._delivery.finish(number)
            self._record(done)

        asyncio.run(finish())

    def _record(self, done: FinishedGroup) -> None:
        if self._recorder is not None:
            assert done.line is not None
            self._recorder.append_line(done.line)

    async def _show_lines(self) -> None:
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            if not self._live.is_shown:
                self.say(self.line())

    def _picture(self) -> RenderableType:
        return picture(self.line(), self.summary, self._watched, width=self._console.width)

    def _ask_for_the_end(self) -> None:
        self.say("stopping: no new item; once more to stop at once")
        self._stop.set()


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _cancelled(task: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Cancel a task and wait for its end; its error is read elsewhere."""
    task.cancel()
    await asyncio.wait({task})


async def _first(*waits: Awaitable[object], timeout_s: float) -> None:
    """Wait until one of them is done, or for a while."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
