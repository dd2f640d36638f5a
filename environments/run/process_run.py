"""`process`: an environment's groups into one rollout JSONL, resuming what the file already holds."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from environments.base_env import AgentEnv
from environments.containment.in_flight import InFlight
from environments.data.tasks import GroupTask
from environments.record.origin import RunOrigin, credit_text
from environments.record.recorder import Recorder
from environments.record.summary import print_summary
from environments.run.experiment import origin_of
from environments.run.experiment_code import has_file
from environments.run.first_alone import first_alone
from environments.run.next_tasks import NextTasks, next_tasks
from environments.run.progress import Progress
from environments.run.stopped import StoppedError
from environments.run.streak import Streak
from environments.run.tracking import Track, tracked
from environments.run.watchdog import Watchdog, watchdog_of
from environments.run.worker_pool import groups_at_once, run_groups
from environments.trajectory import CreditedGroup
from tools.errors import RunError

FAILED = 1
"""Exit code of a run that did not do what it was asked for."""


async def process(env: AgentEnv, console: Console) -> int:
    """Open an environment and roll out its tasks; a group is on disk before it counts as done.

    Returns:
        The exit code: 0; 130 or 143 when a signal ended the run; `FAILED` when every group failed,
        `max_failed_groups` of them in a row, or one was never rolled out to its end.

    Raises:
        UsageError: the environment cannot be opened, or the record is not this run's.
    """
    path = Path(env.config.data_path_to_save_groups or f"data/{env.name}.jsonl")
    progress = Progress(console)
    with watchdog_of(env, progress) as watchdog:
        async with env.opened(notify=progress.say):
            return await _process_opened(env, console, progress, path, watchdog)


async def _process_opened(
    env: AgentEnv, console: Console, progress: Progress, path: Path, watchdog: Watchdog
) -> int:
    with ExitStack() as files:
        # First what can still refuse: `--fresh` empties the record.
        track = files.enter_context(tracked(env.config, env.name))
        recorder = files.enter_context(Recorder(path, fresh=env.config.fresh))
        begin_record(env, recorder, notify=progress.say)
        calls = files.enter_context(env.hook_calls(InFlight(item_id="", sibling=0)))
        tasks = next_tasks(env, recorder, calls, progress.say)
        print_start(console, recorder, done=tasks.done, total=tasks.total)
        progress.start(total=tasks.total, done_before=tasks.done)
        progress.ready()
        with watchdog.armed():
            code = await process_tasks(env, tasks, recorder, progress, track)
        left = tasks.left(progress.summary.done)
        print_end(console, recorder, progress, left=left)
        if tasks.error is not None:
            raise tasks.error
    return code or (FAILED if left else 0)


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


def begin_record(env: AgentEnv, recorder: Recorder, *, notify: Callable[[str], None]) -> RunOrigin:
    """Make a record this run's; what of its origin cannot be known is said.

    Raises:
        RecordError: it holds groups of another experiment, or of items that have changed.
    """
    origin = origin_of(env)
    if not has_file(type(env)):
        notify(
            f"{type(env).__name__} has no file: when the record is continued, changes in its own functions "
            f"will be noticed, and none in what they import"
        )
    recorder.begin(origin, zip(env.item_ids, env.items, strict=True), all_items=env.config.max_items is None)
    others = sorted(recorder.estimators - {credit_text(origin.estimator, origin.estimator_params)})
    if others:
        notify(
            f"the groups in {recorder.path} keep the advantages of {', '.join(others)}; "
            f"`turnwise recredit` computes all of them anew"
        )
    return origin


def print_start(console: Console, recorder: Recorder, *, done: int, total: int) -> None:
    """Say what is taken up from the file."""
    if recorder.torn_bytes:
        console.print(
            f"dropped an unfinished last line ({recorder.torn_bytes} bytes) of {recorder.path}",
            soft_wrap=True,
        )
    if done:
        console.print(
            f"resuming: {done} of {total} groups are already in {recorder.path}; --fresh starts over",
            soft_wrap=True,
        )


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
