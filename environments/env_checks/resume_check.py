"""Whether a run that was interrupted and resumed has the same record as one in one go."""

import io
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.finding import Answer
from environments.hooks import writes
from environments.record.recorder import read_groups
from environments.run.process_run import process
from environments.trajectory import CreditedGroup, Trajectory

_GROUPS, _BEFORE = 3, 1
_SIBLINGS = 2


async def check_resume(checked: CheckedEnv) -> Answer:
    """The same seed gives the same groups, whatever was rolled out before them in the same process."""
    if writes(checked.env, "next_items"):
        return "skipped", "next_items decides by what ended first, which is not the same in two runs"
    with tempfile.TemporaryDirectory(prefix="turnwise-resume-") as folder:
        whole, parts = Path(folder, "whole.jsonl"), Path(folder, "parts.jsonl")
        groups = min(_GROUPS, checked.items)
        for path, total in ((whole, groups), (parts, min(_BEFORE, groups)), (parts, groups)):
            output = io.StringIO()
            code = await process(_made(checked, path, total), Console(file=output, width=200))
            if code not in (0, 1) or not path.exists():
                return "fail", f"process ended with {code}: {output.getvalue()[-300:]}"
        one, two = (sorted(read_groups(path), key=_key) for path in (whole, parts))
    if [_key(each) for each in one] != [_key(each) for each in two]:
        return "fail", f"{len(one)} groups in one go, {len(two)} when the run was resumed"
    for first, second in zip(one, two, strict=True):
        difference = _difference(first, second)
        if difference is not None:
            return "fail", (
                f"item {first.group.item_id}, {difference} when the run was interrupted and resumed: what is "
                f"random, take from ctx.seed and ctx.group_seed"
            )
    return "ok", f"{len(one)} groups, interrupted after {min(_BEFORE, groups)} and resumed, as in one go"


def _made(checked: CheckedEnv, path: Path, total: int) -> Any:
    return checked.made(
        total_steps=total, group_size=_SIBLINGS, data_path_to_save_groups=str(path), scripted_skill=0.5
    )


def _key(credited: CreditedGroup) -> tuple[str, int]:
    return credited.group.item_id, credited.group.epoch


def _difference(first: CreditedGroup, second: CreditedGroup) -> str | None:
    one = {each.sibling: each for each in first.group.trajectories}
    two = {each.sibling: each for each in second.group.trajectories}
    if one.keys() != two.keys():
        return "other rollouts broke"
    for sibling, trajectory in one.items():
        what = _first_difference(trajectory, two[sibling])
        if what is not None:
            return f"rollout {sibling}: {what}"
    return "advantages differ" if first.advantages != second.advantages else None


def _first_difference(one: Trajectory, two: Trajectory) -> str | None:
    if one.prompt != two.prompt:
        return "the prompt differs"
    for first, second in zip(one.turns, two.turns, strict=False):
        for what, before, after in (
            ("what the agent says", first.message, second.message),
            ("the result of a tool", _contents(first.tool_results), _contents(second.tool_results)),
            ("the reply", first.replies, second.replies),
        ):
            if before != after:
                return f"turn {first.index + 1}: {what} differs"
    if len(one.turns) != len(two.turns) or one.end_reason != two.end_reason:
        return "the end differs"
    if one.rewards != two.rewards:
        return "rewards differ"
    return "token rows differ" if one.rows != two.rows else None


def _contents(results: Any) -> list[str]:
    return [each.content for each in results]
