"""Arms and seeds side by side in worker processes: what comes out does not depend on their number."""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from environments.lab.learning.run_arm import Arm, LearnedArm, LearnedStep, LearningSetup, run_arm
from environments.record.run_folder import RunFolder
from tools.errors import RunError

LENGTH_BYTES = 4
"""Of the length before each answer."""
_END_S = 5.0
"""For a worker process to end its record when it is interrupted."""
_WORKER = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
import sys
sys.path[:] = {path!r}
from environments.lab.learning.arm_worker import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmJob:
    """One arm with one seed, and the folder of its run."""

    arm: Arm
    seed: int
    folder: RunFolder


OnStep = Callable[[ArmJob, LearnedStep], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmWork:
    """What all jobs have in common."""

    setup: LearningSetup
    prepare: Callable[[], object] | None = None
    """Done in each worker process before it reads `setup`: it loads the user's code that is named there."""


async def learned(
    work: ArmWork,
    jobs: Sequence[ArmJob],
    *,
    workers: int,
    on_step: OnStep,
    on_end: Callable[[LearnedArm], None],
) -> list[LearnedArm]:
    """What comes out of each job, in their order.

    Args:
        work: what they have in common; with several workers it is pickled.
        jobs: each of which has a folder of its own.
        workers: processes; 1: this one alone.
        on_step: told each step of each job.
        on_end: told each job that ended.

    Raises:
        RunError: every group of a step failed, or a worker process ended.
        UsageError: the environment cannot be opened, or a record not written.
    """
    ended: dict[int, LearnedArm] = {}
    waiting = iter(enumerate(jobs))

    async def work_off(run: Callable[[ArmJob], Any]) -> None:
        for index, job in waiting:
            ended[index] = await run(job)
            on_end(ended[index])

    async def in_worker() -> None:
        async with _Worker(work, on_step) as worker:
            await work_off(worker.run)

    if workers == 1 or len(jobs) == 1:
        await work_off(lambda job: run_arm(work.setup, job.arm, job.seed, job.folder, partial(on_step, job)))
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(workers, len(jobs))):
                group.create_task(in_worker())
    return [ended[index] for index in range(len(jobs))]


def cores() -> int:
    """Those that this process may use, as far as the system says it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """A process of its own, which ends with this one, however it ends."""

    def __init__(self, work: ArmWork, on_step: OnStep) -> None:
        self._work, self._on_step = work, on_step
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> "_Worker":
        # Not a fork, which takes over threads and locks. In a process group of its own, ^C reaches this
        # process alone, which has the workers end their records.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _WORKER.format(path=sys.path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        self._send(self._work.prepare)
        self._send(pickle.dumps(self._work.setup))
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), _END_S)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def run(self, job: ArmJob) -> LearnedArm:
        """Have a job done."""
        self._send(job)
        while True:
            answer = await self._answer()
            if isinstance(answer, LearnedArm):
                return answer
            if isinstance(answer, BaseException):
                raise answer
            self._on_step(job, answer)

    async def _answer(self) -> Any:
        assert self._process.stdout is not None
        try:
            length = await self._process.stdout.readexactly(LENGTH_BYTES)
            content = await self._process.stdout.readexactly(int.from_bytes(length))
        except asyncio.IncompleteReadError:
            raise RunError(f"a worker process was ended with {await self._process.wait()}") from None
        return pickle.loads(content)  # of a process that we started

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(message))  # small; a worker that ended says so in `_answer`
