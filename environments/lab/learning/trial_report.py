"""What a trial says: verdicts in words, and their numbers, as JSON values for page, terminal and programs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.base_env import AgentEnv
from environments.lab.learning.arm_comparison import comparison
from environments.lab.learning.gamed_rewards import PartVerdict, free_habits, part_verdicts
from environments.lab.learning.paired_change import Change, Played, changes
from environments.lab.learning.rollout_numbers import OUTCOME, PART, PASSED, SCORE, TOKENS, TURNS, Numbers
from environments.lab.learning.trial import REFERENCE
from environments.lab.learning.trial_plan import GROUPS_A_STEP
from environments.lab.learning.tried_estimators import SeedRun, TrialResult, TriedEstimator
from environments.viewer.learning_values import (
    LearnedChange,
    LearnedChoice,
    LearnedEstimator,
    LearnedPart,
    LearnedStateValues,
    LearnedVerdict,
    LearningValues,
)

_FEW = 0.5
"""Share of choices in states that were met before, below which a table learns little."""
_FLAGGED = ("gamed", "suspect", "on the way")
_QUIET = {
    "no outcome": "rose; the environment has no outcome to hold that against",
    "with the outcome": "rose with the outcome: not gamed here",
    "not learned": "did not clearly rise",
}
_WORST_FIRST = (*_FLAGGED, *_QUIET)


def learning_values(result: TrialResult, env: AgentEnv, learning_rate: float) -> LearningValues:
    """All that is said of a trial; the rollouts of a page are left open."""
    tried = [_estimator(arm, result) for arm in result.arms]
    return LearningValues(
        env=env.name,
        seeds=result.plan.seeds,
        steps=result.steps,
        groups_a_step=GROUPS_A_STEP,
        group_size=env.config.group_size,
        items=result.plan.items,
        learning_rate=learning_rate,
        seconds=round(result.seconds, 1),
        verdicts=[_learnable(tried, result), *_gamed(tried), _best(result), *_notes(result, _free(result))],
        estimators=tried,
        rollouts=[],
    )


def _estimator(arm: TriedEstimator, result: TrialResult) -> LearnedEstimator:
    learned, beyond = _changes(arm, result)
    reference = _references(result) if _knows_the_task(result) else None
    return LearnedEstimator(
        name=arm.estimator,
        refused=arm.refused,
        curves=_curves([run.curve for run in arm.seeds]),
        changes=[_change(name, learned[name], beyond.get(name)) for name in _in_order(learned)],
        parts=[_part(each) for each in part_verdicts(*_played(arm, result), reference)],
        states=_states(arm.seeds[0]),
    )


def _changes(arm: TriedEstimator, result: TrialResult) -> tuple[Mapping[str, Change], Mapping[str, Change]]:
    """From the first policy, and from the reference, to the learned one."""
    starts, ends = _played(arm, result)
    return changes(starts, ends), changes(_references(result), ends)


def _played(arm: TriedEstimator, result: TrialResult) -> tuple[Played, Played]:
    """By the first policy and by the learned one."""
    return result.starts, [run.end for run in arm.seeds]


def _references(result: TrialResult) -> Played:
    """The same for each seed."""
    return [result.reference] * len(result.starts)


def _knows_the_task(result: TrialResult) -> bool:
    """Whether the reference is clearly better than chance, so that what it does is a measure.

    By the outcome, where there is one: a reward that is gamed is in the score.
    """
    beyond_chance = changes(result.starts, _references(result))
    better = beyond_chance.get(OUTCOME) or beyond_chance.get(SCORE)
    return better is not None and better.direction == "up"


def _curves(curves: Sequence[Sequence[Numbers]]) -> dict[str, list[list[float | None]]]:
    names = dict.fromkeys(name for curve in curves for step in curve for name in step)
    return {
        name: [[step.get(name, 0.0 if name.startswith(PART) else None) for step in curve] for curve in curves]
        for name in _in_order(names)
    }


def _in_order(names: Mapping[str, Any]) -> list[str]:
    first, then = (SCORE, OUTCOME, PASSED), (TURNS, TOKENS)
    parts = sorted(name for name in names if name.startswith(PART))
    rest = [name for name in names if name not in (*first, *parts, *then)]
    return [name for name in (*first, *parts, *then, *rest) if name in names]


def _change(name: str, learned: Change, beyond: Change | None) -> LearnedChange:
    return LearnedChange(
        name=name,
        start=learned.before,
        end=learned.after,
        reference=None if beyond is None else beyond.before,
        direction=learned.direction,
    )


def _part(found: PartVerdict) -> LearnedPart:
    return LearnedPart(part=found.part, verdict=found.verdict, why=found.why)


def _states(run: SeedRun) -> list[LearnedStateValues]:
    return [
        LearnedStateValues(
            state=each.state,
            visits=each.visits,
            choices=[LearnedChoice(message=message, probability=share) for message, share in each.choices],
        )
        for each in run.states
    ]


def _learnable(tried: Sequence[LearnedEstimator], result: TrialResult) -> LearnedVerdict:
    scores = {each["name"]: change for each in tried for change in each["changes"] if change["name"] == SCORE}
    if not scores:
        return LearnedVerdict(about="learnable", good=False, text="nothing was scored, or no estimator suits")
    best = max(scores, key=lambda name: scores[name]["end"])
    change = scores[best]
    reference = "" if change["reference"] is None else f"; the {REFERENCE} has {change['reference']:.3f}"
    moved = f"{change['start']:.3f} → {change['end']:.3f} in {result.steps} steps ({best}{reference})"
    moved += _passed(next(each for each in tried if each["name"] == best))
    rising = [name for name, each in scores.items() if each["direction"] == "up"]
    if rising:
        by = "with every estimator" if len(rising) == len(scores) else f"with {', '.join(rising)}"
        return LearnedVerdict(about="learnable", good=True, text=f"yes: the score rises {by}, {moved}")
    if all(each["direction"] == "down" for each in scores.values()):
        return LearnedVerdict(
            about="learnable", good=False,
            text=f"the score falls, {moved}: what is learned from and what is scored are not the same",
        )  # fmt: skip
    return LearnedVerdict(
        about="learnable", good=False, text=f"not seen: the score does not clearly rise, {moved}"
    )


def _passed(tried: LearnedEstimator) -> str:
    """What `evaluate` would count as passed, at the start and at the end."""
    found = next((each for each in tried["changes"] if each["name"] == PASSED), None)
    return "" if found is None else f"; passed {found['start']:.0%} → {found['end']:.0%}"


def _gamed(tried: Sequence[LearnedEstimator]) -> Iterator[LearnedVerdict]:
    """A line for each turn reward that is not as it should be, and one for the others."""
    known = [(each["name"], part) for each in tried for part in each["parts"]]
    if not known:
        yield LearnedVerdict(about="gamed", good=None, text="no turn reward was earned, so none is gamed")
        return
    others: dict[str, list[str]] = {}
    for name in dict.fromkeys(part["part"] for _, part in known):
        found = [(arm, part) for arm, part in known if part["part"] == name]
        verdict = min((part["verdict"] for _, part in found), key=_WORST_FIRST.index)
        if verdict in _FLAGGED:
            by = [(arm, part["why"]) for arm, part in found if part["verdict"] == verdict]
            arms = ", ".join(arm for arm, _ in by)
            kind = "" if verdict == "gamed" else f"{verdict}: "
            text = f"{kind}{name} (with {arms}): {by[0][1]}"
            yield LearnedVerdict(about="gamed", good=None if verdict == "on the way" else False, text=text)
        else:
            shown = f"{name} ({found[0][1]['why']})" if verdict == "not learned" else name
            others.setdefault(verdict, []).append(shown)
    for verdict, names in others.items():
        text = f"{', '.join(names)} {_QUIET[verdict]}"
        yield LearnedVerdict(about="gamed", good=True if verdict == "with the outcome" else None, text=text)


def _best(result: TrialResult) -> LearnedVerdict:
    means = {
        arm.estimator: [_mean_score(run) for run in arm.seeds]
        for arm in result.arms
        if arm.refused is None and all(any(SCORE in step for step in run.curve) for run in arm.seeds)
    }
    refused = [f"; {arm.estimator} cannot be used here: {arm.refused}" for arm in result.arms if arm.refused]
    text = comparison(means, "mean score while learning") if means else "none was tried"
    return LearnedVerdict(about="estimator", good=None, text=text + "".join(refused))


def _mean_score(run: SeedRun) -> float:
    scores = [step[SCORE] for step in run.curve if SCORE in step]
    return sum(scores) / len(scores)


def _notes(result: TrialResult, free: str) -> Iterator[LearnedVerdict]:
    notes = [
        (bool(free),
         f"more than the {REFERENCE} does, and little is paid against it: {free}"),
        (result.steps < result.plan.steps,
         f"the time was over after {result.steps} of {result.plan.steps} steps; --seconds gives more"),
        (not result.has_script,
         "the choices are those of the generic agent, which calls each tool with minimal arguments: write "
         "scripted_choices with what a good and a bad agent would do"),
        (result.has_script and not _knows_the_task(result),
         f"the {REFERENCE} is not clearly better than chance, so that it is no measure here"),
        (not result.has_state_key,
         "a state is what was said last: write state_key to say what a turn really depends on, so that more "
         "states are equal and gigpo can be tried"),
        (_share_met(result) < _FEW,
         f"{1 - _share_met(result):.0%} of the choices were in states never met before, where a table has "
         f"learned nothing: a language model may do better than this trial"),
        (_share_alike(result) > _FEW,
         f"in {_share_alike(result):.0%} of the first groups all siblings earned the same, which teaches "
         f"nothing"),
        (bool(untaught := _untaught(result)),
         f"no group of any step gave credit to learn from with {', '.join(untaught)}"),
        (result.lost.total() > 0, _lost(result)),
    ]  # fmt: skip
    for holds, text in notes:
        if holds:
            yield LearnedVerdict(about="note", good=None, text=text)


def _lost(result: TrialResult) -> str:
    """How many rollouts broke, and what broke most of them."""
    of = result.lost.total() + result.survived
    shown = "; ".join(why for why, _ in result.lost.most_common(1))
    return f"{result.lost.total():,} of {of:,} rollouts broke and count nowhere, most by: {shown}"


def _free(result: TrialResult) -> str:
    """Of the estimator that ended best."""
    known = [arm for arm in result.arms if arm.refused is None]
    if not known or not _knows_the_task(result):
        return ""
    return free_habits(*_changes(max(known, key=lambda arm: _end_score(arm.seeds)), result))


def _end_score(seeds: Sequence[SeedRun]) -> float:
    return sum(each.get(SCORE, 0.0) for run in seeds for item in run.end.values() for each in item)


def _share_met(result: TrialResult) -> float:
    total: Counter[bool] = Counter()
    for arm in result.arms:
        for run in arm.seeds:
            total += run.decisions
    return total[True] / total.total() if total else 1.0


def _untaught(result: TrialResult) -> list[str]:
    """The estimators under which no group had an advantage that is not 0."""
    return [
        arm.estimator
        for arm in result.arms
        if arm.refused is None and result.steps and not any(run.groups["ok"] for run in arm.seeds)
    ]


def _share_alike(result: TrialResult) -> float:
    """Of the groups at the start: those whose siblings all have one score."""
    groups = [credited.group.trajectories for credited in result.start_groups]
    alike = [len({each.score for each in rollouts}) == 1 for rollouts in groups if len(rollouts) > 1]
    return sum(alike) / len(alike) if alike else 0.0
