"""Plays each item's own solution and an idle agent, into records that are resumed, and judges the items."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from environments.base_env import AgentEnv
from environments.record.recorder import Recorder, groups_of
from environments.record.run_folder import run_folder
from environments.rollout.hooks import LEFT_OUT_LOG
from environments.rollout.items.item_json import item_hash
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import file_digest
from environments.run.group_source import FinishedGroup
from environments.run.open_run import DEFAULTS, in_this_process, open_run
from environments.run.process_run import PlannedTasks
from environments.run.worker_pool import run_groups
from environments.trajectory import TrajectoryGroup
from tools.plain_text import one_line, shorten

Verdict = Literal["right", "unsolved", "given", "broken", "left out", "not played"]
RUNS = {"check-solution": 1.0, "check-idle": 0.0}
"""The two runs by name, each with the skill of its scripted agent."""
_REASON_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedItem:
    item: str
    verdict: Verdict
    """`unsolved`: the solution does not pass; `given`: an agent that does nothing passes."""
    reason: str = ""


async def check_solutions(
    new_env: Callable[[float], AgentEnv], console: Console
) -> tuple[list[CheckedItem], int]:
    """Return the items that were played, right ones first, and 0 or the exit code of a signal.

    Items that were played already are read from the record unless they, their files or settings changed.
    """
    results, left_out, code = list[Mapping[str, TrajectoryGroup | None]](), dict[str, str](), 0
    LEFT_OUT_LOG.disabled = True  # the items returned name it
    try:
        for name, skill in RUNS.items():
            env = new_env(skill)
            played, code = await _play(env, name, console)
            results, left_out = [*results, played], dict(env.left_out)
            if code:
                break
    finally:
        LEFT_OUT_LOG.disabled = False
    solved, idle = results[0], results[-1] if len(results) > 1 else {}
    items = [_judge(item, solved[item], idle.get(item)) for item in solved]
    items += [CheckedItem(item=item, verdict="left out", reason=reason) for item, reason in left_out.items()]
    return sorted(items, key=lambda each: each.verdict != "right"), code


async def _play(env: AgentEnv, name: str, console: Console) -> tuple[dict[str, TrajectoryGroup | None], int]:
    path = run_folder(env.name, name).record
    async with open_run(env, console, None, DEFAULTS, in_this_process, evaluation=True) as run:
        settings = {key: fact for key, fact in run.origin.facts().items() if not key.startswith("data of ")}
        keys = await asyncio.to_thread(_keys, env, repr(sorted(settings.items())))
        named = zip(keys.values(), env.items, strict=True)
        planned = [GroupTask(item=item, item_id=key) for key, item in named]
        with Recorder(path) as recorder:
            tasks, progress = PlannedTasks(planned, recorder), run.progress
            progress.say(f"{name}: {tasks.done} of {tasks.total} items are already in {path}")
            progress.start(total=tasks.total, done_before=tasks.done)
            progress.ready()

            async def record(_: GroupTask, done: FinishedGroup) -> None:
                assert done.line is not None
                await asyncio.to_thread(recorder.append_line, done.line)
                progress.group_done(done.note)

            with run.watchdog.arm(), progress.live:
                code = await run_groups(tasks, run.source.run, record, max_in_flight=run.source.at_once)
        groups = {each.group.item_id: each.group for each in groups_of(path, rows=False)}
    return {item: groups.get(key) for item, key in keys.items()}, code


def _keys(env: AgentEnv, settings: str) -> dict[str, str]:
    """Return the item ids, each with a name in the record that changes with all that decides its rollout."""
    keys = dict[str, str]()
    for name, item in zip(env.item_ids, env.items, strict=True):
        facts = hashlib.sha256(f"{settings}{item_hash(item)}".encode())
        for place in env.item_files(item):
            for path in sorted(place.rglob("*")):
                if path.is_file():
                    own = f"{path.relative_to(place)}{path.stat().st_mode}{file_digest(path)}"
                    facts.update(os.fsencode(own))
        keys[name] = f"{name}@{facts.hexdigest()[:12]}"
    return keys


def _judge(item: str, solved: TrajectoryGroup | None, idle: TrajectoryGroup | None) -> CheckedItem:
    for who, group in (("its own solution", solved), ("an agent that does nothing", idle)):
        if group is None:
            return CheckedItem(item=item, verdict="not played")
        for failure in group.failures:
            reason = shorten(one_line(failure.error), _REASON_CHARS)
            return CheckedItem(item=item, verdict="broken", reason=f"{who} broke: {reason}")
        (played,) = group.trajectories
        if played.passed is (group is solved):
            continue
        facts = "".join(f", {name} {value:g}" for name, value in played.metrics.items() if value)
        reason = f"{who} scores {played.score or 0:g}{facts}"
        if group is idle:
            return CheckedItem(item=item, verdict="given", reason=reason)
        results = [result.content for turn in played.turns for result in turn.tool_results]
        last = one_line(results[-1][-_REASON_CHARS:]) if results else "it has none"
        return CheckedItem(item=item, verdict="unsolved", reason=f"{reason}: {last}")
    return CheckedItem(item=item, verdict="right")
