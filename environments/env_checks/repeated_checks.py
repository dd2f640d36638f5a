"""The same actions again, the same run again, what is left behind, and a few rollouts by a real model."""

import asyncio
import io
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import monotonic

from rich.console import Console

from environments.config import ServerConfig
from environments.env_checks.checked_env import SIBLINGS, CheckedEnv, RepeatedPolicy, TracedCall
from environments.env_checks.report import Answer
from environments.hooks import writes
from environments.inference.http_client import one_line
from environments.record.recorder import read_groups
from environments.run.process_run import process
from environments.trajectory import CreditedGroup, Trajectory, TrajectoryGroup
from tools.errors import IsolationError
from tools.sandbox.inventory import list_sandboxes

_REWARD_HOOKS = ("score_turn", "compute_turn_rewards", "compute_outcome", "compute_reward", "score_group")
_GROUPS, _BEFORE = 3, 1
_SIBLINGS = 2
"""Of the run that is resumed."""
_SHOWN = 3
_OURS = ("turnwise-pool", "turnwise-watchdog", "turnwise-docker", "turnwise-sandbox", "asyncio_")
"""How names of threads begin that are not an environment's."""
_CACHES = ("__pycache__", ".pytest_cache")
_WAIT_S = 2.0
"""For what is just ending."""
_MODEL_ITEMS = 2


async def check_determinism(checked: CheckedEnv) -> Answer:
    """What the same actions earn does not depend on chance: `ctx.seed` is there for what should."""
    task = checked.tasks[0]
    policy = checked.policy
    policy.skill = 0.5
    with checked.trace.recorded() as calls_before:
        first = await checked.env.run_group(task)
    said = {each.seed: [turn.message for turn in each.turns] for each in first.group.trajectories}
    if not said:
        return "skipped", "no rollout came to an end"
    policy.repeated = RepeatedPolicy(said, checked.env.renderer)
    with checked.trace.recorded() as calls_after:
        second = await checked.env.run_group(task)
    policy.repeated = None
    again = {each.sibling: each for each in second.group.trajectories}
    for each in first.group.trajectories:
        if each.sibling not in again:
            return "fail", f"item {task.item_id}, rollout {each.sibling} broke when it was repeated"
        difference = _reward_difference(each, again[each.sibling])
        if difference is not None:
            hook = _other_call(calls_before, calls_after, _REWARD_HOOKS)
            cause = f"; {hook} gives another value" if hook else ""
            earlier = _other_call(calls_before, calls_after, ())
            if earlier is not None and earlier != hook:
                cause += f", and before it {earlier}"
            return "fail", f"item {task.item_id}, rollout {each.sibling}, {difference}{cause}"
    other = _other_call(calls_before, calls_after, ())
    note = f"; {other} is not the same twice, which no reward shows" if other else ""
    return "ok", f"{len(again)} rollouts repeated, rewards and parts equal{note}"


def _reward_difference(first: Trajectory, second: Trajectory) -> str | None:
    """What differs between the rewards of equal actions."""
    one, two = first.rewards, second.rewards
    if one == two or one is None or two is None:
        return None
    for index, (before, after) in enumerate(zip(one.turns or (), two.turns or (), strict=False)):
        if before != after:
            parts = _parts(one.turn_components, two.turn_components, index)
            return f"turn {index + 1}: {_shown(before)}, then {_shown(after)}{parts}"
    if one.outcome != two.outcome:
        parts = _parts([one.outcome_parts], [two.outcome_parts], 0)
        return f"the outcome: {_shown(one.outcome)}, then {_shown(two.outcome)}{parts}"
    return f"the rewards: score {_shown(one.score)}, then {_shown(two.score)}"


def _parts(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]], index: int) -> str:
    if index >= len(before) or index >= len(after):
        return ""
    names = [
        name for name, value in before[index].items() if after[index].get(name) != value and name != "outcome"
    ]
    return f" (part {', '.join(names)})" if names else ""


