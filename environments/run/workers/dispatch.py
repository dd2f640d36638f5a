"""Workers as a source of groups: assign groups to workers and handle the death of a worker.

The groups that a dead worker had in flight run again under the same identity. A group that was in flight at
two deaths runs alone from then on, since only a group that was alone is certainly the cause.
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
from environments.rollout.lifecycle.opened_files import note_elsewhere
from environments.run.group_source import FinishedGroup, GroupSource
from environments.run.progress import InFlightNow
from environments.run.workers.env_spec import versions_of
from environments.run.workers.worker_process import (
    FIRST_REQUEST,
    Answer,
    Beat,
    Death,
    Refusal,
    Request,
    WorkerFacts,
    WorkerStart,
)
from environments.trajectory import Failure, TrajectoryGroup
from tools.errors import ConfigError, IsolationError, RunError

MAX_SHARED_DEATHS = 2
"""Deaths after which a group runs alone."""
MAX_DEATHS_ALONE = 3
"""Deaths while it ran alone after which a group counts as failed."""
MAX_DEATHS_OF_SLOT = 5
"""Deaths of one slot's workers, without a finished group in between, that end the run."""
_CANCEL_S = 10.0
_CLOSE_S = 30.0
_BEAT_S = 1.0
_CHECK_S = 3.0
_BEATS_PER_S = 16
_NO_BEAT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 30.0
_ROOM_S = 10.0
_ERROR_CLASS = "WorkerDied"
T = TypeVar("T")


class NoRoomError(ConfigError):
    pass


class Worker(Protocol):
    """One worker, local or remote, see `WorkerProcess`. Replies are pickled; any may be a `Death`."""

    async def open(self) -> bytes | Death: ...

    async def ask(self, request: bytes, number: int) -> bytes | Death: ...

    async def cancel(self, number: int) -> object: ...

    async def beat(self) -> Beat | Death: ...

    async def close(self, limit_s: float) -> bytes | Death: ...

    async def kill(self, why: str) -> None: ...


