"""`process`: an environment's groups into one rollout JSONL, resuming what the file already holds."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from rich.console import Console

from environments.base_env import AgentEnv
from environments.containment.in_flight import InFlight
from environments.data.tasks import GroupTask
from environments.record.recorder import Recorder
from environments.record.summary import print_summary
from environments.run.experiment import origin_of
from environments.run.first_alone import first_alone
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
from environments.trajectory import CreditedGroup
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
    env: AgentEnv, console: Console, progress: Progress, run: OpenRun, track: Track, watchdog: Watchdog
) -> int:
    recorder = run.recorder
    with env.hook_calls(InFlight(item_id="", sibling=0)) as calls:
        tasks = next_tasks(env, recorder, calls, progress.say)
        run.planned(groups=tasks.total, done=tasks.done)
        progress.print(partial(print_start, recorder=recorder, done=tasks.done, total=tasks.total))
        progress.start(total=tasks.total, done_before=tasks.done)
        progress.ready()
        with watchdog.armed():
            code = await process_tasks(env, tasks, recorder, progress, track)
    left = tasks.left(progress.summary.done)
    code = code or (FAILED if left else 0)
    await run.end(progress.summary, done=tasks.held(), planned=tasks.total, code=code)
    progress.print(partial(print_end, recorder=recorder, progress=progress, left=left))
    if tasks.error is not None:
        raise tasks.error
    return code


async def process_tasks(
    env: AgentEnv, tasks: NextTasks, recorder: Recorder, progress: Progress, track: Track
) -> int:
    """Roll out the tasks that the record does not hold yet; the exit code, see `process`."""

    async def record(task: GroupTask, credited: CreditedGroup) -> None:
        credited = await asyncio.to_thread(recorder.append, credited)
        progress.group_done(credited)
        track(credited)
        tasks.ended(task, credited)
        if not recorder.failed_before(task.item_id, task.epoch):
            streak.add(credited.group)

    async def begin(left: Iterator[GroupTask]) -> list[GroupTask]:
        return await first_alone(
            left,
            lambda task: env.rollout_group(task, 1, watch=progress.rollout),
            progress.say,
            partial(tasks.ready, wait=False),
        )

    streak = Streak(env.config.max_failed_groups)
    try:
        with progress:
            code = await run_groups(
                tasks,
                lambda task: env.run_group(task, watch=progress.rollout),
                record,
                max_in_flight=groups_at_once(env.config.max_concurrent_rollouts, env.config.group_size),
                begin=begin,
                ready=tasks.ready,
            )
    except (StoppedError, RunError) as error:
        progress.say(f"stopped: {error}")
        return FAILED
    groups = progress.summary.groups
    return code or (FAILED if groups.total() > 0 and groups.total() == groups["failed"] else 0)


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