def _other_call(
    before: Sequence[TracedCall], after: Sequence[TracedCall], names: Sequence[str]
) -> str | None:
    """The first call of a rollout that gave something else; `names`: among those."""
    for sibling in sorted({call.sibling for call in before}):
        one, two = _of(before, sibling, names), _of(after, sibling, names)
        for first, second in zip(one, two, strict=False):
            if first.name != second.name or first.given != second.given:
                return first.name
    return None


def _of(calls: Sequence[TracedCall], sibling: int, names: Sequence[str]) -> list[TracedCall]:
    """Of one rollout; what its agent said is repeated, and not compared."""
    scripted = "scripted_choices", "scripted_summary"
    return [
        call
        for call in calls
        if call.sibling == sibling and (call.name in names if names else call.name not in scripted)
    ]


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


async def check_resume(checked: CheckedEnv) -> Answer:
    """The same seed gives the same groups, whatever was rolled out before them in the same process."""
    if writes(checked.env, "next_items"):
        return "skipped", "next_items decides by what ended first, which is not the same in two runs"
    with tempfile.TemporaryDirectory(prefix="turnwise-resume-") as folder:
        whole, parts = Path(folder, "whole.jsonl"), Path(folder, "parts.jsonl")
        groups = min(_GROUPS, checked.items)
        for path, total in ((whole, groups), (parts, min(_BEFORE, groups)), (parts, groups)):
            output = io.StringIO()
            env = checked.made(
                total_steps=total,
                group_size=_SIBLINGS,
                data_path_to_save_groups=str(path),
                scripted_skill=0.5,
            )
            code = await process(env, Console(file=output, width=200))
            if code not in (0, 1) or not path.exists():
                return "fail", f"process ended with {code}: {output.getvalue()[-300:]}"
        one, two = (
            {(each.group.item_id, each.group.epoch): each for each in read_groups(path)}
            for path in (whole, parts)
        )
    if one.keys() != two.keys():
        return "fail", f"{len(one)} groups in one go, {len(two)} when the run was resumed"
    for (item_id, _), first in sorted(one.items()):
        difference = _group_difference(first, two[item_id, first.group.epoch])
        if difference is not None:
            return "fail", (
                f"item {item_id}, {difference} when the run was interrupted and resumed: what is "
                f"random, take from ctx.seed and ctx.group_seed"
            )
    return "ok", f"{len(one)} groups, interrupted after {min(_BEFORE, groups)} and resumed, as in one go"


def _group_difference(first: CreditedGroup, second: CreditedGroup) -> str | None:
    one = {each.sibling: each for each in first.group.trajectories}
    two = {each.sibling: each for each in second.group.trajectories}
    if one.keys() != two.keys():
        return "other rollouts broke"
    for sibling, trajectory in one.items():
        what = _rollout_difference(trajectory, two[sibling])
        if what is not None:
            return f"rollout {sibling}: {what}"
    return "advantages differ" if first.advantages != second.advantages else None


