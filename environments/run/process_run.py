"""`process`: write the groups of the next tasks into one rollout JSONL, which a later run resumes."""

import asyncio
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from environments.base_env import AgentEnv
from environments.record.origin import GroupKey
from environments.record.recorder import Recorder, past_groups
from environments.record.summary import print_summary
from environments.rollout.boundary import traceback_of
from environments.rollout.containment.hook_calls import HookCalls, InFlight
from environments.rollout.hooks import writes
from environments.rollout.items.tasks import GroupTask, PastGroup, RunHistory
from environments.rollout.lifecycle.hook_checks import SharedState
from environments.rollout.lifecycle.rollout_hooks import floor_advice
from environments.run.group_source import (
    FIRST_PAUSE_S,
    Breaker,
    FinishedGroup,
    Lessons,
    Streak,
    withhold_stale,
)
from environments.run.open_run import (
    DEFAULTS,
    OpenRun,
    OpenSource,
    RunOptions,
    in_this_process,
    open_run,
    place_of,
)
from environments.run.tracking import Traces
from environments.run.worker_pool import MAX_ALIKE_FAILURES, StoppedError, first_alone, run_groups
from environments.trajectory import Failure
from tools.errors import ConfigError, RunError, UsageError
from tools.plain_text import printable

MAX_TRIES = 3
"""Starts in which a group may fail before it is given up."""
_NAMED = 20
WITHOUT_REWARD = 3
"""Exit code of a complete run in which no rollout was scored."""
_FEWEST_GROUPS = 3
FAILED = 1
"""Exit code of a run that did not complete."""


async def process(
    env: AgentEnv,
    console: Console,
    *,
    options: RunOptions = DEFAULTS,
    open_source: OpenSource = in_this_process,
) -> int:
    """Open an environment and roll out its tasks; a group counts as done once it is on disk.

    Returns the exit code: 0; 130 or 143 after a signal; `FAILED` if every group failed, `max_failed_groups`
    failed in a row, or one was never completed; `WITHOUT_REWARD`.
    """
    place = place_of(env.config, env.name, options)
    has_next_items = writes(env, "next_items")
    if options.shard is not None and has_next_items:
        raise ConfigError(f"--shard is for a plan, and {type(env).__name__} has next_items, which makes none")
    async with open_run(env, console, place, options, open_source) as run:
        with env.lifecycle.hook_calls(InFlight(item_id="", sibling=0)) as calls:
            most = len(env.items) if env.config.total_steps == -1 else env.config.total_steps
            if has_next_items:
                tasks = ask_tasks(run, calls, most=most)
            else:
                assert run.record is not None
                planned, shard = env.tasks(), options.shard
                own = planned if shard is None else planned[shard.index :: shard.count]
                if not own and shard is not None:
                    run.progress.say(f"shard {shard} has no group of the {len(planned)} that are planned")
                tasks = PlannedTasks(own, run.record.recorder)
            code = await roll_out(run, tasks)
        return await _end(run, tasks, code)


def ask_tasks(run: OpenRun, calls: HookCalls, *, most: int) -> "NextItemsTasks":
    if run.record is None:
        run.progress.say("next_items knows nothing of earlier runs: there is no record of them (--out)")
    past = () if run.record is None else past_groups(run.record.recorder.path)
    return NextItemsTasks(run.env, calls, most=most, past=past, say=run.progress.say)


