"""The same actions again, the same run again, what is left behind, and a few rollouts by a real model."""

import asyncio
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any

from rich.console import Console

from environments.config import ServerConfig
from environments.policy.inference.http_client import one_line
from environments.record.recorder import groups_of
from environments.rollout.hooks import writes
from environments.run.process_run import process
from environments.trajectory import CreditedGroup, Rewards, Trajectory
from tools.errors import IsolationError
from tools.mcp.mcp_servers import MCPTool
from tools.mcp.mcp_toolset import ROLLOUT
from tools.sandbox.inventory import list_sandboxes
from turnwise.check.checked_env import SIBLINGS, CheckedEnv, TracedCall
from turnwise.check.report import Answer

_REWARD_HOOKS = ("score_turn", "compute_turn_rewards", "compute_outcome", "compute_reward", "score_group")
_SCRIPT_HOOKS = ("scripted_choices", "scripted_summary")
_GROUPS, _BEFORE = 3, 1
_SIBLINGS = 2
"""Of the run that is resumed."""
_SHOWN, _SHOWN_CHARS = 3, 80
_OURS = ("turnwise-pool", "turnwise-watchdog", "turnwise-docker", "turnwise-sandbox", "asyncio_")
"""How names of threads begin that are not an environment's."""
_WAIT_S = 2.0
"""For what is just ending."""
_MODEL_ITEMS = 2


async def check_siblings(checked: CheckedEnv) -> Answer:
    """Whether the first rollout takes the same course again, twice and side by side."""
    assert checked.first is not None
    one, checked.policy.repeats = _course(checked.first), True
    groups = await asyncio.gather(*(checked.env.rollout_group(checked.tasks[0], 1) for _ in range(2)))
    checked.policy.repeats = False
    for group in groups:
        for failure in group.failures:
            return "fail", f"the first rollout broke when it was repeated: {failure.error}"
        two = _course(group.trajectories[0])
        if difference := _difference(one, two):
            tools = [each for each in checked.env.toolset.tools if isinstance(each, MCPTool)]
            servers = (
                f", of MCP server {each.server!r}" for each in tools if f"tool {each.name} " in difference
            )
            found = f"{difference}{next(servers, '')}, although the agent did the same"
            overlap = any(turn.clock is not None for turn in checked.first.turns)
            if overlap or re.sub(r"\d", "", repr(one)) == re.sub(r"\d", "", repr(two)):
                return "warn", f"{found}: a clock, chance, the pace of threads, or what siblings share"
            return "fail", (
                f"{found}: state leaked from one rollout into another (name a server's files in its env, as "
                f"{ROLLOUT}/FILE), or chance does not come from ctx.seed"
            )
    return "ok", "the first rollout takes the same course again, twice and side by side"


async def check_determinism(checked: CheckedEnv) -> Answer:
    """Whether the same actions earn the same; what should differ takes `ctx.seed`."""
    task, policy = checked.tasks[0], checked.policy
    policy.skill = 0.5
    group, calls = await checked.traced(checked.env.run_group(task))
    first = group.group.trajectories
    if not first:
        return "skipped", "no rollout came to an end"
    policy.repeats = True
    group, calls_again = await checked.traced(checked.env.run_group(task))
    policy.repeats = False
    again = {each.sibling: each for each in group.group.trajectories}
    other = _other_call(calls, calls_again)
    for each in first:
        where = f"item {task.item_id}, rollout {each.sibling}"
        if each.sibling not in again:
            return "fail", f"{where} broke when it was repeated"
        if difference := _difference(_rewards_of(each.rewards), _rewards_of(again[each.sibling].rewards)):
            hook = _other_call(calls, calls_again, among=_REWARD_HOOKS)
            cause = f"; {hook} gives another value" if hook else ""
            earlier = f", and before it {other}" if other and other != hook else ""
            return "fail", f"{where}, {difference}{cause}{earlier}"
    note = f"; {other} is not the same twice, which no reward shows" if other else ""
    return "ok", f"{len(again)} rollouts repeated, rewards and parts equal{note}"


def _difference(one: Mapping[str, Any], two: Mapping[str, Any]) -> str | None:
    """The first entry that is not the same in both."""
    for name in {**one, **two}:
        if one.get(name) != two.get(name):
            before, after = (f"{each.get(name)!r}" for each in (one, two))
            return f"{name} differs: {before[:_SHOWN_CHARS]}, then {after[:_SHOWN_CHARS]}"
    return None


def _rewards_of(rewards: Rewards | None) -> dict[str, Any]:
    """All numbers by name, parts first."""
    if rewards is None:
        return {}
    named: dict[str, Any] = {}
    for index, reward in enumerate(rewards.turns or ()):
        parts: Mapping[str, float] = rewards.turn_components[index] if rewards.turn_components else {}
        named |= {f"turn {index + 1}, part {name}": value for name, value in parts.items()}
        named[f"turn {index + 1}, reward"] = reward
    named |= {f"outcome, part {name}": value for name, value in rewards.outcome_components.items()}
    return named | {"outcome": rewards.outcome, "score": rewards.score}


def _other_call(
    before: Sequence[TracedCall], after: Sequence[TracedCall], *, among: Sequence[str] = ()
) -> str | None:
    """The first call of a rollout with another result; the agent's messages are repeated, not compared."""
    for sibling in sorted({call.sibling for call in before}):
        one, two = (
            [
                each
                for each in calls
                if each.sibling == sibling
                and (each.name in among if among else each.name not in _SCRIPT_HOOKS)
            ]
            for calls in (before, after)
        )
        for first, second in zip(one, two, strict=False):
            if (first.name, first.given) != (second.name, second.given):
                return first.name
    return None


