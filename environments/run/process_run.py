"""`process`: which tasks are next, and their groups into one rollout JSONL, which a later run resumes."""

import asyncio
import signal
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
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
from environments.run.experiment import origin_of
from environments.run.group_source import (
    FIRST_PAUSE_S,
    Breaker,
    FinishedGroup,
    Finishing,
    GroupSource,
    Lessons,
    Streak,
    source_in_process,
    withhold_stale,
)
from environments.run.open_run import DEFAULTS, OpenRun, RunOptions, opened_run, place_of
from environments.run.progress import Progress, RolloutsInFlight
from environments.run.run_list import RunLog
from environments.run.tracking import Traces, Track, tracked
from environments.run.watchdog import Watchdog, watched_run
from environments.run.worker_pool import (
    MOST_ALIKE,
    StoppedError,
    first_alone,
    run_groups,
)
from environments.trajectory import Failure
from tools.errors import ConfigError, RunError, UsageError
from tools.plain_text import printable

MOST_TRIES = 3
"""Starts in which a group may fail before it is passed over."""
_NAMED = 20
WITHOUT_REWARD = 3
"""Exit code of a run of which all is done and nothing was scored."""
_FEWEST_GROUPS = 3
"""Fewer say nothing of the rewards."""
FAILED = 1
"""Exit code of a run that did not do what it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a run wants of whatever rolls its groups out."""

    finishing: Finishing
    say: Callable[[str], None]
    """Shows a line."""
    in_flight: RolloutsInFlight
    """Is to know each rollout from its slot to its end."""
    evaluation: bool = False
    waits: bool = False
    """For model servers that do not answer yet."""


OpenSource = Callable[[AgentEnv, SourceOptions], AbstractAsyncContextManager[GroupSource]]
"""Opens what rolls out the groups of an environment that is open here."""


@asynccontextmanager
async def in_this_process(env: AgentEnv, options: SourceOptions) -> AsyncGenerator[GroupSource]:
    """The environment itself rolls out."""
    yield source_in_process(env, options.in_flight.watch, options.finishing, evaluation=options.evaluation)


async def process(
    env: AgentEnv,
    console: Console,
    *,
    options: RunOptions = DEFAULTS,
    open_source: OpenSource = in_this_process,
) -> int:
    """Opens an environment and rolls out its tasks; a group is on disk before it counts as done.

    Returns the exit code: 0; 130 or 143 when a signal ended the run; `FAILED` when every group failed,
    `max_failed_groups` of them in a row, or one was never rolled out to its end. Raises UsageError if the
    environment cannot be opened, or the record is not this run's.
    """
    place, log = place_of(env.config, env.name, options), RunLog()
    if options.shard is not None and writes(env, "next_items"):
        raise ConfigError(f"--shard is for a plan, and {type(env).__name__} has next_items, which makes none")
    progress = Progress(console, log=log)
    with watched_run(env, progress) as watchdog:
        async with env.opened(notify=progress.say):
            with ExitStack() as files:
                # First what can still refuse: `--fresh` puts the former run aside.
                track = files.enter_context(tracked(env, progress.observers))
                origin = origin_of(env)
                opened = opened_run(env, origin, place, options=options, log=log, say=progress.say)
                run = files.enter_context(opened)
                finishing = Finishing(fingerprint=run.recorder.fingerprint, is_charted=track is not None)
                wanted = SourceOptions(finishing=finishing, say=progress.say, in_flight=progress.in_flight)
                async with open_source(env, wanted) as source:
                    return await _process_opened(env, progress, run, track, watchdog, source)