def _rollout_difference(one: Trajectory, two: Trajectory) -> str | None:
    if one.prompt != two.prompt:
        return "the prompt differs"
    for first, second in zip(one.turns, two.turns, strict=False):
        answers = [[result.content for result in turn.tool_results] for turn in (first, second)]
        for what, before, after in (
            ("what the agent says", first.message, second.message),
            ("the result of a tool", *answers),
            ("the reply", first.replies, second.replies),
        ):
            if before != after:
                return f"turn {first.index + 1}: {what} differs"
    if len(one.turns) != len(two.turns) or one.end_reason != two.end_reason:
        return "the end differs"
    if one.rewards != two.rewards:
        return "rewards differ"
    return "token rows differ" if one.rows != two.rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What this process has at one time, and what is in the folders that rollouts may write into."""

    processes: frozenset[str]
    threads: frozenset[str]
    temporary: frozenset[str]
    here: frozenset[str]


def belongings() -> Belongings:
    """Those of now."""
    return Belongings(
        processes=frozenset(_processes()),
        threads=frozenset(
            f"{each.name} ({each.ident})" for each in threading.enumerate() if not each.name.startswith(_OURS)
        ),
        temporary=_files(tempfile.gettempdir()),
        here=_files(os.getcwd()),  # noqa: PTH109  # as text
    )


async def left_behind(before: Belongings, backend: str) -> Answer:
    """What is there of a closed environment that was not there when its rollouts began.

    Args:
        before: with the environment open, so that what is shared by all rollouts is not counted.
        backend: of its sandboxes.
    """
    ends = monotonic() + _WAIT_S
    while (left := await _left(before, backend)) and monotonic() < ends:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(_WAIT_S / 10)
    if left:
        what = "; ".join(f"{len(names)} {what} ({_some(names)})" for what, names in left.items())
        return "fail", f"left: {what}; what `prepare` opens, close after its `yield`"
    if made := _files(os.getcwd()) - before.here:  # noqa: PTH109  # as text
        return "warn", f"new in the current folder: {_some(made)}"
    return "ok", "no process, thread, sandbox or temporary file is left"


async def _left(before: Belongings, backend: str) -> dict[str, frozenset[str]]:
    now = belongings()
    try:
        sandboxes = [each.name for each in await list_sandboxes(backend) if each.owner == os.getpid()]
    except IsolationError:
        sandboxes = []
    left = {
        "sandboxes": frozenset(sandboxes),
        "processes": now.processes - before.processes,
        "threads": now.threads - before.threads,
        "temporary files": now.temporary - before.temporary,
    }
    return {what: names for what, names in left.items() if names}


def _some(names: frozenset[str]) -> str:
    shown = ", ".join(one_line(each) for each in sorted(names)[:_SHOWN])
    return f"{shown}{', …' if len(names) > _SHOWN else ''}"


def _processes() -> Iterator[str]:
    """Those whose parent is this one, where the system says so."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            number, _, rest = status.read_text().partition(" (")
            name, _, fields = rest.rpartition(") ")
            if fields.split()[1] == str(os.getpid()):
                yield f"{name} {number}"


def _files(folder: str) -> frozenset[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return frozenset(each.name for each in entries if each.name not in _CACHES)
    return frozenset()


async def check_model(checked: CheckedEnv) -> Answer:
    """Its rollouts come to an end, call tools and earn something."""
    if not any(isinstance(each, ServerConfig) and each.base_url for each in checked.servers):
        return "skipped", "no model was named: --model URL"
    env = checked.made(with_model=True)
    async with env.opened(notify=lambda _: None):
        tasks = env.tasks()[: min(_MODEL_ITEMS, checked.items)]
        groups = [await env.rollout_group(task, SIBLINGS) for task in tasks]
        return _model_answer(groups, has_tools=bool(env.toolset.specs))


def _model_answer(groups: list[TrajectoryGroup], *, has_tools: bool) -> Answer:
    rollouts = [each for group in groups for each in group.trajectories]
    failures = [each for group in groups for each in group.failures]
    if failures:
        return (
            "fail",
            f"{len(failures)} of {len(rollouts) + len(failures)} rollouts broke: {failures[0].error}",
        )
    results = [result for each in rollouts for turn in each.turns for result in turn.tool_results]
    scores = [each.score for each in rollouts if each.score is not None]
    mean = f"mean score {fmean(scores):.3g}" if scores else "no score"
    found = (
        f"{len(rollouts)} rollouts, {mean}, {fmean(len(each.acts) for each in rollouts):.1f} turns, "
        f"{len(results)} tool calls, {sum(result.error is not None for result in results)} refused or failed"
    )
    if not all(each.exact for each in rollouts):
        found += "; token ids are made from its text (see `turnwise check-model`)"
    if has_tools and not results:
        return "warn", f"{found}: it calls no tool"
    if len(scores) > 1 and len(set(scores)) == 1:
        return "warn", f"{found}: all of them score the same"
    return "ok", found