async def check_resume(checked: CheckedEnv) -> Answer:
    """Whether the same seed gives the same groups, whatever was rolled out before in the same process."""
    if writes(checked.env, "next_items"):
        return "skipped", "next_items decides by what ended first, which is not the same in two runs"
    groups = min(_GROUPS, checked.items)
    with tempfile.TemporaryDirectory(prefix="turnwise-resume-") as folder:
        whole, parts = Path(folder, "whole.jsonl"), Path(folder, "parts.jsonl")
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
        one, two = (_rollouts(groups_of(path)) for path in (whole, parts))
    if difference := _difference(one, two):
        return "fail", (
            f"{difference}, when the run was interrupted and resumed: what is random, take from ctx.seed and "
            f"ctx.group_seed"
        )
    return "ok", f"{groups} groups, interrupted after {min(_BEFORE, groups)} and resumed, as in one go"


def _rollouts(groups: Iterable[CreditedGroup]) -> dict[str, Any]:
    """What two runs with one seed have to agree on, in the order in which it comes about."""
    named: dict[str, Any] = {}
    for group in sorted((each.group for each in groups), key=lambda each: (each.item_id, each.epoch)):
        for each in group.trajectories:
            rollout = f"item {group.item_id}, rollout {each.sibling}"
            named |= {f"{rollout}, {name}": value for name, value in _course(each).items()}
            rewards = _rewards_of(each.rewards) | {"token rows": each.rows}
            named |= {f"{rollout}, {name}": value for name, value in rewards.items()}
    return named


def _course(trajectory: Trajectory) -> dict[str, Any]:
    """What was said and done, in the order in which it came about."""
    named: dict[str, Any] = {"prompt": [message.content for message in trajectory.prompt]}
    for turn in trajectory.turns:
        name = f"turn {turn.index + 1}"
        named[f"{name}, agent"] = (turn.message.content, turn.message.tool_calls)
        for number, result in enumerate(turn.tool_results, start=1):
            named[f"{name}, call {number}, tool {result.name}"] = result.content
        named[f"{name}, reply"] = [message.content for message in turn.replies]
    return named | {"end": (len(trajectory.turns), trajectory.end_reason)}


Belongings = Mapping[str, frozenset[str]]
"""What this process has at one time, and what is in the folder that rollouts may write into."""


def belongings() -> Belongings:
    """Those of now."""
    threads = (each for each in threading.enumerate() if not each.name.startswith(_OURS))
    return {
        "processes": frozenset(_processes()),
        "threads": frozenset(f"{each.name} ({each.ident})" for each in threads),
        "temporary files": frozenset(each.name for each in Path(tempfile.gettempdir()).iterdir()),
    }


async def left_behind(before: Belongings, backend: str) -> Answer:
    """What a closed environment left.

    Args:
        before: with the environment open, so that what is shared by all rollouts is not counted.
        backend: of its sandboxes.
    """
    ends = monotonic() + _WAIT_S
    while (left := await _left(before, backend)) and monotonic() < ends:  # noqa: ASYNC110  # nothing reports it
        await asyncio.sleep(_WAIT_S / 10)
    if not left:
        return "ok", "no process, thread, sandbox or temporary file is left"
    found = [
        f"{len(names)} {what} ({', '.join(map(one_line, sorted(names)[:_SHOWN]))}"
        f"{', …' if len(names) > _SHOWN else ''})"
        for what, names in left.items()
    ]
    return "fail", f"left: {'; '.join(found)}; what `prepare` opens, close after its `yield`"


async def _left(before: Belongings, backend: str) -> dict[str, frozenset[str]]:
    left = {what: names - before[what] for what, names in belongings().items()}
    with suppress(IsolationError):
        listed = await list_sandboxes(backend)
        left["sandboxes"] = frozenset(each.name for each in listed if each.owner == os.getpid())
    return {what: names for what, names in left.items() if names}


def _processes() -> Iterator[str]:
    """Those whose parent is this one, on Linux."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = status.read_text().partition(" (")
            name, _, fields = rest.rpartition(") ")
            if fields.split()[1] == str(os.getpid()):
                yield f"{name} {number}"


async def check_model(checked: CheckedEnv) -> Answer:
    """Whether rollouts by a real model come to an end, call tools and earn something."""
    if not any(isinstance(each, ServerConfig) and each.base_url for each in checked.servers):
        return "skipped", "no model was named: --model URL"
    env = checked.made(with_model=True)
    async with env.opened(notify=lambda _: None):
        tasks = env.tasks()[: min(_MODEL_ITEMS, checked.items)]
        groups = [await env.rollout_group(task, SIBLINGS) for task in tasks]
        has_tools = bool(env.toolset.specs)
    rollouts = [each for group in groups for each in group.trajectories]
    failures = [each for group in groups for each in group.failures]
    if failures:
        count = len(rollouts) + len(failures)
        return "fail", f"{len(failures)} of {count} rollouts broke: {failures[0].error}"
    calls = sum(len(turn.tool_results) for each in rollouts for turn in each.turns)
    scores = [each.score for each in rollouts if each.score is not None]
    mean = f"mean score {fmean(scores):.3g}" if scores else "no score"
    turns = fmean(len(each.acts) for each in rollouts)
    found = f"{len(rollouts)} rollouts, {mean}, {turns:.1f} turns, {calls} tool calls"
    if not all(each.exact for each in rollouts):
        found += "; token ids are made from its text (see `turnwise doctor model`)"
    if has_tools and not calls:
        return "warn", f"{found}: it calls no tool"
    if len(scores) > 1 and len(set(scores)) == 1:
        return "warn", f"{found}: all of them score the same"
    return "ok", found
