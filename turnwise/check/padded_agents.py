"""The check for rewards that pay for padding: longer, louder and busier scripted agents."""

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import sqrt
from statistics import fmean, stdev

from environments.policy.scripted import Choice, Script
from environments.rollout.hooks import is_recorded, writes
from environments.trajectory import Message, Rewards
from tools.calls import ToolSpec
from turnwise.check.checked_env import CheckedEnv
from turnwise.check.report import Answer

_SKILL = 1.0
"""Without mistakes, only padding can raise the score."""
_SIBLINGS = 2
_REPEATS = 3
"""Copies of each message of the longer agent, and of each call of the busier one."""
_FILLER = "\n" + " ".join(["Let me think about this carefully and explain what I am doing."] * 8)


_AGENTS = {"longer": "more turns", "louder": "more text", "busier": "more calls"}


async def check_padding(checked: CheckedEnv) -> Answer:
    if is_recorded(checked.env):
        return "skipped", "the agent is recorded, and pads nothing"
    if not writes(checked.env, "scripted_choices"):
        return "skipped", "no scripted agent of its own, whose messages could be padded"
    plain = await _play(checked)
    paid = list[str]()
    for name, more in _AGENTS.items():
        checked.policy.padded = partial(_pad_script, name)
        try:
            padded = await _play(checked)
        finally:
            checked.policy.padded = None
        pairs = [(plain[key], padded[key]) for key in plain.keys() & padded.keys()]
        if found := _describe_gain(pairs):
            paid.append(f"a {name} agent ({more}, nothing else) {found}")
    if not plain:
        return "skipped", "no rollout has a reward"
    if not paid:
        return "ok", f"{', '.join(_AGENTS)}: an agent that pads scores no more"
    has_outcome = any(each.turns is not None and each.outcome is not None for each in plain.values())
    return ("fail" if has_outcome else "warn"), f"{'; '.join(paid)}: that is what a model will learn to do"


def _pad_script(agent: str, script: Script) -> Script:
    async def choices(
        messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        given = script(messages, tools, skill)
        made = await given if inspect.isawaitable(given) else given
        return [replace(each, message=_pad(agent, each.message, messages)) for each in made]

    return choices


def _pad(agent: str, message: Message, before: Sequence[Message]) -> Message:
    if agent == "louder":
        return replace(message, content=message.content + _FILLER)
    if agent == "busier":
        return replace(message, tool_calls=message.tool_calls * _REPEATS)
    own = [each for each in before if each.role == "assistant"]
    return own[-1] if len(own) % _REPEATS else message


async def _play(checked: CheckedEnv) -> dict[tuple[str, int], Rewards]:
    checked.policy.skill = _SKILL
    groups = await asyncio.gather(*(checked.env.rollout_group(task, _SIBLINGS) for task in checked.tasks))
    rollouts = chain.from_iterable(group.trajectories for group in groups)
    rewards = {(each.item_id, each.sibling): each.rewards for each in rollouts}
    return {key: each for key, each in rewards.items() if each is not None and each.score is not None}


def _describe_gain(pairs: Sequence[tuple[Rewards, Rewards]]) -> str:
    """Describe a gain in score above noise without a better outcome; "" for none."""
    scores = [(plain.score or 0.0, padded.score or 0.0) for plain, padded in pairs]
    gains = [padded - plain for plain, padded in scores]
    noise = 2 * stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else 0.0
    if not gains or fmean(gains) <= max(noise, 1e-9):
        return ""
    found = (
        f"scores {fmean(each for _, each in scores):.3g} instead of {fmean(each for each, _ in scores):.3g}"
    )
    outcomes = [
        (plain.outcome, padded.outcome)
        for plain, padded in pairs
        if plain.turns is not None and plain.outcome is not None and padded.outcome is not None
    ]
    if not outcomes:
        return f"{found}, and no outcome says whether it is better"
    before, after = fmean(each for each, _ in outcomes), fmean(each for _, each in outcomes)
    return "" if after > before + 1e-9 else f"{found}, with no better outcome ({before:.3g} → {after:.3g})"
