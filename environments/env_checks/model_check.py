"""A few rollouts by a real model: what it makes of the prompt, the tools and the rewards."""

from statistics import fmean

from environments.env_checks.checked_env import SIBLINGS, CheckedEnv
from environments.env_checks.finding import Answer
from environments.server_config import ServerConfig
from environments.trajectory import TrajectoryGroup

_ITEMS = 2


async def check_model(checked: CheckedEnv) -> Answer:
    """Its rollouts come to an end, call tools and earn something."""
    if not any(isinstance(each, ServerConfig) and each.base_url for each in checked.servers):
        return "skipped", "no model was named: --model URL"
    env = checked.made(with_model=True)
    async with env.opened(notify=lambda _: None):
        tasks = env.tasks()[: min(_ITEMS, checked.items)]
        groups = [await env.rollout_group(task, SIBLINGS) for task in tasks]
        return _answer(groups, has_tools=bool(env.toolset.specs))


def _answer(groups: list[TrajectoryGroup], *, has_tools: bool) -> Answer:
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
