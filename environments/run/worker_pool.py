"""The event loop of a run: signals end it in order, and groups run side by side."""

import asyncio
import logging
import signal
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from environments.rollout.containment.hook_calls import ContainedCoroutine
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import Failure, StopReason, Trajectory, TrajectoryGroup
from tools.errors import ConfigError, RequestsRefused, RunError
from tools.waiting import to_the_end

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_CANCEL_S = 5.0


def run_whole(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, even if a callback exits or stops the loop.

    Raises RunError if code of the environment cancelled it.
    """
    with asyncio.Runner() as runner:
        work = runner.get_loop().create_task(main)
        try:
            while not work.done():
                try:
                    runner.run(_wait_for(work))
                except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                    # Without a handler, `asyncio.Runner` raises KeyboardInterrupt on a second ^C.
                    has_no_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                    interrupted = isinstance(error, KeyboardInterrupt) and has_no_handler
                    if interrupted or work.done() or runner.get_loop().is_closed():
                        raise
                    _LOG.warning(
                        "a callback tried to end the event loop: %s: %s", type(error).__name__, error
                    )
            return work.result()
        except asyncio.CancelledError:
            raise RunError(
                "the run was cancelled by code that nobody asked to; what is finished is kept"
            ) from None
        finally:
            runner.run(_cancel_others())


async def _wait_for(work: "asyncio.Task[Any]") -> None:
    try:
        await asyncio.wait({work})
    except asyncio.CancelledError:  # `asyncio.Runner` cancels on ^C
        work.cancel()
        await asyncio.wait({work})
        raise


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        _, left = await asyncio.wait(others, timeout=_CANCEL_S)
        for task in left:
            _LOG.warning("a task goes on although it was cancelled, and is not waited for: %r", task)
            if isinstance(coro := task.get_coro(), ContainedCoroutine):
                coro.code.is_given_up = True  # the loop's end cancels it again
            else:  # not of our task factory; `asyncio.Runner` would wait for it
                asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage]  # of the API for extending asyncio


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that end a run in order; schedulers send the last two before a job's time is over."""


class StopSignals:
    """While entered, the first signal calls `stop` in the running event loop."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self.received: int | None = None
        self._stop = stop

    @property
    def exit_code(self) -> int:
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        for number in STOP_SIGNALS:
            # Not `loop.add_signal_handler`, which waits while an environment's code blocks the loop.
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        self.received = number
        # The default again: a second signal kills.
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self._stop)


_STARTED_AT_ONCE = 16
Key = TypeVar("Key")
Result = TypeVar("Result")


class StoppedError(Exception):
    """A message of one line for the user; the run exits with 1 and keeps finished groups."""


class LostWorkerError(StoppedError):
    """A task of the pool was cancelled, or left work undone, without a request to stop."""


async def run_groups(
    keys: Iterable[Key],
    run_group: Callable[[Key], Awaitable[Result]],
    on_done: Callable[[Key, Result], Awaitable[None]],
    *,
    max_in_flight: int,
    begin: Callable[[Iterator[Key]], Awaitable[Iterable[Key]]] | None = None,
    ready: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Run a group for every key, in order, and pass each result to `on_done`. Return the exit code.

    The first stop signal starts no new group and cancels running ones; results that are already there are
    still passed on. The second signal ends the process at once.
    """

    async def work() -> None:
        left = iter(keys)
        begun = deque(() if begin is None else await begin(left))

        async def next_key() -> Key | None:
            if not begun and ready is not None:
                await ready()
            return begun.popleft() if begun else next(left, None)

        async def worker() -> None:
            while (key := await next_key()) is not None:
                with refuse_stray_cancellation():
                    result = await run_group(key)
                    await to_the_end(on_done(key, result))

        await run_side_by_side(worker, max_in_flight)
        if await next_key() is not None:
            raise LostWorkerError("work is left, and nobody works on it")

    pool = asyncio.ensure_future(work())
    with StopSignals(pool.cancel) as signals:
        try:
            await pool
        except asyncio.CancelledError:
            if signals.received is None:
                raise
    return signals.exit_code


def groups_at_once(max_rollouts: int, group_size: int) -> int:
    # One more than fits: the next group uses the free slots of a slow one.
    return max_rollouts // group_size + 1


@contextmanager
def refuse_stray_cancellation() -> Generator[None]:
    """Raise LostWorkerError for a cancellation that nobody asked for; re-raise one that the body ignored."""
    try:
        yield
        if is_cancelled():
            raise asyncio.CancelledError  # while a result was recorded
    except asyncio.CancelledError:
        if not is_cancelled():
            raise LostWorkerError("a group was cancelled by code that nobody asked to") from None
        raise


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def run_side_by_side(worker: Callable[[], Coroutine[Any, Any, None]], count: int) -> None:
    """Run `count` tasks until all end, or raise the first error.

    Raises LostWorkerError if a task was cancelled without a request.
    """
    workers: list[asyncio.Task[None]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                workers.append(group.create_task(worker()))
                if number % _STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)  # starting thousands at once holds the loop for a second
    except BaseExceptionGroup as errors:
        # The other errors are consequences of the first.
        first = errors.exceptions[0]
        raise first from first.__cause__
    # A task group treats a cancelled child as done.
    if any(worker.cancelled() for worker in workers):
        raise LostWorkerError("work is left, and nobody works on it")


MAX_ALIKE_FAILURES = 3
"""Items with equal failures of the first rollout after which the run stops."""
_NO_MODEL = "NoModelError"
_REFUSED = RequestsRefused.__name__
_OWN_ERRORS = frozenset({"ConfigError", "RewardError", "RefusedSettingError", _REFUSED, _NO_MODEL})
"""Our error classes without a place in user code that still mean a bug there or a wrong setting."""


class AlikeFailuresError(StoppedError):
    pass


async def first_alone(
    next_task: Callable[[], Awaitable[GroupTask | None]],
    roll_out: Callable[[GroupTask], Awaitable[TrajectoryGroup]],
    on_bad: Callable[[GroupTask], Awaitable[object]],
    say: Callable[[str], None],
    *,
    has_good: bool,
) -> list[GroupTask]:
    """Roll out first siblings of tasks one by one, until one does not fail in the environment's code."""
    failed = Counter[str]()
    while (task := await next_task()) is not None:
        group = await roll_out(task)
        ended = [_agent_failure(each) or each for each in group.trajectories]
        task = replace(task, rolled_out=(*ended, *group.failures))
        broken = _describe_failure(
            next((each for each in task.rolled_out if isinstance(each, Failure)), None)
        )
        if broken is None:
            return [task]
        kind, shown, how = broken
        failed[kind] += 1
        if failed[kind] == 1:
            say(f"the first rollout, of item {task.item_id}, failed; the next item's goes alone\n{shown}")
        await on_bad(task)
        if is_cancelled():
            raise asyncio.CancelledError
        if failed[kind] == MAX_ALIKE_FAILURES and not has_good:
            raise AlikeFailuresError(f"the first rollouts of {MAX_ALIKE_FAILURES} items failed alike: {how}")
    return []


def _agent_failure(rollout: Trajectory) -> Failure | None:
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


def _describe_failure(failure: Failure | None) -> tuple[str, str, str] | None:
    if failure is None or (failure.where is None and failure.error_class not in _OWN_ERRORS):
        return None
    if failure.error_class == _NO_MODEL:
        raise ConfigError(failure.error.partition(": ")[2])
    kind = f"{failure.error_class} at {failure.where}" if failure.where else failure.error_class
    is_line = failure.stop_reason or failure.error_class == _REFUSED
    shown = failure.error if is_line else failure.traceback.rstrip()
    return kind, shown, kind if failure.where else failure.error
