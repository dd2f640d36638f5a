"""`process`: a plan of groups into one rollout JSONL, resuming what the file already holds."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rich.console import Console

from environments.data.tasks import GroupTask
from environments.record.recorder import Recorder
from environments.record.summary import print_summary
from environments.run.pool import run_groups
from environments.run.progress import Progress
from environments.run.streak import FailedInARowError, Streak
from environments.trajectory import CreditedGroup

FAILED = 1
"""Exit code of a run in which every group failed, or too many one after another."""


async def process(
    tasks: Sequence[GroupTask],
    run_group: Callable[[GroupTask], Awaitable[CreditedGroup]],
    recorder: Recorder,
    progress: Progress,
    *,
    max_in_flight: int,
    max_failed: int,
) -> int:
    """Roll out the tasks that the record does not hold yet; a group is on disk before it counts as done.

    Returns:
        0; 130 or 143 when a signal ended the run; `FAILED` when every group failed, or `max_failed` of them
        in a row.
    """

    async def record(task: GroupTask, credited: CreditedGroup) -> None:
        await asyncio.to_thread(recorder.append, credited)
        progress.group_done(credited)
        if not recorder.failed_before(task.item_id, task.epoch):
            streak.add(credited.group)

    streak = Streak(max_failed)
    left = [task for task in tasks if not recorder.holds(task.item_id, task.epoch)]
    # Last, and no sign that everything fails, is what an earlier run could not do.
    left.sort(key=lambda task: recorder.failed_before(task.item_id, task.epoch))
    try:
        with progress:
            code = await run_groups(left, run_group, record, max_in_flight=max_in_flight)
    except FailedInARowError as error:
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
    elif progress.summary.groups["failed"]:
        console.print("run the same command again to try the failed groups once more")
