import json
import math
from statistics import fmean

import pytest

from environments.config import AgentEnvConfig
from environments.policy.scripted import say
from environments.shipped.word_guess import WordGuessEnv
from environments.shipped.word_guess.env import INFORMATION_WEIGHT
from environments.trajectory import StopReason, Trajectory
from tests.environments.written_policy import Written, rolled_out
from tests.tables import cases
from tools.errors import DatasetError


async def play(*guesses: str, answer: str = "crane", **settings: object) -> Trajectory:
    env = WordGuessEnv(AgentEnvConfig(**settings), policy=Written(*map(say, guesses)))
    return (await rolled_out(env, {"answer": answer}))[0]


def replies_of(trajectory: Trajectory) -> list[str]:
    return [turn.replies[0].content for turn in trajectory.turns]


async def test_the_right_guess_wins_and_ends_the_game():
    trajectory = await play("slate", "crane")
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, "won")
    assert trajectory.rewards.outcome == 1.0


async def test_the_sixth_wrong_guess_loses():
    trajectory = await play(*["slate"] * 6)
    assert (len(trajectory.turns), trajectory.end_reason, trajectory.rewards.outcome) == (6, "lost", 0.0)


async def test_what_is_no_word_uses_up_a_guess_and_is_counted():
    trajectory = await play("slate", "no idea", "", "crane")
    assert replies_of(trajectory)[1:3] == [
        f"That is no word of five letters.\nGuesses left: {left}." for left in (4, 3)
    ]
    assert trajectory.metrics == {"invalid_guesses": 2.0, "information": 1.0}
    assert trajectory.rewards.turns[1:3] == (0.0, 0.0)


async def test_the_turn_rewards_of_a_solved_game_add_up_to_the_weight_of_information():
    for guesses in (["crane"], ["slate", "crane"], ["zzzzz", "hello", "grape", "brain", "crane"]):
        rewards = (await play(*guesses)).rewards
        assert math.fsum(rewards.turns) == pytest.approx(INFORMATION_WEIGHT)
        assert min(rewards.turns) >= 0


async def test_what_is_known_is_one_state_in_whatever_order_it_was_found():
    one, other = await play("slate", "grape", "crane"), await play("grape", "slate", "crane")
    assert one.turns[2].anchor == other.turns[2].anchor
    assert one.turns[1].anchor != other.turns[1].anchor


@cases("answer", ["cranes", "Crane", "", 5, None, "cr-ne"], ids=repr)
async def test_an_answer_that_nobody_could_guess_is_refused(tmp_path, answer: object):
    (tmp_path / "own.jsonl").write_text(json.dumps({"answer": answer}) + "\n")
    with pytest.raises(DatasetError):
        await WordGuessEnv(AgentEnvConfig(dataset_path=str(tmp_path / "own.jsonl"))).load_items()


async def test_a_skilled_player_finds_what_a_clumsy_one_often_does_not():
    async def solved(skill: float) -> float:
        async with WordGuessEnv(AgentEnvConfig(scripted_skill=skill, max_items=8)) as env:
            played = [await env.rollout_group(task, 4) for task in env.tasks()]
        return fmean(t.rewards.outcome for group in played for t in group.trajectories)

    assert await solved(1.0) > 0.9 > 0.6 > await solved(0.0)
