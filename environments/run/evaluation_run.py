"""`evaluate`: every evaluation item several times, into a record of its own, then statistics."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.containment.user_code import InFlight, Watch
from environments.credit import recorded_params
from environments.data.tasks import GroupTask, plan
from environments.record.run_folder import RunFolder, run_folder
from environments.record.summary import measured_rows, print_rows, print_side_notes
from environments.rollout.boundary import failure_of
from environments.run.evaluation import (
    Evaluated,
    evaluated,
    print_evaluation,
    refuse_other_files,
    write_evaluation,
)
from environments.run.experiment import origin_of
from environments.run.group_source import FinishedGroups, OwnGroups
from environments.run.open_run import DEFAULT_NAME, OpenRun, opened_run
from environments.run.process_run import FAILED, Driver, PlannedTasks
from environments.run.progress import Progress
from environments.run.run_files import Sources
from environments.run.run_log import RunLog
from environments.run.tracking import tracking_backends
from environments.run.watchdog import Watchdog, watchdog_of
from environments.run.worker_pool import groups_at_once
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup
from tools.errors import RewardError

PREFIX = "eval-"
"""Of the folders' names: an evaluation and a run of training may have the same name."""


def evaluation_folder(config: AgentEnvConfig, env: str) -> RunFolder:
    """Where an evaluation is written: the folder that its settings name, or one below `runs/`."""
    if config.data_dir_to_save_evals is not None:
        return RunFolder(Path(config.data_dir_to_save_evals).absolute())
    name = config.run_name or DEFAULT_NAME
    return run_folder(env, name if name.startswith(PREFIX) else PREFIX + name)


async def evaluate(env: AgentEnv, console: Console, *, sources: Sources | None = None) -> int:
    """Open an environment for evaluation and roll out each item `eval_rollouts` times, unless recorded.

    Args:
        env: the environment.
        console: where to show how it goes.
        sources: where the settings came from; `None`: from a program.

    Returns:
        The exit code: 0 when every item was tried, 130 or 143 after a signal, `FAILED` when no rollout was
        left to count or something kept failing.

    Raises:
        UsageError: the environment cannot be opened, or the folder is another evaluation's.
    """
    folder, log = evaluation_folder(env.config, env.name), RunLog()
    refuse_other_files(folder)
    progress = Progress(console, log=log)
    with watchdog_of(env, progress) as watchdog:
        async with env.opened(evaluation=True, notify=progress.say):
            origin = origin_of(env, evaluation=True)
            opened = opened_run(env, origin, folder, sources=sources, log=log, say=progress.say)
            # First what can still refuse: `--fresh` puts the former evaluation aside.
            with tracking_backends(env) as backends, opened as run:
                of, code = await _evaluate_opened(env, folder, progress, run, watchdog)
                if of is not None:
                    for backend in backends:
                        await asyncio.to_thread(
                            backend.log, of.metrics(), of.shown.histograms, of.shown.samples
                        )
                return code


class OwnEvaluations(OwnGroups):
    """The same for an evaluation: with the verdict on each rollout, and without credit."""

    async def run(self, task: GroupTask) -> CreditedGroup:
        """Return a group whose rollouts the environment has judged."""
        env = self._env
        group = await env.rollout_group(task, env.config.eval_rollouts, watch=self._watch)
        return uncredited(env, await judged(env, task, group, self._watch))


async def judged(env: AgentEnv, task: GroupTask, group: TrajectoryGroup, watch: Watch) -> TrajectoryGroup:
    """A group with the verdict on each rollout; those without one are failures."""
    kept: list[Trajectory] = []
    failures = list(group.failures)
    for trajectory in group.trajectories:
        verdict = await _verdict(env, task, trajectory, watch)
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            kept.append(replace(trajectory, passed=verdict))
    failures.sort(key=lambda failure: failure.sibling)
    return replace(group, trajectories=tuple(kept), failures=tuple(failures), is_evaluation=True)


def uncredited(env: AgentEnv, group: TrajectoryGroup) -> CreditedGroup:
    """A group as the record of an evaluation has it; one of which no rollout is left is to be tried again."""
    params = recorded_params(env.estimator, preset=env.config.estimator_preset, params=env.estimator_params)
    return CreditedGroup(
        group=group,
        advantages=tuple((0.0,) * len(trajectory.turns) for trajectory in group.trajectories),
        policy=env.policy_name,
        estimator=env.estimator,
        estimator_params=params,
        status="no_credit" if group.trajectories else "failed",
        reason="an evaluation" if group.trajectories else "no rollout is left",
    )


async def _evaluate_opened(
    env: AgentEnv, folder: RunFolder, progress: Progress, run: OpenRun, watchdog: Watchdog
) -> tuple[Evaluated | None, int]:
    """Its numbers, where there are any, and the exit code."""
    started, recorder = monotonic(), run.recorder
    tasks = PlannedTasks(plan(env.items, env.item_ids, -1), recorder)
    source = OwnEvaluations(env, progress.rollout)
    driver = Driver(
        source=FinishedGroups(source, fingerprint=recorder.fingerprint),
        run=run,
        progress=progress,
        watchdog=watchdog,
        at_once=groups_at_once(env.config.max_concurrent_rollouts, env.config.eval_rollouts),
        max_failed=env.config.max_failed_groups,
    )
    code = await driver.roll_out(tasks)
    is_stopped = code == FAILED
    of = await asyncio.to_thread(evaluated, env, recorder)
    if is_stopped:
        progress.say(f"{of.tried} of {tasks.total} items were tried, which is no evaluation")
    elif of.evaluation is None:
        code = code or FAILED
    else:
        code = code or (0 if of.evaluation.complete else FAILED)
        seconds = monotonic() - started
        await asyncio.to_thread(write_evaluation, folder, env, recorder, of, seconds=seconds)
    more = {} if of.evaluation is None else of.evaluation.in_short()
    await run.end(progress.summary, done=tasks.held(), planned=tasks.total, code=code, **more)
    if is_stopped:
        return None, code
    progress.print(partial(_print_end, of=of, planned=tasks.total))
    return of, code


def _print_end(console: Console, *, of: Evaluated, planned: int) -> None:
    if of.evaluation is None:
        print_side_notes(console, of.summary)
        console.print(f"no rollout was left to evaluate; {of.tried} of {planned} items were tried")
        return
    print_evaluation(console, of.evaluation)
    print_rows(console, measured_rows(of.summary.values()))
    print_side_notes(console, of.summary)
    if not of.evaluation.complete or of.evaluation.lost_items:
        console.print("the same command goes on from here, and tries lost items once more", soft_wrap=True)


async def _verdict(env: AgentEnv, task: GroupTask, trajectory: Trajectory, watch: Watch) -> bool | Failure:
    in_flight = InFlight(item_id=task.item_id, sibling=trajectory.sibling)
    try:
        with watch(in_flight), env.hook_calls(in_flight) as calls:
            given = await calls.hook("passed", env.passed, task.for_rollout().item, trajectory)
        if not isinstance(given, (bool, np.bool_)):
            raise RewardError(f"passed gave {given!r:.100}; give True or False")
        return bool(given)  # pyright: ignore[reportUnknownArgumentType]  # numpy's own type is generic
    except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a verdict
        return failure_of(error, sibling=trajectory.sibling, turns=len(trajectory.turns))
