"""Workers as a source of groups: who gets which group, and what becomes of groups whose worker dies.

A worker that dies costs its groups in flight, which run again under the same identity. One that was there at
two deaths goes alone from then on: only what dies alone is known to be at fault.
"""

import asyncio
import os
import pickle
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol, TypeVar

from environments.base_env import AgentEnv
from environments.record.origin import differences, in_short
from environments.rollout.items.item_json import item_hash
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.opened_files import opened_elsewhere
from environments.run.group_source import FinishedGroup, GroupSource
from environments.run.progress import InFlightNow
from environments.run.workers.env_spec import versions_of
from environments.run.workers.worker_process import (
    FIRST_REQUEST,
    Answer,
    Beat,
    Cancelled,
    Death,
    Opened,
    Refused,
    Request,
    WorkerStart,
    read_value,
)
from environments.trajectory import Failure, TrajectoryGroup
from tools.errors import ConfigError, IsolationError, RunError

TOGETHER = 2
"""Deaths after which a group goes alone."""
ALONE = 3
"""Deaths while alone after which it counts as failed."""
IN_A_SLOT = 5
"""Deaths of a worker and those in its slot, with no group that ended meanwhile, which end the run."""
_CANCEL_S = 10.0
_CLOSE_S = 30.0
"""For closing sandboxes and the like, beside `teardown`."""
_BEAT_S = 1.0
_CHECK_S = 3.0
_BEATS_PER_S = 16
_NO_BEAT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
_ROOM_S = 10.0
_CLASS = "WorkerDied"
T = TypeVar("T")


class NoRoomError(ConfigError):
    """A cluster has no resources for one more worker now."""


class Worker(Protocol):
    """One worker, wherever it is, see `WorkerProcess`; each call may answer with its death."""

    async def open(self) -> bytes | Death:
        """Open the environment: a pickled `Opened` or `Refused`."""
        ...

    async def ask(self, request: bytes, number: int) -> bytes | Death:
        """A pickled `Answer`, `Refused` or `Cancelled`."""
        ...

    async def cancel(self, number: int) -> object: ...

    async def beat(self) -> Beat | Death: ...

    async def close(self, limit_s: float) -> bytes | Death:
        """Close the environment in order: a pickled `Refused` if that broke."""
        ...

    async def kill(self, why: str) -> None: ...


class Engine(Protocol):
    """Starts workers."""

    async def start(self, start: WorkerStart) -> Worker:
        """Start one. Raises NoRoomError if there is no room for it now."""
        ...

    async def check(self) -> None:
        """Raise RunError if no worker can be had any more."""
        ...


@dataclass(slots=True, eq=False)
class _Slot:
    """Of one worker after another."""

    number: int
    start: WorkerStart
    worker: Worker | None = None
    is_open: bool = False
    is_reserved: bool = False
    """For one group that goes alone."""
    running: int = 0
    opened: int = 0
    """How many workers were open here so far, one after another."""
    deaths: int = 0
    """Since a group ended last, of any worker."""


