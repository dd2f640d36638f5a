"""What a rollout came to, as the numbers that learning changes: score, reward parts, length, habits."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from environments.trajectory import Rewards, Trajectory, TrajectoryGroup

Numbers = Mapping[str, float]
"""By name: those below, and each turn reward as `PART` and its name."""

SCORE, OUTCOME, PASSED, TURNS, TOKENS = "score", "outcome", "passed", "turns", "tokens"
REPEATED, CUT, FAILED_CALLS = "repeated calls", "cut turns", "failed calls"
LENGTH = "tokens a turn"
PART = "part: "
UNNAMED = "turn reward"
"""The part of an environment that names none."""
HABITS = (TURNS, REPEATED, CUT, FAILED_CALLS, LENGTH)
"""What a policy may do more of because it is paid for it."""


def numbers_of(trajectory: Trajectory) -> dict[str, float]:
    """Of one rollout, all per rollout; what nobody gave is left out.

    `REPEATED` counts calls that an earlier one of the rollout equals, `CUT` turns that ended at the limit of
    their tokens. A part is the sum over its turns, weighted. `PASSED` is 0 or 1, where that was judged.
    """
    acts = trajectory.acts
    tokens = sum(turn.span.end - turn.span.start for turn in acts)
    numbers = {
        TURNS: float(len(acts)),
        TOKENS: float(tokens),
        LENGTH: tokens / max(1, len(acts)),
        REPEATED: float(_repeated(trajectory)),
        CUT: float(sum(turn.finish_reason == "length" for turn in acts)),
        FAILED_CALLS: float(sum(result.error is not None for turn in acts for result in turn.tool_results)),
    }
    if trajectory.passed is not None:
        numbers[PASSED] = float(trajectory.passed)
    rewards = trajectory.rewards
    if rewards is None:
        return numbers
    given = {SCORE: rewards.score, OUTCOME: rewards.outcome, **_parts(rewards)}
    return {name: value for name, value in given.items() if value is not None} | numbers


def mean_numbers(rollouts: Iterable[Numbers]) -> dict[str, float]:
    """The mean of each; a rollout without a part has earned nothing of it, and other gaps are left out."""
    found = list(rollouts)
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for each in found for name in each):
        values = values_of(found, name)
        means[name] = sum(values) / len(values)
    return means


def values_of(rollouts: Sequence[Numbers], name: str) -> list[float]:
    """One number of each that has it; a part that is missing is 0."""
    if name.startswith(PART):
        return [each.get(name, 0.0) for each in rollouts]
    return [each[name] for each in rollouts if name in each]


def group_numbers(group: TrajectoryGroup) -> list[Numbers]:
    """Those of each rollout of a group."""
    return [numbers_of(trajectory) for trajectory in group.trajectories]


def _parts(rewards: Rewards) -> dict[str, float]:
    if rewards.turns is None:
        return {}
    sums: Counter[str] = Counter()
    for parts in rewards.turn_components:
        sums.update(parts)
    if not sums:
        return {PART + UNNAMED: sum(reward for reward in rewards.turns if reward is not None)}
    return {PART + name: value for name, value in sums.items()}


def _repeated(trajectory: Trajectory) -> int:
    calls = [(call.name, call.arguments) for turn in trajectory.acts for call in turn.message.tool_calls]
    return len(calls) - len(set(calls))