async def _end(run: OpenRun, tasks: "PlannedTasks | NextItemsTasks", code: int) -> int:
    progress, summary, record = run.progress, run.progress.summary, run.record
    assert record is not None
    recorder = record.recorder
    left = tasks.total - tasks.done - summary.done
    if left or (tasks.total and not recorder.contents.finished):
        code = code or FAILED
    is_whole = record.shard is None and run.env.config.group_size > 1 and tasks.total >= _FEWEST_GROUPS
    if code == 0 and is_whole and not recorder.contents.has_reward:
        progress.say("nothing in the record was scored: every reward is None")
        code = WITHOUT_REWARD
    await record.end(summary, done=tasks.count_recorded(), planned=tasks.total, code=code)
    if summary.done:
        path, wall_s, loop = str(recorder.path), progress.elapsed_s, run.watchdog.utilisation
        progress.print(partial(print_summary, summary=summary, path=path, wall_s=wall_s, loop=loop))
    parts, honest_score = run.env.lifecycle.parts, summary.values()["honest_score"]["min"]
    if advice := floor_advice(honest_score, parts.failed_score):
        progress.say(advice)
    if left:
        by = f" by {signal.Signals(code - 128).name}" if code > 128 else ""
        progress.say(f"stopped{by} with {left} groups to go; the same command goes on from here")
    elif closing := tasks.closing("groups failed"):
        progress.say(closing)
    if tasks.error is not None:
        raise tasks.error
    return code


async def roll_out(run: OpenRun, tasks: "PlannedTasks | NextItemsTasks") -> int:
    """Roll out the tasks that the record lacks; record, show and chart each group. Return the exit code."""
    assert run.record is not None
    progress, recorder = run.progress, run.record.recorder
    run.record.write_plan(groups=tasks.total, done=tasks.done)
    progress.print(partial(_print_start, recorder=recorder, tasks=tasks))
    progress.start(total=tasks.total, done_before=tasks.done)
    progress.ready()
    driver = _Driver(run, recorder, tasks)
    run.watchdog.on_end = driver.record_blocked
    try:
        with run.watchdog.arm(), progress.live:
            return await run_groups(
                tasks,
                driver.start,
                driver.record,
                max_in_flight=run.source.at_once,
                begin=driver.begin,
                ready=driver.ready,
            )
    except (StoppedError, RunError) as error:
        progress.say(f"stopped: {error}")
        return FAILED
    finally:
        driver.say_shared()


class _Driver:
    def __init__(self, run: OpenRun, recorder: Recorder, tasks: "PlannedTasks | NextItemsTasks") -> None:
        self._run, self._recorder, self._tasks = run, recorder, tasks
        self._traces = Traces(run.progress.observers)
        self._breaker = Breaker(Streak(run.env.config.max_failed_groups), run.progress.say)
        self._shared = SharedState(run.env)
        self._lessons = Lessons(run.progress.say, has_credit=recorder.contents.has_credit)

    async def ready(self) -> None:
        while self._tasks.has_more and not self._breaker.may_start:  # noqa: ASYNC110  # its clock opens it
            await asyncio.sleep(FIRST_PAUSE_S / 4)
        await self._tasks.ready()

    async def start(self, task: GroupTask) -> FinishedGroup:
        self._breaker.start((task.item_id, task.epoch))
        self._shared.look()
        return await self._run.source.run(task)

    async def record(self, task: GroupTask, done: FinishedGroup) -> None:
        run, recorder = self._run, self._recorder
        if not run.is_evaluation:
            done = await withhold_stale(run.env, run.finishing, done)
        assert done.line is not None
        await asyncio.to_thread(recorder.append_line, done.line)
        self._traces.add(done)
        run.progress.group_done(done.note)
        if not run.is_evaluation:
            run.tracker.add(done.note)
        self._tasks.add_past(done.note.past)
        if not recorder.has_failed_before(task.item_id, task.epoch):
            self._breaker.end((task.item_id, task.epoch), done.note)
        self._lessons.add(done.note)
        self._shared.look()

    def say_shared(self) -> None:
        if shared := self._shared.warning():
            self._run.progress.say(shared)

    async def begin(self, left: Iterator[GroupTask]) -> list[GroupTask]:
        source, tasks = self._run.source, self._tasks

        async def next_task() -> GroupTask | None:
            await tasks.ready(wait=False)
            return tasks.first() or next(left, None)

        async def on_bad(task: GroupTask) -> None:
            await self.record(task, await source.run(task, len(task.rolled_out)))

        say, has_good = self._run.progress.say, bool(self._recorder.finished)
        return await first_alone(next_task, source.first, on_bad, say, has_good=has_good)

    def record_blocked(self, rollout: InFlight, failure: Failure) -> None:
        # A new event loop: the run's own is blocked for good.
        task = replace(self._tasks.find(rollout.item_id, rollout.epoch), rolled_out=(failure,))
        line = asyncio.run(self._run.source.run(task, 1)).line
        assert line is not None
        self._recorder.append_line(line)


