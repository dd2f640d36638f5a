"""The checks: prompt and tools, rollouts and their leaks, and differences of rewards."""

import asyncio
import json
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from time import monotonic
from typing import Any

from environments.record.diagnosis import diagnosis
from environments.rollout.hooks import is_recorded, writes
from environments.rollout.items.item_json import item_for_record
from environments.rollout.lifecycle.rollout_hooks import floor_advice, propose_floor
from environments.trajectory import Rewards, Trajectory
from environments.turn_level_reward import writes_turn_rewards
from tools.errors import IsolationError
from tools.mcp.mcp_servers import MCPTool
from tools.mcp.mcp_toolset import ROLLOUT
from tools.plain_text import one_line
from tools.sandbox import list_sandboxes
from turnwise.check.checked_env import CheckedEnv, TracedCall
from turnwise.check.report import Answer

GOOD, MIDDLE, BAD = 1.0, 0.5, 0.0
_LONG_PROMPT = 0.5
"""Share of a row from which a prompt is a warning."""
_SHOWN_CHARS = 320
_SHOWN, _SHOWN_VALUE = 3, 80
_OURS = ("turnwise-pool", "turnwise-watchdog", "turnwise-docker", "turnwise-sandbox", "asyncio_")
_WAIT_S = 2.0
"""Grace period for processes and threads that are ending."""
_NOTHING_PLAYED: Answer = ("skipped", "no rollout came to an end")
_NO_SCRIPT = "no scripted agent of its own: write scripted_choices(self, item, messages, tools, skill)"


async def check_items(checked: CheckedEnv) -> Answer:
    env = checked.env
    named = zip(env.items, env.item_ids, strict=True)
    unrecordable = [name for item, name in named if item_for_record(item) is None]
    count = f"{len(env.items)} items, ids differ"
    if not unrecordable:
        return "ok", count
    return "warn", (
        f"{count}; {len(unrecordable)} hold what JSON has no form for ({unrecordable[0]}), so that the "
        f"record leaves them out, and `credit --rewards` takes them from the environment"
    )


async def check_prompts(checked: CheckedEnv) -> Answer:
    openings = {each.item_id: each for each in reversed(checked.trajectories)}
    if not openings:
        return _NOTHING_PLAYED
    texts = {"\n".join(message.content for message in each.prompt) for each in openings.values()}
    if not all(text.strip() for text in texts):
        return "fail", "a prompt is empty: the model is asked nothing"
    tokens = {
        name: len(checked.env.renderer.prompt_ids(each.prompt, each.tools)) for name, each in openings.items()
    }
    longest = max(tokens, key=lambda name: tokens[name])
    found = f"{min(tokens.values())} to {tokens[longest]} tokens, tools included"
    if tokens[longest] > _LONG_PROMPT * checked.config.max_token_length:
        return "warn", f"{found}; that of {longest} takes more than half of --env.max_token_length"
    if len(texts) == 1 < len(openings):
        found += "; the same for every item, so that only the world can tell items apart"
    return "ok", found


async def check_tools(checked: CheckedEnv) -> Answer:
    specs = checked.env.toolset.specs
    if is_recorded(checked.env):
        unused = [name for name in ("respond", "tools_for") if writes(checked.env, name)]
        unused += ["tools"] if specs else []
        if unused:
            return "warn", f"the agent is recorded, and nobody asks for {', '.join(unused)}"
        how = "`play`" if checked.env.agent is None else " ".join(checked.env.agent.argv)
        return "skipped", f"the agent is recorded ({how}), and has tools of its own"
    if not specs:
        return "skipped", "no tools: the agent only writes"
    bare = [spec.name for spec in specs if not spec.description.strip()]
    for spec in specs:
        properties: dict[str, Any] = spec.parameters.get("properties", {})
        bare += [f"{spec.name}.{name}" for name, each in properties.items() if not each.get("description")]
    names = ", ".join(spec.name for spec in specs)
    if bare:
        return "warn", (
            f"{names}; no description of {', '.join(bare)}: the docstring is what the model reads, with a "
            f"line for each argument under `Args:`"
        )
    return "ok", names


async def check_rollout(checked: CheckedEnv) -> Answer:
    task = checked.tasks[0]
    checked.first_calls = checked.calls = calls = list[TracedCall]()
    try:
        group = await checked.env.rollout_group(task, 1)
        checked.shared.look()
    finally:
        checked.calls = None
    hooks = [asdict(each) | {"given": one_line(each.given[:_SHOWN_CHARS])} for each in calls]
    checked.report.add({"shown hooks": hooks})
    for failure in group.failures:
        return "fail", f"item {task.item_id}: {failure.error}"
    (trajectory,) = group.trajectories
    checked.first = trajectory
    rewards = (trajectory.rewards and trajectory.rewards.turns) or [None] * len(trajectory.turns)
    shown = [
        {
            "turn": turn.index,
            "says": turn.message.content,
            "calls": [f"{call.name}({call.arguments})" for call in turn.message.tool_calls],
            "answers": [message.content for message in turn.messages[1:]],
            "reward": reward,
        }
        for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]
    checked.report.add({"shown prompt": [message.to_openai() for message in trajectory.prompt]})
    checked.report.add({"shown tools": [spec.to_openai() for spec in trajectory.tools]})
    checked.report.add({"shown rollout": shown})
    score = "no score" if trajectory.score is None else f"score {trajectory.score:.3g}"
    ended = trajectory.ended_by or trajectory.stop_reason.value
    return "ok", f"item {task.item_id}: {len(trajectory.acts)} turns, ended {ended!r}, {score}"


