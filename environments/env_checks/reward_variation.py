"""Whether rewards tell rollouts apart: a good agent from a bad one, a turn from another, siblings."""

from math import sqrt
from statistics import fmean, variance

from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.finding import Answer

GOOD, MIDDLE, BAD = 1.0, 0.5, 0.0
"""Skills of the scripted agent."""
_NO_SCRIPT = "no scripted agent of its own: write scripted_choices(self, item, messages, tools, skill)"


async def check_skill(checked: CheckedEnv) -> Answer:
    """A scripted agent without mistakes scores more than one that makes nothing but mistakes."""
    if not checked.has_script:
        return "skipped", _NO_SCRIPT
    good, bad = [await _scores(checked, skill) for skill in (GOOD, BAD)]
    if not good or not bad:
        return "skipped", "no rollout has a score"
    apart = fmean(good) - fmean(bad)
    scores = f"skill 1 scores {fmean(good):.3g}, skill 0 scores {fmean(bad):.3g}"
    found = f"{scores} ({len(good)} and {len(bad)} rollouts)"
    if apart <= 0:
        return "fail", f"{found}: what the agent learns to do is not what you want, or the script is not good"
    if apart < 2 * sqrt(_mean_variance(good) + _mean_variance(bad)):
        return "warn", f"{found}: hardly apart; look at more of them with --items"
    return "ok", found


async def check_variation_by_turn(checked: CheckedEnv) -> Answer:
    """Turns of one rollout earn different rewards, which is what credit per turn is made of."""
    played = [each for each in checked.trajectories if each.rewards is not None]
    if all(each.act_rewards is None for each in played):
        return (
            "skipped",
            "no turn rewards: one reward for the whole rollout (TurnLevelRewardMixin gives more)",
        )
    by_rollout = [[value for value in each.act_rewards or () if value is not None] for each in played]
    scored = [value for rewards in by_rollout for value in rewards]
    turns = sum(len(each.acts) for each in played)
    if not scored:
        return "warn", f"none of {turns} turns is scored: every hook of turn rewards gave None"
    found = f"{len(scored)} of {turns} turns scored, {min(scored):.3g} to {max(scored):.3g}"
    if max(map(len, by_rollout)) < 2:  # there is nothing to compare in a rollout of one turn
        return "skipped", f"{found}; no rollout has two of them"
    if all(len(set(rewards)) < 2 for rewards in by_rollout):
        return "warn", f"{found}; all turns of a rollout earn the same, as one reward for the whole would"
    return "ok", found


async def check_variation_in_group(checked: CheckedEnv) -> Answer:
    """Siblings differ, so that some have advantages: a group without any teaches nothing."""
    groups = [each for each in await checked.play(MIDDLE) if each.group.trajectories]
    teaching = [each for each in groups if any(map(any, each.advantages or ()))]
    if not groups:
        return "skipped", "no rollout came to an end"
    found = f"{len(teaching)} of {len(groups)} groups have advantages at skill {MIDDLE:g}"
    if teaching:
        return "ok", found
    if not checked.has_script:
        return "skipped", f"{found}, and the agent knows nothing: {_NO_SCRIPT}"
    return "fail", f"{found}: siblings that do different things earn the same"


async def _scores(checked: CheckedEnv, skill: float) -> list[float]:
    groups = await checked.play(skill)
    scores = [each.score for group in groups for each in group.group.trajectories]
    return [score for score in scores if score is not None]


def _mean_variance(values: list[float]) -> float:
    """Of the mean."""
    return variance(values) / len(values) if len(values) > 1 else 0.0