def _print_start(console: Console, recorder: Recorder, tasks: "PlannedTasks | NextItemsTasks") -> None:
    done, total = tasks.done, tasks.total
    if recorder.torn_bytes:
        console.print(
            f"dropped an unfinished last line ({recorder.torn_bytes} bytes) of {recorder.path}",
            soft_wrap=True,
        )
    if done:
        start = "resuming" if done < total else "nothing to roll out"
        there = done - (given_up := len(tasks.given_up))
        those = f"all {total}" if there == total else f"{there} of {total}"
        more = f", and {given_up} were given up" if given_up else ""
        where = f"{those} groups are already in {recorder.path}{more}"
        console.print(f"{start}: {where}; --fresh starts over", soft_wrap=True)


class PlannedTasks:
    def __init__(self, tasks: Sequence[GroupTask], recorder: Recorder) -> None:
        self.total = len(tasks)
        self._tasks, self._recorder = tasks, recorder
        left = [task for task in tasks if not recorder.holds(task.item_id, task.epoch)]
        # Groups that failed before come last: they are no sign that everything fails.
        left.sort(key=lambda task: (recorder.has_failed_before(task.item_id, task.epoch), self._tries(task)))
        self._left = deque(task for task in left if self._tries(task) < MAX_TRIES)
        self._untried = sum(not recorder.has_failed_before(task.item_id, task.epoch) for task in self._left)
        self._firsts = 0
        self.done = self.total - len(self._left)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[GroupTask]:
        while self._left:
            yield self._left.popleft()

    def first(self) -> GroupTask | None:
        """Remove a queued task to run alone. Successive calls take distant tasks, since bad items cluster."""
        if not self._left:
            return None
        untried = max(self._untried - self._firsts, 0) or len(self._left)
        place = untried * (self._firsts % MAX_ALIKE_FAILURES) // MAX_ALIKE_FAILURES
        self._firsts += 1
        task = self._left[place]
        del self._left[place]
        return task

    def find(self, item_id: str, epoch: int) -> GroupTask:
        return next(task for task in self._tasks if (task.item_id, task.epoch) == (item_id, epoch))

    @property
    def has_more(self) -> bool:
        return bool(self._left)

    async def ready(self, *, wait: bool = True) -> None: ...

    def add_past(self, past: PastGroup) -> None: ...

    def count_recorded(self) -> int:
        return sum(self._recorder.holds(task.item_id, task.epoch) for task in self._tasks)

    @property
    def given_up(self) -> list[GroupTask]:
        return [task for task in self._tasks_failed() if self._tries(task) >= MAX_TRIES]

    def closing(self, what: str) -> str:
        failed, names = len(self._tasks_failed()), [str(task.item_id) for task in self.given_up]
        if not failed:
            return ""
        line = f"{failed} of {self.total} {what}"
        if again := failed - len(names):
            line += f"; the same command tries {again if names else 'them'} once more"
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = printable(", ".join(names[:_NAMED]))
            line += f"; given up after {MAX_TRIES} starts, until --fresh: {shown}{more}"
        return line

    def _tasks_failed(self) -> list[GroupTask]:
        failed = self._recorder.contents.failed - self._recorder.finished
        return [task for task in self._tasks if (task.item_id, task.epoch) in failed]

    def _tries(self, task: GroupTask) -> int:
        return self._recorder.tries(task.item_id, task.epoch)


