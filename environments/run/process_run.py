"""`process`: an environment's groups into one rollout JSONL, resuming what the file already holds."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from environments.base_env import AgentEnv
from environments.containment.user_code import InFlight
from environments.data.tasks import GroupTask
from environments.record.recorder import Recorder
from environments.record.summary import print_summary
from environments.run.experiment import origin_of
from environments.run.first_alone import first_alone
from environments.run.group_source import FinishedGroup, FinishedGroups, GroupSource, OwnGroups, aged
from environments.run.next_tasks import NextTasks, next_tasks
from environments.run.open_run import OpenRun, opened_run, place_of
from environments.run.progress import Progress
from environments.run.run_files import Sources
from environments.run.run_log import RunLog
from environments.run.stopped import StoppedError
from environments.run.streak import Streak
from environments.run.tracking import Track, tracked
from environments.run.watchdog import Watchdog, watchdog_of
from environments.run.worker_pool import groups_at_once, run_groups
from tools.errors import RunError

FAILED = 1
"""Exit code of a run that did not do what it was asked for."""


async def process(env: AgentEnv, console: Console, *, sources: Sources | None = None) -> int:
    """Open an environment and roll out its tasks; a group is on disk before it counts as done.

    Args:
        env: the environment; its settings say where the record is.
        console: where to show how it goes.
        sources: where the settings came from; `None`: from a program.

    Returns:
        The exit code: 0; 130 or 143 when a signal ended the run; `FAILED` when every group failed,
        `max_failed_groups` of them in a row, or one was never rolled out to its end.

    Raises:
        UsageError: the environment cannot be opened, or the record is not this run's.
    """
    place, log = place_of(env.config, env.name), RunLog()
    progress = Progress(console, log=log)
    with watchdog_of(env, progress) as watchdog:
        async with env.opened(notify=progress.say):
            with ExitStack() as files:
                # First what can still refuse: `--fresh` puts the former run aside.
                track = files.enter_context(tracked(env))
                opened = opened_run(env, origin_of(env), place, sources=sources, log=log, say=progress.say)
                run = files.enter_context(opened)
                return await _process_opened(env, console, progress, run, track, watchdog)


async def _process_opened(
    env: AgentEnv, console: Console, progress: Progress, run: OpenRun, track: Track | None, watchdog: Watchdog
) -> int:
    recorder = run.recorder
    source = OwnGroups(env, progress.rollout)
    driver = Driver(
        source=FinishedGroups(source, fingerprint=recorder.fingerprint, is_charted=track is not None),
        recorder=recorder,
        progress=progress,
        at_once=groups_at_once(env.config.max_concurrent_rollouts, env.config.group_size),
        max_failed=env.config.max_failed_groups,
        aged=partial(aged, env),
        track=track,
    )
    with env.hook_calls(InFlight(item_id="", sibling=0)) as calls:
        tasks = next_tasks(env, recorder, calls, progress.say)
        run.planned(groups=tasks.total, done=tasks.done)
        progress.print(partial(print_start, recorder=recorder, done=tasks.done, total=tasks.total))
        progress.start(total=tasks.total, done_before=tasks.done)
        progress.ready()
        try:
            with watchdog.armed():
                code = await driver.run(tasks)
        except (StoppedError, RunError) as error:
            progress.say(f"stopped: {error}")
            code = FAILED
    summary = progress.summary
    left, failed = tasks.left(summary.done), summary.groups["failed"]
    if left or 0 < failed == summary.done:
        code = code or FAILED
    await run.end(summary, done=tasks.held(), planned=tasks.total, code=code)
    progress.print(partial(print_end, recorder=recorder, progress=progress, left=left))
    if tasks.error is not None:
        raise tasks.error
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Plans, records and shows the groups of a source, wherever that rolls them out."""

    source: GroupSource[FinishedGroup]
    recorder: Recorder
    progress: Progress
    at_once: int
    """Groups in flight."""
    max_failed: int
    """Groups that may fail in a row, see `Streak`."""
    aged: Callable[[FinishedGroup], FinishedGroup] | None = None
    """Takes the credit of a group that is too old by now; `None`: there is no credit."""
    track: Track | None = None

    async def run(self, tasks: NextTasks) -> int:
        """Have the tasks rolled out that the record does not hold yet.

        Returns:
            0, or the exit code of a signal.

        Raises:
            StoppedError: there is no point in going on.
            RunError: too much of the environment's code hangs.
        """
        streak = Streak(self.max_failed)

        async def record(task: GroupTask, done: FinishedGroup) -> None:
            if self.aged is not None:
                done = self.aged(done)
            await asyncio.to_thread(self.recorder.append_line, done.line)
            self.progress.group_done(done.note)
            if self.track is not None:
                self.track(done.note)
            tasks.ended(done.note.past)
            if not self.recorder.failed_before(task.item_id, task.epoch):
                streak.add(done.note)

        async def begin(left: Iterator[GroupTask]) -> list[GroupTask]:
            ready = partial(tasks.ready, wait=False)
            return await first_alone(left, self.source.first, self.progress.say, ready)

        with self.progress:
            return await run_groups(
                tasks, self.source.run, record, max_in_flight=self.at_once, begin=begin, ready=tasks.ready
            )


def print_start(console: Console, recorder: Recorder, *, done: int, total: int) -> None:
    """Say what is taken up from the file."""
    if recorder.torn_bytes:
        console.print(
            f"dropped an unfinished last line ({recorder.torn_bytes} bytes) of {recorder.path}",
            soft_wrap=True,
        )
    if done:
        those = f"resuming: {done} of {total}" if done < total else f"nothing to roll out: all {total}"
        console.print(f"{those} groups are already in {recorder.path}; --fresh starts over", soft_wrap=True)


def print_end(console: Console, recorder: Recorder, progress: Progress, *, left: int) -> None:
    """The summary of what this run added, and what is left to do."""
    if progress.summary.done:
        print_summary(console, progress.summary, path=str(recorder.path), wall_s=progress.elapsed_s)
    if left:
        console.print(f"stopped with {left} groups to go; the same command goes on from here")
    elif failed := progress.summary.groups["failed"]:
        console.print(
            f"{failed} of {progress.summary.done} groups failed; the same command tries them once more",
            soft_wrap=True,
        )
