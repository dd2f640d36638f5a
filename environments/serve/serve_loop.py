"""The serving loop: roll out while a trainer needs groups, and stop without losing finished ones."""

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from time import monotonic

from rich.console import Console

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
    finish_group,
)
from environments.run.process_run import NextItemsTasks
from environments.run.progress import LiveView, RolloutsInFlight, picture
from environments.run.tracking import Observers, Traces
from environments.run.worker_pool import (
    AlikeFailuresError,
    StoppedError,
    StopSignals,
    first_alone,
    is_cancelled,
    refuse_stray_cancellation,
    run_side_by_side,
)
from environments.serve.delivery import ApiLostError, Delivery
from environments.trajectory import CreditedGroup, Failure, TrajectoryGroup
from environments.wire.payloads import ExactTokens
from tools.errors import ConfigError
from tools.waiting import to_the_end

OPEN_AFTER = 4
"""Failed groups in a row, for any reason, that open the breaker."""

Entry = tuple[int, GroupTask]


class CircuitBreaker(Breaker):
    """Returns the next tasks; a failed one is deferred until a group succeeds.

    After a success, deferred tasks count as failed if the streak was short; if it opened the breaker, it was
    not their fault, and they are tried once more. The next `serve` gets those still deferred at the end.
    """

    def __init__(
        self,
        entries: Iterator[Entry],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(Streak(), say, clock=clock)
        self._entries = entries
        self._deferred: list[Entry] = []
        self.retries: deque[Entry] = deque()
        self._retried: set[int] = set()

    @property
    def is_open(self) -> bool:
        return super().is_open or self.streak.length >= OPEN_AFTER

    def take(self) -> Entry | None:
        entry = self.retries.popleft() if self.retries else next(self._entries, None)
        if entry is not None:
            self.start(entry[0])
        return entry

    def finish(self, entry: Entry, note: GroupNote) -> list[int]:
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
        self.retries.extend(retries)
        self._retried.update(numbers)
        self._retried.difference_update(failed, entry[:1])
        if was_open:
            self._say(f"a group has worked; {len(retries)} items that failed meanwhile are tried once more")
        return failed


_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 15.0


class ModelWatch:
    """Probes the model server, only after a sign that it is away."""

    def __init__(
        self, probe: Callable[[], Awaitable[None]], stop: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        self.up = True
        self._probe, self._stop, self._say = probe, stop, say
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
    next_items: NextItemsTasks | None = None
    source: GroupSource
    finishing: Finishing
    withhold_stale: Callable[[FinishedGroup], Awaitable[FinishedGroup]]
    probe: Callable[[], Awaitable[None]]
    """Raises ConfigError while the model server cannot be used; requests no completion."""
    origin: RunOrigin
    track: Callable[[GroupNote], object] = lambda _: None
    traces: Traces = field(default_factory=lambda: Traces(Observers()))
    stride: int = 0
    """Tasks skipped between two first rollouts that run alone."""


@dataclass(frozen=True, slots=True)
class GroupTries:
    """Rolls groups out and repeats those that are not a fair sample."""

    rollouts: Rollouts
    model: ModelWatch
    timeout_s: float | None
    max_row_tokens: Callable[[], int | None]
    say: Callable[[str], None]

    async def run(self, task: GroupTask) -> FinishedGroup | None:
        """Return the group, or None if the run stops; repeat one that timed out or lost its model."""
        for last in (False, True):
            done = await self._in_time(task)
            # Only the first try includes the first rollout.
            task = replace(task, rolled_out=())
            while done is None or done.note.may_have_lost_model:
                if not is_cancelled() and await self.model.answers():
                    break
                # Start the item again when the server is back.
                if is_cancelled() or not await self.model.back():
                    return None
                done = await self._in_time(task)
            if done is not None and (last or not done.note.failed_by_model):
                return done
            what = f"took longer than {self.timeout_s:g} s" if done is None else "lost its model"
            if last:
                origin = self.rollouts.origin
                group = TrajectoryGroup(
                    group_id=uuid.uuid4().hex,
                    env=origin.env,
                    item_id=task.item_id,
                    epoch=task.epoch,
                    trajectories=(),
                )
                credited = CreditedGroup(
                    group=group,
                    advantages=(),
                    policy=origin.policy,
                    estimator=origin.estimator,
                    status="failed",
                    reason=f"the group {what}, twice",
                )
                return finish_group(credited, self.rollouts.finishing)
            self.say(f"item {task.item_id}: the group {what}; trying once more")
        raise AssertionError("the second try returns")

    async def _in_time(self, task: GroupTask) -> FinishedGroup | None:
        clock = asyncio.timeout(self.timeout_s)
        try:
            async with clock:
                return await self.rollouts.source.run(task, max_row_tokens=self.max_row_tokens())
        except TimeoutError:
            if not clock.expired():
                raise
            return None


API_AWAY = 1
"""Exit code after the API was away for too long; every group is kept."""
STOPPED = 1
"""Exit code of a run that stopped without a signal; every group is kept."""

_LINE_EVERY_S = 10.0
_FLUSH_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    max_in_flight: int
    max_waiting: int
    group_timeout_s: float | None
    grace_s: float
    total_steps: int
    send_all: bool = False


class ServeLoop:
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
        self.summary = Summary()
        self._watched = RolloutsInFlight() if watched is None else watched
        self._live = LiveView(
            console, lambda: picture(self.line(), self.summary, self._watched, width=console.width)
        )
        self.in_flight = 0
        self._delivery, self._rollouts, self._bounds, self._console = delivery, rollouts, bounds, console
        self._recorder, self._traces = recorder, rollouts.traces
        self._exact = ExactTokens(say=self.say)
        self._stop = asyncio.Event()
        self._entries_in_flight: dict[GroupKey, Entry] = {}
        self._begun: deque[Entry] = deque()
        self._model = ModelWatch(rollouts.probe, self._stop, self.say)
        self._next_items = rollouts.next_items
        self._tries = GroupTries(
            rollouts, self._model, bounds.group_timeout_s, lambda: delivery.max_row_tokens, self.say
        )
        has_credit = recorder is not None and recorder.contents.has_credit
        self._lessons = Lessons(self.say, has_credit=has_credit)
        self._started_at = monotonic()

    async def run(self) -> int:
        """Serve; return 0 after a signal or the trainer's last step, else `API_AWAY` or `STOPPED`."""
        first, finished = await self._delivery.progress()
        breaker = CircuitBreaker(self._entries(first, finished), self.say)
        delivering = asyncio.create_task(self._delivery.run())
        working = asyncio.create_task(self._work(breaker))
        showing = asyncio.create_task(self._show_lines())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            with StopSignals(self._request_stop), self._live:
                await asyncio.wait({delivering, working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stop_requested = self._stop.is_set()
                self._stop.set()
                if self.in_flight:
                    if (error := _error_of(delivering)) is not None:
                        # Before the grace period ends.
                        self.say(f"nothing more can be delivered: {error}")
                    self.say(
                        f"{self.in_flight} groups in flight have {duration(self._bounds.grace_s)} to end"
                    )
                await asyncio.wait({working}, timeout=self._bounds.grace_s)
                await _cancel(working)
                if not delivering.done():
                    await self._flush(delivering)
            return self._outcome(delivering, working, stop_requested=stop_requested)
        finally:
            for task in (delivering, working, showing, stopping):
                await _cancel(task)
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
        sends_all = self._bounds.send_all and not self._is_last_step()
        if sends_all and self._delivery.waiting:
            self.say(f"waiting until the API has taken the last {self._delivery.waiting} groups")
        flushing = asyncio.create_task(self._delivery.flush(None if sends_all else _FLUSH_S))
        await asyncio.wait({flushing, delivering}, return_when=asyncio.FIRST_COMPLETED)
        # Time for the sign-off.
        await asyncio.wait({flushing}, timeout=_FLUSH_S)
        await _cancel(flushing)

    def _entries(self, first: int, finished: frozenset[int]) -> Iterator[Entry]:
        if self._next_items is not None:
            numbers = (number for number in count(first) if number not in finished)
            # Not `zip`, which would consume a number before a task is known.
            return map(lambda task: (next(numbers), task), self._next_items)  # noqa: C417  # a generator would end
        numbered = zip(count(first), self._rollouts.tasks(first), strict=False)
        return (each for each in numbered if each[0] not in finished)

    def line(self) -> str:
        delivery, groups, numbers = self._delivery, self.summary.groups, self.summary.values()
        state, tally, stale = delivery.state, delivery.tally, numbers["weights"]["stale"]
        at_api = "API away"
        if state is not None and delivery.online:
            at_api = f"step {state.step} · {state.queued} groups queued at the API"
        parts = [
            at_api,
            f"outbox {delivery.waiting}",
            f"in flight {self.in_flight}",
            f"groups {groups['ok']} ok, {groups['no_credit'] + groups['alone']} without credit, "
            f"{groups['failed']} failed",
            f"posts {tally.posts}, {tally.repeated} repeated, {tally.rejected} rejected",
            f"rows too long {tally.too_long}",
            f"stale groups {stale}" if stale else "",
            f"rows withheld {tally.withheld}" if tally.withheld else "",
            headline(numbers),
            forks_in_short(numbers),
            duration(monotonic() - self._started_at),
        ]
        return " · ".join(filter(None, parts))

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _outcome(
        self, delivering: asyncio.Task[None], working: asyncio.Task[None], *, stop_requested: bool
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
        if not stop_requested:
            self.say("stopped: a part of the serving loop was cancelled by code that nobody asked to")
            return STOPPED
        return 0

    async def _work(self, breaker: CircuitBreaker) -> None:
        await self._begin(breaker)
        await run_side_by_side(partial(self._worker, breaker), self._bounds.max_in_flight)
        if self._next_items is not None and not self._stop.is_set():
            if self._next_items.error is not None:
                raise self._next_items.error
            self.say("next_items asks for nothing more")
            self._stop.set()

    async def _begin(self, breaker: CircuitBreaker) -> None:
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
                with refuse_stray_cancellation():
                    if (entry := await self._next(breaker)) is None:
                        return
                    number, task = entry
                    # Only the first try includes the first rollout.
                    entry = number, replace(task, rolled_out=())
                    if (done := await self._tries.run(task)) is not None:
                        await to_the_end(self._finish(entry, done, breaker))
            finally:
                self.in_flight -= 1

    async def _next(self, breaker: CircuitBreaker, *, wait: bool = True) -> Entry | None:
        if self._begun and wait:
            return self._begun.popleft()
        if self._next_items is not None and not breaker.retries:
            await self._next_items.ready(wait=wait)
        if (entry := breaker.take()) is not None:
            self._entries_in_flight[entry[1].item_id, entry[1].epoch] = entry
        return entry

    async def _may_start(self, breaker: CircuitBreaker) -> bool:
        """Wait until another group is needed; return False to stop."""
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
                waits = map(asyncio.ensure_future, (self._delivery.changed(), self._stop.wait()))
                _, pending = await asyncio.wait([*waits], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
                for each in pending:
                    each.cancel()
        return False

    def _is_last_step(self) -> bool:
        state = self._delivery.state
        return state is not None and 0 < self._last_step() <= state.step

    def _last_step(self) -> int:
        return self._bounds.total_steps if self._bounds.total_steps != -1 else self._delivery.num_steps

    async def _finish(self, entry: Entry, done: FinishedGroup, breaker: CircuitBreaker) -> None:
        """Save a group in the outbox first: from then on it is neither lost nor repeated."""
        self._entries_in_flight.pop((entry[1].item_id, entry[1].epoch), None)
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
        if self._next_items is not None:
            self._next_items.add_past(note.past)
        self.summary.merge(note.summary)
        self._rollouts.track(note)
        self._lessons.add(note)

    def record_blocked(self, rollout: InFlight, failure: Failure) -> None:
        """Record a group as failed that blocks the event loop for good; called from another thread."""
        number, task = self._entries_in_flight[rollout.item_id, rollout.epoch]

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

    def _request_stop(self) -> None:
        self.say("stopping: no new item; once more to stop at once")
        self._stop.set()


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _cancel(task: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    task.cancel()
    await asyncio.wait({task})
