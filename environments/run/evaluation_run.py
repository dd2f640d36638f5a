"""`evaluate`: every evaluation item several times, then statistics, `metrics.json` and `samples.jsonl`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any

import jsonlines
from rich.console import Console

from environments.base_env import AgentEnv
from environments.data.tasks import GroupTask, plan
from environments.record.aggregates import aggregates, flat
from environments.record.private_file import private
from environments.record.summary import print_rows, print_side_notes
from environments.run.evaluation import (
    Evaluation,
    ItemResult,
    evaluate_results,
    evaluation_metrics,
    item_result,
    print_evaluation,
    sample_row,
)
from environments.run.first_alone import first_alone
from environments.run.passing import judged
from environments.run.process_run import FAILED
from environments.run.progress import Progress
from environments.run.stopped import StoppedError
from environments.run.streak import Streak
from environments.run.watchdog import watchdog_of
from environments.run.worker_pool import groups_at_once, run_groups
from environments.trajectory import TrajectoryGroup
from tools.errors import RunError


async def evaluate(env: AgentEnv, console: Console) -> int:
    """Open an environment for evaluation and roll out every item `eval_rollouts` times.

    Returns:
        The exit code: 0 when every item was tried, 130 or 143 after a signal, `FAILED` when no rollout was
        left to count or something kept failing.

    Raises:
        UsageError: the environment cannot be opened.
    """
    started = time()
    progress = Progress(console)
    results: dict[str, ItemResult] = {}
    samples: list[dict[str, Any]] = []
    with watchdog_of(env, progress) as watchdog:
        async with env.opened(evaluation=True, notify=progress.say):
            tasks = plan(env.items, env.item_ids, -1)
            progress.start(total=len(tasks), done_before=0)
            progress.ready()
            try:
                with watchdog.armed(), progress:
                    code = await _evaluate_tasks(env, tasks, progress, results, samples)
            except (StoppedError, RunError) as error:
                progress.say(f"stopped: {error}")
                progress.say(f"{len(results)} of {len(tasks)} items were tried, which is no evaluation")
                return FAILED
    evaluation = evaluate_results(
        list(results.values()), max_k=env.config.eval_rollouts, seed=env.config.seed, planned=len(tasks)
    )
    if evaluation is None:
        print_side_notes(console, progress.summary)
        console.print(f"no rollout was left to evaluate; {len(results)} of {len(tasks)} items were tried")
        return code or FAILED
    print_evaluation(console, evaluation)
    print_rows(console, progress.summary.measured.rows())
    print_side_notes(console, progress.summary)
    if env.config.data_dir_to_save_evals is not None:
        folder = Path(env.config.data_dir_to_save_evals)
        metrics = evaluation_metrics(evaluation) | flat(aggregates(progress.summary), "eval")
        write_evaluation(folder, env, evaluation, metrics, samples, seconds=time() - started)
    return code or (0 if evaluation.complete else FAILED)


async def _evaluate_tasks(
    env: AgentEnv,
    tasks: Sequence[GroupTask],
    progress: Progress,
    results: dict[str, ItemResult],
    samples: list[dict[str, Any]],
) -> int:
    """Roll out and judge; `results` and `samples` grow as items end. The exit code of a signal, or 0."""
    rollouts = env.config.eval_rollouts
    streak = Streak(env.config.max_failed_groups)

    async def roll_out(task: GroupTask) -> tuple[TrajectoryGroup, tuple[bool, ...]]:
        group = await env.rollout_group(task, rollouts, watch=progress.rollout)
        return await judged(env, task, group, progress.rollout)

    async def take(task: GroupTask, result: tuple[TrajectoryGroup, tuple[bool, ...]]) -> None:
        group, passed = result
        results[task.item_id] = item_result(group, passed)
        samples.extend(map(sample_row, group.trajectories, passed))
        progress.rolled_out(group)
        streak.add(group)

    async def begin(left: Iterator[GroupTask]) -> list[GroupTask]:
        return await first_alone(
            left, lambda task: env.rollout_group(task, 1, watch=progress.rollout), progress.say
        )

    return await run_groups(
        tasks,
        roll_out,
        take,
        max_in_flight=groups_at_once(env.config.max_concurrent_rollouts, rollouts),
        begin=begin,
    )


def write_evaluation(
    folder: Path,
    env: AgentEnv,
    evaluation: Evaluation,
    metrics: Mapping[str, float],
    samples: list[dict[str, Any]],
    *,
    seconds: float,
) -> None:
    """Write `metrics.json`, as Atropos' `evaluate_log` shapes it, and `samples.jsonl`, one rollout a line."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {
        **evaluation.completeness(),
        "config_general": {
            "model_name": env.policy_name,
            "total_evaluation_time_seconds": str(seconds),
            "generation_parameters": {"max_new_tokens": env.config.max_token_length},
        },
        "results": {f"atropos|{env.name}_eval|0": dict(metrics), "all": dict(metrics)},
    }
    (folder / "metrics.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    # `Path.open` takes no opener.
    with (
        open(folder / "samples.jsonl", "w", encoding="utf-8", opener=private) as file,
        jsonlines.Writer(file) as lines,
    ):
        lines.write_all({**sample, "evaluation": evaluation.completeness()} for sample in samples)