class WorkerPool:
    """Rolls groups out on workers; `own` finishes those of which nothing is left to roll out."""

    def __init__(
        self,
        env: AgentEnv,
        engine: Engine,
        starts: Sequence[WorkerStart],
        *,
        own: GroupSource,
        facts: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """Nothing is started yet; `facts` are what the fingerprint is of, see `RunOrigin.facts`."""
        self._env, self._engine, self._own, self._facts, self._say = env, engine, own, facts, say
        self._slots = [_Slot(number, start) for number, start in enumerate(starts, start=1)]
        self.at_once = sum(start.at_once for start in starts)
        self._tier = env.lifecycle.sandboxes.tier
        self._numbers = count(FIRST_REQUEST)
        self._changed = asyncio.Event()
        """Of any slot; another one after each change."""
        self._next = asyncio.Lock()
        """Of the one group that waits for room: each change would wake all that wait."""
        self._error: Exception | None = None
        """Why no worker can be had any more."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Future[bytes | Death]] = set()
        self.in_flight: dict[int, InFlightNow] = {}
        """What each worker has in flight."""
        self._said: set[str] = set()
        self.deaths = 0

    # Opening and closing.

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator["WorkerPool"]:
        """With its workers, as soon as one of them is open; the others follow.

        Raises UsageError: the environment cannot be opened in a worker, or is another experiment there.
        RunError: workers die at once, or code of the environment's setup broke.
        """
        for slot in self._slots:
            self._spawn(self._open(slot))
        self._spawn(self._watch())
        self._spawn(self._check())
        try:
            await self._until(lambda: any(each.is_open for each in self._slots))
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            broken = await asyncio.gather(*map(self._close, self._slots))
        for refused in filter(None, broken):
            raise self._error_of(refused, "a worker")

    async def _until(self, holds: Callable[[], T | None]) -> T:
        """What a function of the slots gives, once that is true. Raises what keeps it from ever being."""
        while not (found := holds()):
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return found

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, slot: _Slot) -> None:
        try:
            while not await self._try_to_open(slot):
                pass
        except Exception as error:  # noqa: BLE001  # raised where groups are asked for
            self._fail(error)

    async def _try_to_open(self, slot: _Slot) -> bool:
        if slot.deaths > 1:
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**slot.deaths))
        if slot.worker is None:
            try:
                slot.worker = await self._engine.start(slot.start)
            except NoRoomError as error:
                if all(each.worker is None for each in self._slots):
                    raise
                self._say_once(f"{error}; the others go on")
                await asyncio.sleep(_ROOM_S)
                return False
        answer = await slot.worker.open()
        if isinstance(answer, Death):
            self._count_death(slot, answer)
            return False
        opened: Opened | Refused = read_value(answer)
        if isinstance(opened, Refused):
            raise self._error_of(opened, f"worker {slot.number}")
        changed = differences(self._facts, opened.facts)
        changed += differences(versions_of(opened.packages), opened.packages)
        if changed:
            raise ConfigError(
                f"worker {slot.number} has another experiment ({in_short(changed)}): give every node the "
                f"same packages, files and variables (--worker-env)"
            )
        self._tier = self._tier or opened.tier
        if opened.tier != self._tier:
            raise IsolationError(
                f"worker {slot.number} isolates agents in another tier ({opened.tier}) than the others do "
                f"({self._tier}): run on nodes that isolate alike, or with --env.sandbox docker"
            )
        slot.is_open = True
        slot.opened += 1
        self._notify()
        return True

    async def _close(self, slot: _Slot) -> Refused | None:
        if slot.worker is None:
            return None
        answer: bytes | Death = Death(cause="it was not open")
        if slot.is_open:
            slot.is_open = False
            answer = await slot.worker.close(self._env.config.hook_timeout_s + _CLOSE_S)
            await self._look_at(slot)  # what it said last
        await slot.worker.kill("")
        closed = None if isinstance(answer, Death) else read_value(answer)
        return closed if isinstance(closed, Refused) else None

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._notify()

    async def _check(self) -> None:
        try:
            while True:
                await self._engine.check()
                await asyncio.sleep(_CHECK_S)
        except Exception as error:  # noqa: BLE001  # raised where groups are asked for
            self._fail(error)
            for each in list(self._asking):  # none will be answered
                each.cancel()

    def _error_of(self, refused: Refused, who: str) -> Exception:
        if refused.trace:
            self._say(refused.trace.rstrip())
        text = f"{who}: {refused.text}"
        if refused.missing_key in os.environ:
            text += (
                f"; workers do not have the variables of your shell: give it to them, --worker-env "
                f"{refused.missing_key}"
            )
        return ConfigError(text) if refused.is_usage else RunError(text)

    # Groups.

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        answer = await self._answer(_request("first", task))
        if isinstance(answer, Failure):
            return await self._own.first(replace(task, rolled_out=(answer,)))
        return answer

    async def run(
        self, task: GroupTask, size: int | None = None, *, max_row_tokens: int | None = None
    ) -> FinishedGroup:
        if len(task.rolled_out) == size:
            return await self._own.run(task, size, max_row_tokens=max_row_tokens)
        answer = await self._answer(_request("run", task, size, max_row_tokens))
        if isinstance(answer, Failure):
            return await self._own.run(replace(task, rolled_out=(answer,)), 1, max_row_tokens=max_row_tokens)
        return answer

    async def _answer(self, request: Request) -> Any:
        """What a worker answers, or the failure of whatever ends every worker."""
        deaths = alone = 0
        while True:
            goes_alone = request.what == "first" or deaths >= TOGETHER
            async with self._worker(alone=goes_alone) as slot:
                answer = await self._ask(slot, request)
            if not isinstance(answer, Death):
                self._group_ended()
                return answer
            if (blocked := answer.blocked) is None:
                deaths += 1
                alone += goes_alone
            elif (blocked.item_id, blocked.epoch) == (request.item_id, request.epoch):
                self._group_ended()
                return blocked.failure
            if alone == ALONE:
                self._group_ended()
                return _failure(answer)

    def _group_ended(self) -> None:
        for each in self._slots:
            each.deaths = 0

    @asynccontextmanager
    async def _worker(self, *, alone: bool) -> AsyncGenerator[_Slot]:
        if alone:
            slot = await self._reserved()
        else:
            async with self._next:
                slot = await self._until(self._with_room)
        slot.running += 1
        try:
            yield slot
        finally:
            slot.running -= 1
            slot.is_reserved &= not alone
            self._notify()

    def _with_room(self) -> _Slot | None:
        there = [each for each in self._slots if each.is_open and not each.is_reserved]
        free = [each for each in there if each.running < each.start.at_once]
        return min(free, key=lambda each: each.running, default=None)

    async def _reserved(self) -> _Slot:
        while True:
            slot = await self._until(self._to_reserve)
            slot.is_reserved = True
            try:
                # Where it closes meanwhile, perhaps for good, another one may be had.
                await self._until(lambda: not slot.running if slot.is_open else self._with_room())  # noqa: B023
            except BaseException:
                slot.is_reserved = False
                self._notify()
                raise
            if slot.is_open:
                return slot
            slot.is_reserved = False

    def _to_reserve(self) -> _Slot | None:
        others = [each for each in self._slots if not each.is_reserved]
        if len(self._slots) - len(others) >= max(1, len(self._slots) // 2):
            return None
        return min(others, key=lambda each: (not each.is_open, each.running))

    async def _ask(self, slot: _Slot, request: Request) -> Any:
        worker, opened, number = slot.worker, slot.opened, next(self._numbers)
        assert worker is not None
        asking = asyncio.ensure_future(worker.ask(pickle.dumps(request), number))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            if self._error is not None and asking.cancelled():
                raise self._error from None
            # What it has finished by now is not lost.
            cancelling = asyncio.ensure_future(worker.cancel(number))
            await asyncio.wait({asking}, timeout=_CANCEL_S)
            cancelling.cancel()
            if not asking.done() or isinstance(answer := asking.result(), Death):
                asking.cancel()
                raise
        if isinstance(answer, Death):
            self._died(slot, opened, answer)
            return answer
        value = read_value(answer)
        if isinstance(value, Cancelled):
            raise asyncio.CancelledError
        if isinstance(value, Refused):
            raise self._error_of(value, f"worker {slot.number}")
        assert isinstance(value, Answer)
        self._env.lifecycle.weight_versions.merge(value.met)
        opened_elsewhere(value.read, value.written)
        return value.value

    # Deaths and beats.

    def _died(self, slot: _Slot, opened: int, death: Death) -> None:
        """Have another worker take the slot, once for each that died."""
        if slot.opened != opened or not slot.is_open:
            return
        slot.is_open = False
        try:
            self._count_death(slot, death)
        except RunError as error:
            self._fail(error)
        else:
            self._spawn(self._open(slot))

    def _count_death(self, slot: _Slot, death: Death) -> None:
        slot.deaths += 1
        self.deaths += 1
        if death.with_supervisor:
            slot.worker = None
        self.in_flight.pop(slot.number, None)
        if slot.deaths == IN_A_SLOT:
            raise RunError(
                f"worker {slot.number} ended {IN_A_SLOT} times, and no group ended meanwhile; the last "
                f"time: {death.cause}{_last_line(death)}"
            )
        self._say(f"worker {slot.number} ended, {death.cause}; another one takes its place")

    async def _watch(self) -> None:
        try:
            while True:
                await asyncio.sleep(max(_BEAT_S, len(self._slots) / _BEATS_PER_S))
                await asyncio.gather(*map(self._look_at, self._slots))
        except Exception as error:  # noqa: BLE001  # raised where groups are asked for
            self._fail(error)

    async def _look_at(self, slot: _Slot) -> None:
        worker, opened = slot.worker, slot.opened
        if worker is None:
            return
        try:
            async with asyncio.timeout(_NO_BEAT_S):
                beat = await worker.beat()
        except TimeoutError:
            await worker.kill(f"its node did not answer for {_NO_BEAT_S:g} s")
            return
        if isinstance(beat, Death):
            self._died(slot, opened, beat)
            return
        self.in_flight[slot.number] = beat.in_flight
        self._env.lifecycle.weight_versions.merge(beat.met)
        for line in beat.lines:
            text = f"worker {slot.number}: {line}"
            if slot.is_open:
                self._say(text)
            else:
                self._say_once(line, text)

    def _say_once(self, line: str, text: str | None = None) -> None:
        """Show what all workers say as they open, or one says again and again, once."""
        if line not in self._said:
            self._said.add(line)
            self._say(text or line)


def _request(
    what: Any, task: GroupTask, size: int | None = None, max_row_tokens: int | None = None
) -> Request:
    return Request(
        what=what,
        item_id=task.item_id,
        epoch=task.epoch,
        item_hash=item_hash(task.item),
        rolled_out=task.rolled_out,
        size=size,
        max_row_tokens=max_row_tokens,
    )


def _last_line(death: Death) -> str:
    line = death.trace.strip().rpartition("\n")[2]
    return f" ({line:.200})" if line else ""


def _failure(death: Death) -> Failure:
    error = f"{_CLASS}: {death.cause}; {ALONE} workers ended while it was alone in them"
    return Failure(
        sibling=0,
        stop_reason=None,
        error=error,
        error_class=_CLASS,
        where="its worker",
        traceback=f"{death.trace}\n{error}".strip(),
        turns=0,
    )
