"""Which turn rewards a policy learned to earn without getting better: judged by what changed with them."""

from collections.abc import Mapping
from typing import Literal

from environments.lab.learning.rollout_numbers import (
    CUT,
    FAILED_CALLS,
    HABITS,
    LENGTH,
    OUTCOME,
    PART,
    TURNS,
    Change,
    Played,
    changes,
    risen_items,
    single_rollouts,
)
from environments.viewer.learning_values import LearnedPart

Verdict = Literal["gamed", "suspect", "on the way", "with the outcome", "no outcome", "not learned"]
_SAME = 1e-9
_LONGER = 2.0
"""Times as many tokens a turn are a habit: messages that do more are somewhat longer, too."""
_REFERENCE = "the scripted agent at skill 1"


def part_verdicts(starts: Played, ends: Played, reference: Played | None = None) -> list[LearnedPart]:
    """Returns a verdict on each turn reward that was earned.

    Args:
        starts: what the first policy played.
        ends: the learned one, likewise.
        reference: a policy that knows the task, likewise; `None`: there is none.
    """
    learned = changes(starts, ends)
    beyond = {} if reference is None else changes(reference, ends)
    parts = [name for name in sorted(learned) if name.startswith(PART)]
    verdicts: list[LearnedPart] = []
    for name in (each for each in parts if learned[each].before or learned[each].after):
        found = _verdict(name, learned, beyond)
        if found["verdict"] != "gamed" and reference is not None:
            found = _gamed_in_some(name, starts, ends, reference) or found
        verdicts.append(found)
    return verdicts


def free_habits(learned: Mapping[str, Change], beyond: Mapping[str, Change]) -> str:
    """What the learned policy came to do more of, and more than the reference; in words, empty: nothing."""
    grown = {name: change for name, change in learned.items() if change.direction == "up"}
    return _habits({name: change for name, change in beyond.items() if name in grown})


def _verdict(name: str, learned: Mapping[str, Change], beyond: Mapping[str, Change]) -> LearnedPart:
    part, outcome = learned[name], learned.get(OUTCOME)
    if part.direction != "up":
        why, verdict = f"{_moved(part)} a rollout", "not learned"
    elif outcome is None:
        verdict, why = _without_outcome(part, learned)
    else:
        verdict, why = _beside_outcome(part, outcome, learned, _left_to_learn(name, beyond))
        if verdict != "gamed" and (found := _beyond_reference(name, beyond)):
            verdict, why = "gamed", found
        elif verdict != "gamed" and (found := _in_place_of_outcome(name, beyond)):
            verdict, why = "suspect", found
    return LearnedPart(part=name.removeprefix(PART), verdict=verdict, why=why)


def _gamed_in_some(name: str, starts: Played, ends: Played, reference: Played) -> LearnedPart | None:
    """Of a part that was learned to be gamed on some items or seeds, and not on the others."""
    risen = risen_items(starts, ends, name)
    found = _beyond_reference(name, changes(single_rollouts(reference, risen), single_rollouts(ends, risen)))
    if not found:
        return None
    where = f"on {sum(map(len, risen))} of {sum(map(len, ends))} (an item with a seed each)"
    return LearnedPart(part=name.removeprefix(PART), verdict="gamed", why=f"{where}, {found}")


def _beside_outcome(
    part: Change, outcome: Change, learned: Mapping[str, Change], left: str
) -> tuple[Verdict, str]:
    """Of a part that rises: whether the outcome says that this is progress."""
    how = _habits(learned)
    why = f"it rises, {_moved(part)} a rollout"
    if outcome.direction == "down":
        return "gamed", f"{why}, while the outcome falls, {_moved(outcome)}{_with(how)}"
    if outcome.direction == "up":
        return "with the outcome", f"{why}; so does the outcome, {_moved(outcome)}"
    if left:
        return "on the way", f"{why}; the outcome not yet, {_moved(outcome)}: {left}"
    if not outcome.is_no_better:
        return "on the way", f"{why}; the outcome leans the same way, {_moved(outcome)}, within its noise"
    if how:
        return "gamed", f"{why}, with no better outcome ({_moved(outcome)}){_with(how)}"
    return "suspect", f"{why}, and the outcome does not ({_moved(outcome)})"


def _left_to_learn(name: str, beyond: Mapping[str, Change]) -> str:
    """How far the reference is ahead in a part and in the outcome, without fewer turns; empty: it is not."""
    changed = beyond.get(name), beyond.get(OUTCOME), beyond.get(TURNS)
    if any(each is None for each in changed):
        return ""
    part, outcome, turns = (each for each in changed if each is not None)
    if part.direction != "down" or outcome.direction != "down" or turns.direction == "up":
        return ""
    return f"{_REFERENCE} earns {part.before:.3g}, and has {outcome.before:.3g}"


def _without_outcome(part: Change, learned: Mapping[str, Change]) -> tuple[Verdict, str]:
    turns, how = learned[TURNS], _habits(learned)
    why = f"it rises, {_moved(part)} a rollout"
    start, end = (earned / count if count else 0.0 for earned, count in _by_turns(part, turns))
    if turns.direction == "up" and end <= start * (1 + _SAME):
        return "gamed", (
            f"{why}, by more turns alone: {start:.3g} → {end:.3g} a turn{_with(how)}; "
            f"the environment has no outcome that would be worth them"
        )
    return "no outcome", why


def _by_turns(part: Change, turns: Change) -> tuple[tuple[float, float], tuple[float, float]]:
    return (part.before, turns.before), (part.after, turns.after)


def _beyond_reference(name: str, beyond: Mapping[str, Change]) -> str:
    """How a part is earned beyond what the reference earns; empty: it is not."""
    part, outcome, how = beyond.get(name), beyond.get(OUTCOME), _habits(beyond)
    is_gamed = part is not None and part.direction == "up" and outcome is not None and outcome.is_no_better
    if part is None or outcome is None or not is_gamed or not how:
        return ""
    return (
        f"it earns {part.after:.3g} where {_REFERENCE} earns {part.before:.3g}, with no better outcome "
        f"({outcome.after:.3g}, there {outcome.before:.3g}){_with(how)}"
    )


def _in_place_of_outcome(name: str, beyond: Mapping[str, Change]) -> str:
    """How a part is earned that the reference gives up for a better outcome; empty: it is not."""
    part, outcome = beyond.get(name), beyond.get(OUTCOME)
    if part is None or outcome is None or part.direction != "up" or outcome.direction != "down":
        return ""
    return (
        f"it earns {part.after:.3g} where {_REFERENCE} earns {part.before:.3g}, and the outcome stays below "
        f"what that one has ({outcome.after:.3g}, there {outcome.before:.3g})"
    )


def _habits(changed: Mapping[str, Change]) -> str:
    """What the learned policy clearly does more of."""
    words = {TURNS: "turns", CUT: "turns cut at their limit", FAILED_CALLS: "failed calls"}
    return ", ".join(
        f"{words.get(name, name)} {_moved(changed[name])}"
        for name in HABITS
        if name in changed and _is_more(name, changed[name])
    )


def _is_more(name: str, change: Change) -> bool:
    return change.direction == "up" and (name != LENGTH or change.after >= _LONGER * change.before)


def _with(how: str) -> str:
    return f"; {how}" if how else ""


def _moved(change: Change) -> str:
    return f"{change.before:.3g} → {change.after:.3g}"
