"""What the record of an evaluation comes to: its statistics, `metrics.json` and `samples.jsonl`."""

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from environments.base_env import AgentEnv
from environments.record.private_file import private, write_private
from environments.record.recorder import Recorder
from environments.record.run_folder import RunFolder
from environments.record.summary import flat
from environments.record.totals import Summary
from environments.run.evaluation import (
    Evaluation,
    evaluate_results,
    evaluation_metrics,
    item_result,
    sample_row,
)
from environments.run.run_summary import counted_groups
from environments.run.tracking import ShownGroups
from environments.trajectory import TrajectoryGroup
from tools.errors import RecordError

METRICS = "metrics.json"
SAMPLES = "samples.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What was recorded of the items of an evaluation."""

    evaluation: Evaluation | None
    """`None`: no rollout is left to count."""
    summary: Summary
    shown: ShownGroups
    tried: int


def evaluated(env: AgentEnv, recorder: Recorder) -> Evaluated:
    """The statistics of all items that the record has, those of earlier starts included.

    Raises:
        RecordError: it cannot be read.
    """
    summary, shown, results = Summary(), ShownGroups(), list[Any]()
    for group, credited in _groups(recorder, set(env.item_ids)):
        summary.add(credited)
        shown.add(credited)
        results.append(item_result(group))
    config = env.config
    evaluation = evaluate_results(
        results, max_k=config.eval_rollouts, seed=config.seed, planned=len(env.item_ids)
    )
    return Evaluated(evaluation=evaluation, summary=summary, shown=shown, tried=len(results))


def final_metrics(of: Evaluated) -> dict[str, float]:
    """Its numbers by name, for `metrics.json` and charts."""
    statistics = {} if of.evaluation is None else evaluation_metrics(of.evaluation)
    return statistics | flat(of.summary.values(), "eval")


def write_evaluation(
    folder: RunFolder, env: AgentEnv, recorder: Recorder, of: Evaluated, *, seconds: float
) -> None:
    """Write `metrics.json`, as Atropos' `evaluate_log` shapes it, and `samples.jsonl`, one rollout a line.

    Raises:
        RecordError: one of them cannot be written.
    """
    assert of.evaluation is not None
    completeness = of.evaluation.completeness()
    metrics = final_metrics(of)
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
    unfinished, samples = folder.path / f".{SAMPLES}.part", folder.path / SAMPLES
    try:
        with open(unfinished, "wb", opener=private) as file:  # `Path.open` takes no opener
            for group, _ in _groups(recorder, set(env.item_ids)):
                for trajectory in group.trajectories:
                    row = {**sample_row(trajectory), "evaluation": completeness}
                    file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        unfinished.replace(samples)
    except OSError as error:
        raise RecordError(f"cannot write {samples}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def refuse_other_files(folder: RunFolder) -> None:
    """Raise RecordError where an evaluation without a record would be written over."""
    there = [name for name in (METRICS, SAMPLES) if (folder.path / name).exists()]
    if there and not folder.record.exists():
        raise RecordError(
            f"{folder.path} has {' and '.join(there)} of an evaluation without a record, which cannot be "
            f"continued and is not written over; choose another folder (--name, --out)"
        )


def _groups(recorder: Recorder, ids: Collection[str]) -> Iterator[tuple[TrajectoryGroup, Any]]:
    """Of the items of this evaluation: an earlier start may have had more of them (`--env.max_items`)."""
    for credited in counted_groups(recorder.path, recorder.finished):
        if credited.group.item_id in ids:
            yield credited.group, credited
