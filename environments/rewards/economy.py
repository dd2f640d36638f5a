"""What a rollout took: context, sampled tokens, turns; and rewards for those that take less."""

from environments.trajectory import Trajectory
from tools.errors import RewardError


def longest_context(trajectory: Trajectory) -> int:
    """Tokens of the longest context that the model saw before it sampled a turn, summaries included."""
    return max((turn.span.start for turn in trajectory.turns), default=0)


def sampled_tokens(trajectory: Trajectory) -> int:
    """Tokens that the model sampled, in all turns."""
    return sum(turn.span.end - turn.span.start for turn in trajectory.turns)


def context_efficiency(trajectory: Trajectory, *, correct: bool, well_formed: bool = True) -> float:
    """0 for a wrong answer or a bad format, else 1 / the longest context in tokens.

    It ranks right answers by how short the context was kept. The numbers are small: an estimator that
    divides by the deviation of a group scales them up to those of any other reward.
    Source: the reward of GRPO with context condensation, a fork of verl (c6829cf1, `trajectory_reward.py`).
    """
    return 1.0 / max(1, longest_context(trajectory)) if correct and well_formed else 0.0


def length_penalty(tokens: int, *, free: int, limit: int) -> float:
    """0 up to `free` tokens, then falling evenly to -1 at `limit`, and -1 beyond.

    Source: soft overlong punishment, "DAPO" (arXiv 2503.14476), equation 13; there `free` is L_max - L_cache.

    Raises:
        RewardError: `limit` is not above `free`.
    """
    if limit <= free:
        raise RewardError(f"length_penalty: limit {limit} is not above free {free}")
    return -min(1.0, max(0.0, (tokens - free) / (limit - free)))


def turn_cost(turns: int, *, each: float, free: int = 0) -> float:
    """`-each` for every turn beyond the first `free` ones."""
    return -each * max(0, turns - free)