class Engine(Protocol):
    """Starts workers."""

    async def start(self, start: WorkerStart) -> Worker: ...

    async def check(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Slot:
    number: int
    start: WorkerStart
    worker: Worker | None = None
    is_open: bool = False
    is_reserved: bool = False
    running: int = 0
    opened: int = 0
    deaths: int = 0
    """Deaths since any worker finished a group."""


class WorkerPool:
    """A `GroupSource` that rolls groups out on workers; `own` finishes groups whose rollouts exist."""

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
        self._env, self._engine, self._own, self._facts, self._say = env, engine, own, facts, say
        self._slots = [_Slot(number, start) for number, start in enumerate(starts, start=1)]
        self.at_once = sum(start.at_once for start in starts)
        self._tier = env.lifecycle.sandboxes.tier
        self._numbers = count(FIRST_REQUEST)
        self._changed = asyncio.Event()
        self._next = asyncio.Lock()
        """Only one group waits for a free slot: otherwise each change would wake all waiting groups."""
        self._error: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Future[bytes | Death]] = set()
        self.in_flight: dict[int, InFlightNow] = {}
        self._shown: set[str] = set()
        self.deaths = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["WorkerPool"]:
        """Start the workers and yield the pool once one is open; the others follow."""
        for slot in self._slots:
            self._spawn(self._open(slot))
        self._spawn(self._watch())
        self._spawn(self._check())
        try:
            await self._wait_until(lambda: any(each.is_open for each in self._slots))
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            broken = await asyncio.gather(*map(self._close, self._slots))
        for refusal in filter(None, broken):
            raise self._error_of(refusal, "a worker")

    async def _wait_until(self, condition: Callable[[], T | None]) -> T:
        while not (found := condition()):
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
        opened: WorkerFacts | Refusal = pickle.loads(answer)
        if isinstance(opened, Refusal):
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

    async def _close(self, slot: _Slot) -> Refusal | None:
        if slot.worker is None:
            return None
        answer: bytes | Death = Death(cause="it was not open")
        if slot.is_open:
            slot.is_open = False
            answer = await slot.worker.close(self._env.config.hook_timeout_s + _CLOSE_S)
            await self._look_at(slot)  # its last lines of output
        await slot.worker.kill("")
        closed = None if isinstance(answer, Death) else pickle.loads(answer)
        return closed if isinstance(closed, Refusal) else None

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
            for each in list(self._asking):  # no reply will come
                each.cancel()

    def _error_of(self, refusal: Refusal, worker: str) -> Exception:
        if refusal.trace:
            self._say(refusal.trace.rstrip())
        text = f"{worker}: {refusal.text}"
        if refusal.missing_key in os.environ:
            text += (
                f"; workers do not have the variables of your shell: give it to them, --worker-env "
                f"{refusal.missing_key}"
            )
        return ConfigError(text) if refusal.is_usage else RunError(text)

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        answer = await self._roll_out(_request("first", task))
        if isinstance(answer, Failure):
            return await self._own.first(replace(task, rolled_out=(answer,)))
        return answer

    async def run(
        self, task: GroupTask, size: int | None = None, *, max_row_tokens: int | None = None
    ) -> FinishedGroup:
        if len(task.rolled_out) == size:
            return await self._own.run(task, size, max_row_tokens=max_row_tokens)
        answer = await self._roll_out(_request("run", task, size, max_row_tokens))
        if isinstance(answer, Failure):
            return await self._own.run(replace(task, rolled_out=(answer,)), 1, max_row_tokens=max_row_tokens)
        return answer

    async def _roll_out(self, request: Request) -> Any:
        """Return the worker's answer, or a Failure if every worker died of this request."""
        deaths = alone = 0
        while True:
            goes_alone = request.what == "first" or deaths >= MAX_SHARED_DEATHS
            async with self._worker(alone=goes_alone) as slot:
                answer = await self._ask(slot, request)
            if isinstance(answer, Death):
                if (blocked := answer.blocked) is None:
                    deaths += 1
                    alone += goes_alone
                    if alone < MAX_DEATHS_ALONE:
                        continue
                    error = (
                        f"{_ERROR_CLASS}: {answer.cause}; {MAX_DEATHS_ALONE} workers ended while it was "
                        f"alone in them"
                    )
                    answer = Failure(
                        sibling=0,
                        stop_reason=None,
                        error=error,
                        error_class=_ERROR_CLASS,
                        where="its worker",
                        traceback=f"{answer.trace}\n{error}".strip(),
                        turns=0,
                    )
                elif (blocked.item_id, blocked.epoch) == (request.item_id, request.epoch):
                    answer = blocked.failure
                else:
                    continue
            for each in self._slots:
                each.deaths = 0
            return answer

    @asynccontextmanager
    async def _worker(self, *, alone: bool) -> AsyncGenerator[_Slot]:
        if alone:
            slot = await self._reserve_slot()
        else:
            async with self._next:
                slot = await self._wait_until(self._find_free_slot)
        slot.running += 1
        try:
            yield slot
        finally:
            slot.running -= 1
            slot.is_reserved &= not alone
            self._notify()

    def _find_free_slot(self) -> _Slot | None:
        there = [each for each in self._slots if each.is_open and not each.is_reserved]
        free = [each for each in there if each.running < each.start.at_once]
        return min(free, key=lambda each: each.running, default=None)

    async def _reserve_slot(self) -> _Slot:
        while True:
            slot = await self._wait_until(self._find_reservable)
            slot.is_reserved = True
            try:
                # If the slot closes meanwhile, perhaps for good, another one may be free.
                await self._wait_until(
                    lambda: not slot.running if slot.is_open else self._find_free_slot()  # noqa: B023
                )
            except BaseException:
                slot.is_reserved = False
                self._notify()
                raise
            if slot.is_open:
                return slot
            slot.is_reserved = False

    def _find_reservable(self) -> _Slot | None:
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
            # Keep a result that is already finished.
            cancelling = asyncio.ensure_future(worker.cancel(number))
            await asyncio.wait({asking}, timeout=_CANCEL_S)
            cancelling.cancel()
            if not asking.done() or isinstance(answer := asking.result(), Death):
                asking.cancel()
                raise
        if isinstance(answer, Death):
            self._replace_worker(slot, opened, answer)
            return answer
        value = pickle.loads(answer)
        if value is None:
            raise asyncio.CancelledError
        if isinstance(value, Refusal):
            raise self._error_of(value, f"worker {slot.number}")
        assert isinstance(value, Answer)
        self._env.lifecycle.weight_versions.merge(value.new_versions)
        note_elsewhere(value.read, value.written)
        return value.value

    def _replace_worker(self, slot: _Slot, opened: int, death: Death) -> None:
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
        last_line = death.trace.strip().rpartition("\n")[2]
        if slot.deaths == MAX_DEATHS_OF_SLOT:
            raise RunError(
                f"worker {slot.number} ended {MAX_DEATHS_OF_SLOT} times, and no group ended meanwhile; the "
                f"last time: {death.cause}{f' ({last_line:.200})' if last_line else ''}"
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
            self._replace_worker(slot, opened, beat)
            return
        self.in_flight[slot.number] = beat.in_flight
        self._env.lifecycle.weight_versions.merge(beat.new_versions)
        for line in beat.lines:
            text = f"worker {slot.number}: {line}"
            if slot.is_open:
                self._say(text)
            else:
                self._say_once(line, text)

    def _say_once(self, line: str, text: str | None = None) -> None:
        if line not in self._shown:
            self._shown.add(line)
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
