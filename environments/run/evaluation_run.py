"""`evaluate`: roll out every evaluation item several times into a record, then compute statistics."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.record.private_file import private, write_private, write_whole
from environments.record.recorder import Recorder
from environments.record.run_folder import RunFolder, run_folder
from environments.record.summary import flat, loop_rows, metric_rows, print_rows, print_side_notes
from environments.record.totals import Summary
from environments.rollout.items.tasks import plan
from environments.run.evaluation import (
    Evaluation,
    ItemTotals,
    evaluate_results,
    item_totals,
    print_evaluation,
    sample_row,
)
from environments.run.group_source import ShownGroups
from environments.run.open_run import (
    DEFAULT_NAME,
    DEFAULTS,
    OpenSource,
    RunOptions,
    in_this_process,
    open_run,
)
from environments.run.process_run import FAILED, PlannedTasks, roll_out
from environments.run.run_list import unique_groups
from environments.trajectory import CreditedGroup
from tools.errors import RecordError

METRICS = "metrics.json"
SAMPLES = "samples.jsonl"
PREFIX = "eval-"
"""Prefix of folders: an evaluation and a run of training may have the same name."""


def evaluation_folder(config: AgentEnvConfig, env: str, name: str | None) -> RunFolder:
    if config.data_dir_to_save_evals is not None:
        return RunFolder(Path(config.data_dir_to_save_evals).absolute())
    name = name or DEFAULT_NAME
    return run_folder(env, name if name.startswith(PREFIX) else PREFIX + name)


async def evaluate(
    env: AgentEnv,
    console: Console,
    *,
    options: RunOptions = DEFAULTS,
    open_source: OpenSource = in_this_process,
) -> int:
    """Open an environment for evaluation and roll out each item `eval_rollouts` times, unless recorded.

    Returns the exit code: 0 if every item was tried, 128 plus the signal, or `FAILED`.
    """
    folder = evaluation_folder(env.config, env.name, options.name)
    there = [name for name in (METRICS, SAMPLES) if (folder.path / name).exists()]
    if there and not folder.record.exists():
        raise RecordError(
            f"{folder.path} has {' and '.join(there)} of an evaluation without a record, which cannot be "
            f"continued and is not written over; choose another folder (--name, --out)"
        )
    async with open_run(env, console, folder, options, open_source, evaluation=True) as run:
        assert run.record is not None
        progress, recorder, started = run.progress, run.record.recorder, monotonic()
        tasks = PlannedTasks(plan(env.items, env.item_ids, -1), recorder)
        code = await roll_out(run, tasks)
        is_stopped = code == FAILED
        totals = await asyncio.to_thread(_read_totals, env, recorder)
        evaluation, more = totals.evaluation, dict[str, Any]()
        if evaluation is not None:
            more["evaluation"] = evaluation.completeness()
            more |= {"pass@1": evaluation.pass_at[0].mean, "score": evaluation.score.mean}
        if is_stopped:
            progress.say(f"{totals.tried} of {tasks.total} items were tried, which is not an evaluation")
        elif evaluation is None:
            code = code or FAILED
        else:
            code = code or (0 if evaluation.complete else FAILED)
            seconds = monotonic() - started
            await asyncio.to_thread(_write_files, folder, env, recorder, totals, seconds=seconds)
        done = tasks.count_recorded()
        await run.record.end(progress.summary, done=done, planned=tasks.total, code=code, **more)
        if not is_stopped:
            loop = run.watchdog.utilisation if progress.summary.done else None
            progress.print(partial(_print_end, totals=totals, planned=tasks.total, loop=loop))
            if closing := tasks.closing("items were lost"):
                progress.say(closing)
            run.tracker.put(totals.metrics(), totals.shown)
        return code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    evaluation: Evaluation | None
    summary: Summary
    shown: ShownGroups
    tried: int

    def metrics(self) -> dict[str, float]:
        statistics = {} if self.evaluation is None else self.evaluation.metrics()
        return statistics | flat(self.summary.values(), "eval")


def _read_totals(env: AgentEnv, recorder: Recorder) -> _Totals:
    summary, shown, results = Summary(), ShownGroups(), list[ItemTotals]()
    for credited in _groups(env, recorder):
        summary.add(credited)
        shown.add(credited)
        results.append(item_totals(credited.group))
    config = env.config
    evaluation = evaluate_results(
        results, max_k=config.eval_rollouts, seed=config.seed, planned=len(env.item_ids)
    )
    return _Totals(evaluation=evaluation, summary=summary, shown=shown, tried=len(results))


def _write_files(
    folder: RunFolder, env: AgentEnv, recorder: Recorder, totals: _Totals, *, seconds: float
) -> None:
    """Write `metrics.json`, shaped as by Atropos' `evaluate_log`, and `samples.jsonl`, a rollout a line."""
    assert totals.evaluation is not None
    completeness, metrics = totals.evaluation.completeness(), totals.metrics()
    results = {
        **completeness,
        "config_general": {
            "model_name": env.policy_name,
            "total_evaluation_time_seconds": str(seconds),
            "generation_parameters": {"max_new_tokens": env.config.max_token_length},
        },
        "results": {f"atropos|{env.name}_eval|0": metrics, "all": metrics},
    }
    write_private(folder.path / METRICS, json.dumps(results, indent=2, allow_nan=False).encode())
    with (
        write_whole(folder.path / SAMPLES) as unfinished,
        open(unfinished, "wb", opener=private) as file,  # `Path.open` has no opener
    ):
        for credited in _groups(env, recorder):
            for trajectory in credited.group.trajectories:
                row = {**sample_row(trajectory), "evaluation": completeness}
                file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _groups(env: AgentEnv, recorder: Recorder) -> Iterator[CreditedGroup]:
    """Yield this evaluation's groups: an earlier start may have had more items (`--env.max_items`)."""
    ids = set(env.item_ids)
    groups = unique_groups(recorder.path, recorder.finished)
    return (credited for credited in groups if credited.group.item_id in ids)


def _print_end(console: Console, *, totals: _Totals, planned: int, loop: float | None) -> None:
    evaluation = totals.evaluation
    if evaluation is not None:
        print_evaluation(console, evaluation)
        print_rows(console, [*metric_rows(totals.summary.values()), *loop_rows(loop)])
    print_side_notes(console, totals.summary)
    if evaluation is None:
        console.print(f"no rollout was left to evaluate; {totals.tried} of {planned} items were tried")
    elif not evaluation.complete:
        console.print("the same command goes on from here", soft_wrap=True)
