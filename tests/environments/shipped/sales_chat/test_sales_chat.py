import asyncio
import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean

import pytest

from environments.config import AgentEnvConfig
from environments.policy.scripted import say
from environments.shipped.sales_chat import SalesChatEnv
from environments.shipped.sales_chat.env import (
    CONVERTS,
    PATIENCE,
    SILENT,
    UPVOTE,
    WARMS_UP,
    parse_move,
)
from environments.trajectory import CreditedGroup, Message, Trajectory
from tests.benchmarks.chat_credit import credit_by_kind, played
from tests.environments.written_policy import Written, rolled_out

STARTS = (0.5, 0.3, 0.2)
WANTS = Message(role="user", content="It should look good.")


async def play(*texts: str, size: int = 8) -> Sequence[Trajectory]:
    env = SalesChatEnv(AgentEnvConfig(), policy=Written(*map(say, texts)))
    return await rolled_out(env, {"product": "tent"}, size)


@cache
def many_groups() -> Sequence[CreditedGroup]:
    """Groups of a middling seller, for several tests."""
    return asyncio.run(played(epochs=4, group_size=8, scripted_skill=0.6))


@cache
def expected_score(skill: float, mood: int, left: int = PATIENCE) -> float:
    """What the scripted seller earns from a customer who likes looks, computed and not played."""
    if not left:
        return 0.0
    before = [WANTS] + [Message(role="assistant", content="")] * (PATIENCE - left)
    score = 0.0
    for choice in SalesChatEnv(AgentEnvConfig()).scripted_choices({}, before, (), skill):
        move = parse_move(choice.message.content)
        if move.kind == "pitch":
            score += choice.probability * CONVERTS[mood]
        elif move.kind == "chat":
            pleased = move.topic == "looks"
            warmer = WARMS_UP[mood] * pleased
            following = (1 - warmer) * expected_score(skill, mood, left - 1)
            following += warmer * expected_score(skill, mood + 1, left - 1) if warmer else 0.0
            score += choice.probability * ((1 - SILENT) * UPVOTE * pleased + following)
    return score


def mean_expected(skill: float) -> float:
    return math.fsum(share * expected_score(skill, mood) for mood, share in enumerate(STARTS))


def test_every_bit_of_skill_is_worth_something():
    scores = [mean_expected(skill / 10) for skill in range(11)]
    assert scores == sorted(scores)
    assert (round(scores[0], 3), round(scores[6], 3), round(scores[10], 3)) == (0.161, 0.414, 0.721)


def test_rollouts_earn_what_is_computed():
    scores = [t.score for credited in many_groups() for t in credited.group.trajectories]
    # Siblings share their customer: a group is one observation.
    assert fmean(scores) == pytest.approx(mean_expected(0.6), abs=0.1)


def test_credit_puts_the_messages_of_a_first_turn_in_their_order():
    credit = {kind: fmean(given) for (turn, kind), given in credit_by_kind(many_groups()).items() if not turn}
    assert credit["on topic"] > 0 > credit["off topic"] > credit["goodbye"]
    assert credit["on topic"] > credit["pitch"] > credit["goodbye"]


def test_credit_prefers_a_pitch_to_more_chat_in_the_last_turn():
    credit = credit_by_kind(many_groups())
    assert fmean(credit[2, "pitch"]) > 0 > fmean(credit[2, "on topic"])


async def test_silence_is_not_a_vote_of_zero():
    siblings = await play("Nice weather.", "Goodbye.", size=32)
    first = {t.rewards.turns[0] for t in siblings}
    assert first == {None, 0.0}
    assert {(t.rewards.turns[1], t.rewards.outcome) for t in siblings} == {(None, 0.0)}


async def test_a_state_is_the_messages_so_far_the_mood_and_the_taste():
    (trajectory, *_) = await play("", "", "")
    first, *others = [turn.anchor.split(maxsplit=1) for turn in trajectory.turns]
    assert first[0] == "0"
    assert others == [["1", first[1]], ["2", first[1]]]
