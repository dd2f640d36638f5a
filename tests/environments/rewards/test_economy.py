"""What a rollout took, and rewards for less; `context_efficiency` against its reference."""

import json
from pathlib import Path

import pytest

from environments.trajectory import Message, Span, Trajectory, Turn
from tests.tables import cases
from turnwise.rewards import context_efficiency, length_penalty, turn_cost

GOLDEN = Path(__file__).parents[1] / "credit" / "golden" / "reference"


def trajectory_of(contexts):
    """One row per turn, as condensed contexts have."""
    return Trajectory(
        item_id="item",
        turns=tuple(
            Turn(index=k, message=Message(role="assistant"), span=Span(row=k, start=tokens, end=tokens + 3))
            for k, tokens in enumerate(contexts)
        ),
        rows=(),
    )


def reference_rewards():
    cases = json.loads((GOLDEN / "grpo_multiturn_condensation.json").read_text())["cases"]
    for case in cases:
        rewards = zip(case["inputs"]["trajectories"], case["expected"]["trajectory_rewards"], strict=True)
        for given, reward in rewards:
            contexts = [turn["context_tokens"] for turn in given["turns"]]
            yield contexts, given["correct"], given["format_ok"], reward


BY_HAND = [
    ([8, 11], True, True, 1 / 11),
    ([8, 11], False, True, 0.0),
    ([8, 11], True, False, 0.0),
    ([0], True, True, 1.0),
]


def test_context_efficiency_equals_its_reference():
    for contexts, correct, well_formed, reward in [*BY_HAND, *reference_rewards()]:
        ours = context_efficiency(trajectory_of(contexts), correct=correct, well_formed=well_formed)
        assert ours == pytest.approx(reward, rel=1e-6)


@cases(
    ("tokens", "penalty"),
    [(0, 0), (100, 0), (150, -0.5), (200, -1), (999, -1)],
)
def test_the_length_penalty_falls_evenly_from_free_to_limit(tokens, penalty):
    assert length_penalty(tokens, free=100, limit=200) == penalty


def test_turns_beyond_the_free_ones_cost():
    assert [turn_cost(turns, each=0.5, free=2) for turns in (1, 2, 5)] == [0, 0, -1.5]