class NextItemsTasks:
    """Tasks that `next_items` names; it is called whenever all its earlier tasks have started."""

    def __init__(
        self,
        env: AgentEnv,
        calls: HookCalls,
        *,
        most: int,
        past: Iterable[PastGroup] = (),
        say: Callable[[str], None],
    ) -> None:
        """Continue from the groups in `past`; `most` groups in all, -1 for no end."""
        self._env, self._calls, self._say = env, calls, say
        self._items = dict(zip(env.item_ids, env.items, strict=True))
        self._past = list(past)
        self._used_keys = {(each.item_id, each.epoch) for each in self._past if each.status != "failed"}
        self._epochs = defaultdict[str, int](int)
        self._named = deque[str]()
        self._in_flight: list[tuple[str, int]] = []
        self._ended = asyncio.Event()
        self._asking = asyncio.Lock()
        self._is_over = False
        self._started = 0
        self.done = sum(identity in self._items for identity, _ in self._used_keys)
        self.total = most
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[GroupTask]:
        return self

    def __next__(self) -> GroupTask:
        if not self._named:
            raise StopIteration
        identity = self._named.popleft()
        # Groups in flight when an earlier run was killed left gaps.
        while (identity, self._epochs[identity]) in self._used_keys:
            self._epochs[identity] += 1
        task = GroupTask(item=self._items[identity], item_id=identity, epoch=self._epochs[identity])
        self._used_keys.add((identity, task.epoch))
        self._started += 1
        self._in_flight.append((identity, task.epoch))
        return task

    def find(self, item_id: str, epoch: int) -> GroupTask:
        return GroupTask(item=self._items[item_id], item_id=item_id, epoch=epoch)

    given_up: Sequence[GroupTask] = ()

    def first(self) -> GroupTask | None:
        return None  # the order is the environment's

    @property
    def has_more(self) -> bool:
        return not self._is_over

    async def ready(self, *, wait: bool = True) -> None:
        """Call the hook if no task is left; unless `wait`, do not wait for running groups to end.

        No tasks follow after the hook raised.
        """
        async with self._asking:
            while not self._named and not self._is_over:
                self._ended.clear()
                history = RunHistory(self._past, [identity for identity, _ in self._in_flight])
                self._named.extend(await self._next_ids(history))
                if self._named or self._is_over:
                    return
                if not history.in_flight:  # as of the call; groups may have ended since
                    self._is_over, self.total = True, self.done + self._started
                elif wait:
                    await self._ended.wait()
                else:
                    return

    def add_past(self, past: PastGroup) -> None:
        if (key := (past.item_id, past.epoch)) in self._in_flight:  # `serve` tries some twice
            self._in_flight.remove(key)
        self._past.append(past)
        self._ended.set()

    def count_recorded(self) -> int:
        return len(self._past_keys())

    def closing(self, what: str) -> str:
        failed = len(self._past_keys(failed=True) - self._past_keys())
        return f"{failed} of {self.total} {what}; next_items may ask for them once more" if failed else ""

    def _past_keys(self, *, failed: bool = False) -> set[GroupKey]:
        return {
            (each.item_id, each.epoch)
            for each in self._past
            if (each.status == "failed") == failed and each.item_id in self._items
        }

    async def _next_ids(self, history: RunHistory) -> Sequence[str]:
        room = None if self.total == -1 else self.total - self.done - self._started
        if room is not None and room <= 0:
            self._is_over = True
            return []
        try:
            return (await self._env.lifecycle.next_ids(self._calls, history))[:room]
        except (RunError, UsageError) as error:
            # Raised after the groups in flight have ended.
            self.error, self._is_over = error, True
            if error.__cause__ is not None:
                self._say(traceback_of(error.__cause__).rstrip())
            return []
