"""The event loop of a run: signals end it in order, and many groups go at once, in the order of items."""

import asyncio
import logging
import signal
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from environments.rollout.containment.hook_calls import ContainedCoroutine
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import Failure, StopReason, Trajectory, TrajectoryGroup
from tools.errors import ConfigError, RunError
from tools.waiting import to_the_end

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_CANCEL_S = 5.0
"""For tasks that an environment's code left behind to end when they are cancelled."""


def run_whole(main: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` gives, but a callback that exits or stops the loop ends nothing.

    Raises RunError if code of the environment cancelled all of it.
    """
    with asyncio.Runner() as runner:
        work = runner.get_loop().create_task(main)
        try:
            while not work.done():
                _go_on(runner, work)
            return work.result()
        except asyncio.CancelledError:
            raise RunError(
                "the run was cancelled by code that nobody asked to; what is finished is kept"
            ) from None
        finally:
            runner.run(_end_of_others())


def _go_on(runner: asyncio.Runner, work: "asyncio.Task[Any]") -> None:
    """Run until the work is done, or until a callback breaks out of the loop."""
    try:
        runner.run(_end_of(work))
    except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
        # Without a handler `asyncio.Runner` makes one of a second ^C.
        has_no_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        interrupted = isinstance(error, KeyboardInterrupt) and has_no_handler
        if interrupted or work.done() or runner.get_loop().is_closed():
            raise
        _LOG.warning("a callback tried to end the event loop: %s: %s", type(error).__name__, error)


async def _end_of(work: "asyncio.Task[Any]") -> None:
    try:
        await asyncio.wait({work})
    except asyncio.CancelledError:  # ^C, which `asyncio.Runner` makes a cancellation of
        work.cancel()
        await asyncio.wait({work})
        raise


async def _end_of_others() -> None:
    """Cancel what is left; those that go on all the same are left alone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        _, left = await asyncio.wait(others, timeout=_CANCEL_S)
        for task in left:
            _LOG.warning("a task goes on although it was cancelled, and is not waited for: %r", task)
            if isinstance(coro := task.get_coro(), ContainedCoroutine):
                coro.code.is_given_up = True  # so that the end of the loop, which cancels it again, ends it
            else:  # made without our task factory; `asyncio.Runner` would wait for it
                asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage]  # of the API for extending asyncio


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers send the last two before a job's time is over; they would end the process without a word."""


class StopSignals:
    """While entered, the first signal calls `stop` in the event loop that runs."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self.received: int | None = None
        """The number of the first signal."""
        self._stop = stop

    @property
    def exit_code(self) -> int:
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number in STOP_SIGNALS:
            # Not the loop's own handlers: those wait while an environment's code blocks the loop.
            signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.received = number
        # Back to the default, so that a second signal kills without a word from us.
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self._stop)


_STARTED_AT_ONCE = 16
"""Groups that start in one turn of the event loop."""
Key = TypeVar("Key")
Result = TypeVar("Result")


class StoppedError(Exception):
    """One line for the user; the run exits with 1, and what is finished is kept."""


class LostWorkerError(StoppedError):
    """A worker was cancelled, or work is left, without a request to end."""


async def run_groups(
    keys: Iterable[Key],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    *,
    max_in_flight: int,
    begin: Callable[[Iterator[Key]], Awaitable[Iterable[Key]]] | None = None,
    ready: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Runs a group for every key, in order, and hands each result over as it ends.

    The first SIGINT or SIGTERM starts no new group and cancels those in flight. An `on_done` that has begun
    is waited for, and a group that returns its result all the same has it handed over: what was finished is
    kept. The second signal ends the process at once.
    """

    async def work() -> None:
        left = iter(keys)
        begun = deque(() if begin is None else await begin(left))

        async def next_key() -> Key | None:
            if not begun and ready is not None:
                await ready()
            return begun.popleft() if begun else next(left, None)

        await _pool(next_key, run_group, on_done, max_in_flight)

    pool = asyncio.ensure_future(work())
    with StopSignals(pool.cancel) as signals:
        try:
            await pool
        except asyncio.CancelledError:
            if signals.received is None:
                raise
    return signals.exit_code


def groups_at_once(max_rollouts: int, group_size: int) -> int:
    """Groups in flight that keep `max_rollouts` rollouts busy."""
    # One more than fits, so that the slots of a straggling group are used by the next.
    return max_rollouts // group_size + 1


def refuse_stray_cancellation() -> None:
    """Raise LostWorkerError from a task that met a cancellation which was not requested."""
    if not is_cancelled():
        raise LostWorkerError("a group was cancelled by code that nobody asked to")


def is_cancelled() -> bool:
    """Whether the end of this task was asked for, and it has not ended yet."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _pool(
    next_key: Callable[[], Awaitable[Key | None]],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    max_in_flight: int,
) -> None:
    async def worker() -> None:
        while (key := await next_key()) is not None:
            try:
                result = await run_group(key)
                await to_the_end(on_done(key, result))
                if is_cancelled():
                    raise asyncio.CancelledError  # while its result was on the way
            except asyncio.CancelledError:
                refuse_stray_cancellation()
                raise

    workers: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(max_in_flight):
                workers.append(group.create_task(worker()))
                if number % _STARTED_AT_ONCE == 0:
                    # The first steps of thousands would hold the event loop for most of a second.
                    await asyncio.sleep(0)
    except BaseExceptionGroup as errors:
        # One error is what people can act on: the others followed from it.
        first = errors.exceptions[0]
        raise first from first.__cause__
    # A task group takes a cancelled child for one that is done.
    if any(worker.cancelled() for worker in workers) or await next_key() is not None:
        raise LostWorkerError("work is left, and nobody works on it")


MOST_ALIKE = 3
"""First rollouts that fail alike, of so many items: there is no point in the others."""
_NO_MODEL = "NoModelError"
_OF_OURS = frozenset({"ConfigError", "RewardError", "RefusedSettingError", _NO_MODEL})
"""Errors of ours, which have no place, of a bug in the environment's code or of a setting all the same."""


class AlikeFailuresError(StoppedError):
    """The first rollouts of several items failed at the same place of the environment's code."""


async def first_alone(
    next_task: Callable[[], Awaitable[GroupTask | None]],
    roll_out: Callable[[GroupTask], Awaitable[TrajectoryGroup]],
    on_bad: Callable[[GroupTask], Awaitable[object]],
    say: Callable[[str], None],
    *,
    has_good: bool,
) -> list[GroupTask]:
    """Rolls out first siblings one after another until one does not fail in the environment's code."""
    failed = Counter[str]()
    while (task := await next_task()) is not None:
        group = await roll_out(task)
        ended = [_failed_agent(each) or each for each in group.trajectories]
        task = replace(task, rolled_out=(*ended, *group.failures))
        broken = _broken(next((each for each in task.rolled_out if isinstance(each, Failure)), None))
        if broken is None:
            return [task]
        kind, shown, how = broken
        failed[kind] += 1
        if failed[kind] == 1:
            say(f"the first rollout, of item {task.item_id}, failed; the next item's goes alone\n{shown}")
        await on_bad(task)
        if is_cancelled():
            raise asyncio.CancelledError  # while it was on the way
        if failed[kind] == MOST_ALIKE and not has_good:
            raise AlikeFailuresError(f"the first rollouts of {MOST_ALIKE} items failed alike: {how}")
    return []


def _failed_agent(rollout: Trajectory) -> Failure | None:
    """A recorded agent that ended with an error, as the failure that a first rollout is then."""
    if rollout.stop_reason is not StopReason.AGENT_ERROR or rollout.agent is None:
        return None
    trace = rollout.agent.error.rstrip()
    last = trace.rpartition("\n")[2]
    return Failure(
        sibling=rollout.sibling,
        stop_reason=None,
        error=last,
        traceback="\n".join(filter(None, [trace, rollout.agent.output.rstrip()])),
        turns=len(rollout.turns),
        error_class=last.partition(":")[0],
        where="the agent",
        judge_calls=rollout.judge_calls,
        user_calls=rollout.user_calls,
        summariser_calls=rollout.summariser_calls,
    )


def _broken(failure: Failure | None) -> tuple[str, str, str] | None:
    """How a first rollout broke in the environment's or the agent's code: its kind, all of it, and a line."""
    if failure is None or (failure.where is None and failure.error_class not in _OF_OURS):
        return None
    if failure.error_class == _NO_MODEL:
        raise ConfigError(failure.error.partition(": ")[2])
    kind = f"{failure.error_class} at {failure.where}" if failure.where else failure.error_class
    shown = failure.error if failure.stop_reason else failure.traceback.rstrip()
    return kind, shown, kind if failure.where else failure.error