async def check_hooks(checked: CheckedEnv) -> Answer:
    calls = checked.first_calls
    times = Counter(call.name for call in calls)
    raised = [call for call in calls if call.given.startswith("raised ")]
    order = " → ".join(f"{count} {name}" if count > 1 else name for name, count in times.items())
    if raised:
        return "fail", f"{raised[-1].name} {raised[-1].given}; called: {order}"
    given = next((call.given for call in calls if call.name == "limits_for"), "{}")
    limits: dict[str, float] = json.loads(given)
    for name, limit in limits.items():
        if limit > (most := getattr(checked.env.config, name)):
            return "warn", f"limits_for gives {name} {limit}, and --env.{name} permits {most}; {order}"
    return "ok", order or "none was called"


async def check_failures(checked: CheckedEnv) -> Answer:
    groups = [each for played in checked.played.values() for each in played]
    failures = [failure for each in groups for failure in each.group.failures]
    count = len(checked.trajectories) + len(failures)
    if failures:
        return "fail", f"{len(failures)} of {count} rollouts broke: {failures[0].error}"
    if failed := [each for each in groups if each.status == "failed"]:
        return "fail", f"item {failed[0].group.item_id}: {diagnosis(failed)}"
    honest = [each.score for each in checked.trajectories if each.score is not None and not each.agent_caused]
    scores = min(honest, default=None), checked.env.lifecycle.parts.failed_score
    checked.proposed_floor = propose_floor(*scores)
    advice = [f"{floor} (--write puts it into the class)"] if (floor := floor_advice(*scores)) else []
    advice += [shared] if (shared := checked.shared.warning()) else []
    return "warn" if advice else "ok", "; ".join([f"{count} rollouts, none broke", *advice])


async def check_skill(checked: CheckedEnv) -> Answer:
    if not writes(checked.env, "scripted_choices"):
        return "skipped", _NO_SCRIPT
    by_skill: dict[float, list[float]] = {}
    for skill in (GOOD, BAD):
        played = [each for group in await checked.play(skill) for each in group.group.trajectories]
        by_skill[skill] = [each.score for each in played if each.score is not None]
    for skill, scores in by_skill.items():
        if not scores:
            return "skipped", f"no rollout of skill {skill:g} has a score"
    good, bad = by_skill.values()
    apart = fmean(good) - fmean(bad)
    noise = sqrt(sum(variance(each) / len(each) for each in (good, bad) if len(each) > 1))
    found = f"skill 1 scores {fmean(good):.3g}, skill 0 scores {fmean(bad):.3g}"
    if apart <= 0:
        return "fail", f"{found}: what the agent learns to do is not what you want, or the script is not good"
    if apart < 2 * noise:
        return "warn", f"{found}: hardly apart; look at more of them with --items"
    return "ok", found


async def check_variation_by_turn(checked: CheckedEnv) -> Answer:
    played = [each for each in checked.trajectories if each.rewards is not None]
    if all(each.act_rewards is None for each in played):
        return "skipped", "one reward for the whole rollout (TurnLevelRewardMixin gives turn rewards)"
    by_rollout = [[value for value in each.act_rewards or () if value is not None] for each in played]
    scored = [value for rewards in by_rollout for value in rewards]
    turns = sum(len(each.acts) for each in played)
    if not scored:
        found = f"none of {turns} turns is scored"
        if not writes_turn_rewards(checked.env):
            return "skipped", f"{found}: no hook of turn rewards is written"
        is_skilled = writes(checked.env, "scripted_choices")
        found = f"{found}: every hook of turn rewards gave None"
        return ("fail", f"{found}; is a `return` missing?") if is_skilled else ("warn", found)
    found = f"{len(scored)} of {turns} turns scored, {min(scored):.3g} to {max(scored):.3g}"
    if max(map(len, by_rollout)) < 2:
        return "skipped", f"{found}; no rollout has two of them"
    if all(len(set(rewards)) < 2 for rewards in by_rollout):
        return "warn", f"{found}; all turns of a rollout earn the same, as one reward for the whole would"
    return "ok", found


async def check_variation_in_group(checked: CheckedEnv) -> Answer:
    groups = [each for each in await checked.play(MIDDLE) if each.group.trajectories]
    if not groups:
        return _NOTHING_PLAYED
    learned = diagnosis(groups)
    found = f"{learned.with_credit} of {len(groups)} groups have advantages at skill {MIDDLE:g}"
    if learned.with_credit:
        return "ok", found
    if not writes(checked.env, "scripted_choices"):
        return "skipped", f"{found}, and the agent knows nothing: {_NO_SCRIPT}"
    return "fail", f"{found}; {learned}"


