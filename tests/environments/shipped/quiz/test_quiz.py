"""What `quiz` pays and shows."""

import pytest

from environments.shipped.quiz.env import OPENING, QUESTIONS, QuizConfig, QuizEnv


async def one_group(**settings):
    async with QuizEnv(QuizConfig(max_items=1, **settings)) as env:
        return (await env.run_group(env.tasks()[0])).group.trajectories


async def test_a_right_answer_earns_an_eighth_at_its_turn():
    for trajectory in await one_group(scripted_skill=0.2):
        pairs = [
            tuple(map(int, text.content.split(" or ")))
            for text in trajectory.messages[len(OPENING) :]
            if text.role == "user"
        ]
        answers = [turn.message.content for turn in trajectory.acts]
        right = [answer == str(max(pair)) for answer, pair in zip(answers, pairs, strict=True)]
        assert list(trajectory.rewards.turns) == [each / QUESTIONS for each in right]
        assert trajectory.metrics["right"] == pytest.approx(sum(right) / QUESTIONS)


async def test_noise_is_drawn_anew_for_each_turn_and_sibling_and_leaves_the_metric_alone():
    trajectories = await one_group(scripted_skill=1.0, noise=1.0)
    rewards = [reward for trajectory in trajectories for reward in trajectory.rewards.turns]
    assert len(set(rewards)) == len(rewards)
    assert {trajectory.metrics["right"] for trajectory in trajectories} == {1.0}


async def test_noise_is_the_same_in_a_run_with_the_same_seed():
    first, second = [await one_group(scripted_skill=1.0, noise=1.0) for _ in range(2)]
    assert [each.rewards for each in first] == [each.rewards for each in second]


async def test_without_memory_each_turn_is_a_row_that_holds_the_examples_and_its_question():
    (trajectory, *_) = await one_group(memory="none")
    async with QuizEnv(QuizConfig(memory="none")) as env:
        questions = [text for text in trajectory.messages[len(OPENING) :] if text.role == "user"]
        shown = [env.renderer.prompt_ids((*OPENING, question), ()) for question in questions]
    assert [
        row.token_ids[: turn.span.start] for row, turn in zip(trajectory.rows, trajectory.turns, strict=True)
    ] == [tuple(ids) for ids in shown]


async def test_with_memory_the_rollout_is_one_row():
    assert [len(each.rows) for each in await one_group()] == [1] * 4