async def _process_opened(
    env: AgentEnv,
    progress: Progress,
    run: OpenRun,
    track: Track | None,
    watchdog: Watchdog,
    source: GroupSource,
) -> int:
    recorder = run.recorder
    finishing = Finishing(fingerprint=recorder.fingerprint, is_charted=track is not None)
    driver = Driver(
        source=source,
        run=run,
        progress=progress,
        watchdog=watchdog,
        max_failed=env.config.max_failed_groups,
        withhold_stale=partial(withhold_stale, env, finishing),
        track=track,
    )
    with env.lifecycle.hook_calls(InFlight(item_id="", sibling=0)) as calls:
        if writes(env, "next_items"):
            most = len(env.items) if env.config.total_steps == -1 else env.config.total_steps
            past = past_groups(recorder.path)
            tasks = AskedTasks(env, calls, most=most, past=past, say=progress.say)
        else:
            planned = env.tasks()
            own = planned if run.shard is None else planned[run.shard.index :: run.shard.count]
            tasks = PlannedTasks(own, recorder)
            if run.shard is not None and not own:
                progress.say(f"shard {run.shard} has no group of the {len(planned)} that are planned")
        code = await driver.roll_out(tasks)
    summary = progress.summary
    left = tasks.total - tasks.done - summary.done
    if left or (tasks.total and not recorder.contents.finished):
        code = code or FAILED
    is_whole = run.shard is None and env.config.group_size > 1 and tasks.total >= _FEWEST_GROUPS
    if code == 0 and is_whole and not recorder.contents.has_reward:
        progress.say("nothing in the record was scored: every reward is None")
        code = WITHOUT_REWARD
    loop = watchdog.utilisation
    await run.end(summary, done=tasks.held(), planned=tasks.total, code=code)
    progress.print(partial(_print_end, recorder=recorder, progress=progress, loop=loop))
    if left:
        by = f" by {signal.Signals(code - 128).name}" if code > 128 else ""
        progress.say(f"stopped{by} with {left} groups to go; the same command goes on from here")
    elif closing := tasks.closing("groups failed"):
        progress.say(closing)
    if tasks.error is not None:
        raise tasks.error
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Plans, records and shows the groups of a source, wherever that rolls them out."""

    source: GroupSource
    run: OpenRun
    progress: Progress
    watchdog: Watchdog
    max_failed: int
    """Groups that may fail in a row, see `Streak`."""
    withhold_stale: Callable[[FinishedGroup], Awaitable[FinishedGroup]] | None = None
    """Takes the credit of siblings that are too old by now; `None`: there is no credit."""
    track: Track | None = None

    async def roll_out(self, tasks: "PlannedTasks | AskedTasks") -> int:
        """Has the tasks rolled out that the record does not hold yet.

        Returns 0, the exit code of a signal, or `FAILED` where there was no point in going on, which is
        shown.
        """
        progress, recorder, traces = self.progress, self.run.recorder, Traces(self.progress.observers)
        breaker = Breaker(Streak(self.max_failed), progress.say)
        lessons = Lessons(progress.say, has_credit=recorder.contents.has_credit)
        self.run.planned(groups=tasks.total, done=tasks.done)
        progress.print(partial(_print_start, recorder=recorder, tasks=tasks))
        progress.start(total=tasks.total, done_before=tasks.done)
        progress.ready()

        async def record(task: GroupTask, done: FinishedGroup) -> None:
            if self.withhold_stale is not None:
                done = await self.withhold_stale(done)
            assert done.line is not None
            await asyncio.to_thread(recorder.append_line, done.line)
            traces.add(done)
            progress.group_done(done.note)
            if self.track is not None:
                self.track(done.note)
            tasks.ended(done.note.past)
            if not recorder.failed_before(task.item_id, task.epoch):
                breaker.end((task.item_id, task.epoch), done.note)
            lessons.add(done.note)

        async def begin(left: Iterator[GroupTask]) -> list[GroupTask]:
            async def next_task() -> GroupTask | None:
                await tasks.ready(wait=False)
                return tasks.first() or next(left, None)

            async def failed(task: GroupTask) -> None:
                await record(task, await self.source.run(task, len(task.rolled_out)))

            has_good = bool(recorder.finished)
            return await first_alone(next_task, self.source.first, failed, progress.say, has_good=has_good)

        def blocked(rollout: InFlight, failure: Failure) -> None:
            # The loop is blocked for good, and without siblings to come nothing of this waits for it.
            task = replace(tasks.named(rollout.item_id, rollout.epoch), rolled_out=(failure,))
            line = asyncio.run(self.source.run(task, 1)).line
            assert line is not None
            recorder.append_line(line)

        self.watchdog.on_end = blocked
        try:
            with self.watchdog.armed(), progress:
                return await run_groups(
                    tasks,
                    partial(_start, self.source, breaker),
                    record,
                    max_in_flight=self.source.at_once,
                    begin=begin,
                    ready=partial(_ready, tasks, breaker),
                )
        except (StoppedError, RunError) as error:
            progress.say(f"stopped: {error}")
            return FAILED


async def _start(source: GroupSource, breaker: Breaker, task: GroupTask) -> FinishedGroup:
    breaker.start((task.item_id, task.epoch))
    return await source.run(task)


async def _ready(tasks: "PlannedTasks | AskedTasks", breaker: Breaker) -> None:
    while tasks.has_more and not breaker.may_start:  # noqa: ASYNC110  # its clock lets the next group start
        await asyncio.sleep(FIRST_PAUSE_S / 4)
    await tasks.ready()


def _print_start(console: Console, recorder: Recorder, tasks: "PlannedTasks | AskedTasks") -> None:
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


def _print_end(console: Console, recorder: Recorder, progress: Progress, *, loop: float | None) -> None:
    """The summary of what this run added."""
    if progress.summary.done:
        path, wall_s = str(recorder.path), progress.elapsed_s
        print_summary(console, progress.summary, path=path, wall_s=wall_s, loop=loop)


class PlannedTasks:
    """Tasks in the order they start, known from the beginning."""

    def __init__(self, tasks: Sequence[GroupTask], recorder: Recorder) -> None:
        self.total = len(tasks)
        """Groups of the whole job."""
        self._tasks, self._recorder = tasks, recorder
        left = [task for task in tasks if not recorder.holds(task.item_id, task.epoch)]
        # Last, and no sign that everything fails, is what an earlier run could not do.
        left.sort(key=lambda task: (recorder.failed_before(task.item_id, task.epoch), self._tries(task)))
        self._left = deque(task for task in left if self._tries(task) < MOST_TRIES)
        self._untried = sum(not recorder.failed_before(task.item_id, task.epoch) for task in self._left)
        self._firsts = 0
        self.done = self.total - len(self._left)
        """Those that an earlier run finished or gave up."""
        self.error: Exception | None = None
        """Why nothing comes any more, although there is more to do."""

    def __iter__(self) -> Iterator[GroupTask]:
        while self._left:
            yield self._left.popleft()

    def first(self) -> GroupTask | None:
        """Take one whose first rollout is to go alone, each from another place: bad items stand together."""
        if not self._left:
            return None
        untried = max(self._untried - self._firsts, 0) or len(self._left)
        place = untried * (self._firsts % MOST_ALIKE) // MOST_ALIKE
        self._firsts += 1
        task = self._left[place]
        del self._left[place]
        return task

    def named(self, item_id: str, epoch: int) -> GroupTask:
        """One of them."""
        return next(task for task in self._tasks if (task.item_id, task.epoch) == (item_id, epoch))

    @property
    def has_more(self) -> bool:
        """Whether there is a next one."""
        return bool(self._left)

    async def ready(self, *, wait: bool = True) -> None:
        """Wait until the next one is known, or the end."""

    def ended(self, past: PastGroup) -> None:
        """Take in what came of one."""

    def held(self) -> int:
        """Groups of the job that are finished by now."""
        return sum(self._recorder.holds(task.item_id, task.epoch) for task in self._tasks)

    @property
    def given_up(self) -> list[GroupTask]:
        """Those that failed in so many starts that they are passed over."""
        return [task for task in self._failed() if self._tries(task) >= MOST_TRIES]

    def closing(self, what: str) -> str:
        """How many groups failed, and what becomes of them, in a line; empty where none did."""
        failed, names = len(self._failed()), [str(task.item_id) for task in self.given_up]
        if not failed:
            return ""
        line = f"{failed} of {self.total} {what}"
        if again := failed - len(names):
            line += f"; the same command tries {again if names else 'them'} once more"
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            shown = printable(", ".join(names[:_NAMED]))
            line += f"; given up after {MOST_TRIES} starts, until --fresh: {shown}{more}"
        return line

    def _failed(self) -> list[GroupTask]:
        failed = self._recorder.contents.failed - self._recorder.finished
        return [task for task in self._tasks if (task.item_id, task.epoch) in failed]

    def _tries(self, task: GroupTask) -> int:
        return self._recorder.tries(task.item_id, task.epoch)


class AskedTasks:
    """The same, asked of `next_items`, one call at a time, whenever all that it named has started."""

    def __init__(
        self,
        env: AgentEnv,
        calls: HookCalls,
        *,
        most: int,
        past: Iterable[PastGroup] = (),
        say: Callable[[str], None],
    ) -> None:
        """Goes on from what came out so far.

        At most `most` groups of the whole job are asked for, -1: without an end; `past` are those of earlier
        runs. `say` takes the traceback of a hook that breaks.
        """
        self._env, self._calls, self._say = env, calls, say
        self._items = dict(zip(env.item_ids, env.items, strict=True))
        self._past = list(past)
        self._taken = {(each.item_id, each.epoch) for each in self._past if each.status != "failed"}
        self._epochs = defaultdict[str, int](int)
        self._asked = deque[str]()
        self._in_flight: list[tuple[str, int]] = []
        self._ended = asyncio.Event()
        self._asking = asyncio.Lock()
        self._is_over = False
        """Whether nothing is asked for any more."""
        self._started = 0
        self.done = sum(identity in self._items for identity, _ in self._taken)
        """Groups that an earlier run finished."""
        self.total = most
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[GroupTask]:
        return self

    def __next__(self) -> GroupTask:
        if not self._asked:
            raise StopIteration
        identity = self._asked.popleft()
        # What was in flight when an earlier run was killed left a gap.
        while (identity, self._epochs[identity]) in self._taken:
            self._epochs[identity] += 1
        task = GroupTask(item=self._items[identity], item_id=identity, epoch=self._epochs[identity])
        self._taken.add((identity, task.epoch))
        self._started += 1
        self._in_flight.append((identity, task.epoch))
        return task

    def named(self, item_id: str, epoch: int) -> GroupTask:
        """One of them."""
        return GroupTask(item=self._items[item_id], item_id=item_id, epoch=epoch)

    given_up: Sequence[GroupTask] = ()
    """None: whoever asks for an item again has a reason."""

    def first(self) -> GroupTask | None:
        """Nothing: the order is the environment's."""

    @property
    def has_more(self) -> bool:
        """Whether there may be a next one."""
        return not self._is_over

    async def ready(self, *, wait: bool = True) -> None:
        """Ask, where nothing is left of what was asked for; unless `wait`, do not wait for groups to end.

        Nothing comes after the hook broke.
        """
        async with self._asking:
            while not self._asked and not self._is_over:
                self._ended.clear()
                history = RunHistory(self._past, [identity for identity, _ in self._in_flight])
                self._asked.extend(await self._next_ids(history))
                if self._asked or self._is_over:
                    return
                # Its arguments count: meanwhile some may have ended.
                if not history.in_flight:
                    self._is_over, self.total = True, self.done + self._started
                elif wait:
                    await self._ended.wait()
                else:
                    return

    def ended(self, past: PastGroup) -> None:
        """Take in what came of one; then the hook may be asked again."""
        if (key := (past.item_id, past.epoch)) in self._in_flight:  # `serve` tries some twice
            self._in_flight.remove(key)
        self._past.append(past)
        self._ended.set()

    def held(self) -> int:
        """Those that came out so far and did not fail."""
        return len(self._came_out())

    def closing(self, what: str) -> str:
        """How many groups failed, in a line; empty where none did."""
        failed = len(self._came_out(failed=True) - self._came_out())
        return f"{failed} of {self.total} {what}; next_items may ask for them once more" if failed else ""

    def _came_out(self, *, failed: bool = False) -> set[GroupKey]:
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
            # Raised when the groups in flight have ended: they are no worse for it.
            self.error, self._is_over = error, True
            if error.__cause__ is not None:
                self._say(traceback_of(error.__cause__).rstrip())
            return []