async def check_siblings(checked: CheckedEnv) -> Answer:
    """Check that two concurrent repetitions of the first rollout have the same course and rewards."""
    assert checked.first is not None
    one, checked.policy.repeats = _course(checked.first), True
    groups = await asyncio.gather(*(checked.env.rollout_group(checked.tasks[0], 1) for _ in range(2)))
    checked.policy.repeats = False
    warning = ""
    for group in groups:
        for failure in group.failures:
            return "fail", f"the first rollout broke when it was repeated: {failure.error}"
        again = group.trajectories[0]
        two = _course(again)
        if difference := _difference(one, two):
            tools = [each for each in checked.env.toolset.tools if isinstance(each, MCPTool)]
            servers = (
                f", of MCP server {each.server!r}" for each in tools if f"tool {each.name} " in difference
            )
            found = f"{difference}{next(servers, '')}, although the agent did the same"
            overlap = any(turn.clock is not None for turn in checked.first.turns)
            if not overlap and re.sub(r"\d", "", repr(one)) != re.sub(r"\d", "", repr(two)):
                return "fail", (
                    f"{found}: state leaked from one rollout into another (name a server's files in its "
                    f"env, as {ROLLOUT}/FILE), or chance does not come from ctx.seed"
                )
            warning = f"{found}: a clock, chance, the pace of threads, or what siblings share"
        elif difference := _difference(_rewards_of(checked.first.rewards), _rewards_of(again.rewards)):
            found = f"{difference}, although all that was done is the same: take chance from ctx.seed"
            return "fail", f"{found}, and keep what belongs to one rollout in ctx.state or ctx.notes"
    if warning:
        return "warn", warning
    return "ok", "the first rollout takes the same course again, twice and side by side, and earns the same"


def _difference(one: Mapping[str, Any], two: Mapping[str, Any]) -> str | None:
    for name in {**one, **two}:
        if one.get(name) != two.get(name):
            before, after = (f"{each.get(name)!r}" for each in (one, two))
            return f"{name} differs: {before[:_SHOWN_VALUE]}, then {after[:_SHOWN_VALUE]}"
    return None


def _rewards_of(rewards: Rewards | None) -> dict[str, Any]:
    if rewards is None:
        return {}
    named: dict[str, Any] = {}
    for index, reward in enumerate(rewards.turns or ()):
        parts: Mapping[str, float] = rewards.turn_components[index] if rewards.turn_components else {}
        named |= {f"turn {index + 1}, part {name}": value for name, value in parts.items()}
        named[f"turn {index + 1}, reward"] = reward
    named |= {f"outcome, part {name}": value for name, value in rewards.outcome_components.items()}
    return named | {"outcome": rewards.outcome, "score": rewards.score}


def _course(trajectory: Trajectory) -> dict[str, Any]:
    named: dict[str, Any] = {"prompt": [message.content for message in trajectory.prompt]}
    for turn in trajectory.turns:
        name = f"turn {turn.index + 1}"
        named[f"{name}, agent"] = (turn.message.content, turn.message.tool_calls)
        for number, result in enumerate(turn.tool_results, start=1):
            named[f"{name}, call {number}, tool {result.name}"] = result.content
        named[f"{name}, reply"] = [message.content for message in turn.replies]
    return named | {"end": (len(trajectory.turns), trajectory.end_reason)}


Resources = Mapping[str, frozenset[str]]


def list_resources() -> Resources:
    threads = (each for each in threading.enumerate() if not each.name.startswith(_OURS))
    children: set[str] = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = status.read_text().partition(" (")
            name, _, fields = rest.rpartition(") ")
            if fields.split()[1] == str(os.getpid()):
                children.add(f"{name} {number}")
    return {
        "processes": frozenset(children),
        "threads": frozenset(f"{each.name} ({each.ident})" for each in threads),
        "temporary files": frozenset(each.name for each in Path(tempfile.gettempdir()).iterdir()),
    }


async def check_leaks(before: Resources, checked: CheckedEnv) -> Answer:
    ends, backend = monotonic() + _WAIT_S, checked.env.lifecycle.sandboxes.kind
    while (left := await _find_left(before, backend)) and monotonic() < ends:  # noqa: ASYNC110  # nothing reports it
        await asyncio.sleep(_WAIT_S / 10)
    if not left:
        return "ok", "no process, thread, sandbox or temporary file is left"
    found = [
        f"{len(names)} {what} ({', '.join(map(one_line, sorted(names)[:_SHOWN]))}"
        f"{', …' if len(names) > _SHOWN else ''})"
        for what, names in left.items()
    ]
    return "fail", f"left: {'; '.join(found)}; what `prepare` opens, close after its `yield`"


async def _find_left(before: Resources, backend: str) -> dict[str, frozenset[str]]:
    left = {what: names - before[what] for what, names in list_resources().items()}
    with suppress(IsolationError):
        listed = await list_sandboxes(backend)
        left["sandboxes"] = frozenset(each.name for each in listed if each.owner == os.getpid())
    return {what: names for what, names in left.items() if names}
