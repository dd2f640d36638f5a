"""What `higher_lower` answers and pays."""

import pytest

from environments.shipped.higher_lower.env import HigherLowerEnv, Range


async def play(items=1, **settings):
    async with HigherLowerEnv(HigherLowerEnv.env_config_cls(max_items=items, **settings)) as env:
        groups = [await env.run_group(task) for task in env.tasks()]
    return [each for group in groups for each in group.group.trajectories]


@pytest.mark.parametrize(
    ("guesses", "replies", "ruled_out"),
    [
        (("4", "6", "5"), ("higher", "lower", "right"), (4 / 6, 2 / 6, 0.0)),
        (("1", "1", "7"), ("higher", "higher", "lower"), (1 / 6, 0.0, 1 / 6)),
        (("5",), ("right",), (1.0,)),
        (("8", "", "five"), ("no number",) * 3, (0.0,) * 3),
    ],
)
def test_a_guess_at_5_is_answered_and_rules_numbers_out(guesses, replies, ruled_out):
    state = Range()
    seen = [(state.guess(guess, 5), state.ruled_out) for guess in guesses]
    assert seen == list(zip(replies, map(pytest.approx, ruled_out), strict=True))


async def test_the_number_is_worth_one_and_half_of_what_the_guesses_ruled_out():
    for trajectory in await play(7, scripted_skill=1.0):
        assert trajectory.end_reason == "won"
        assert trajectory.score == pytest.approx(1.5)
        assert trajectory.metrics["right"] == 1.0


async def test_three_wrong_guesses_are_lost_and_earn_what_they_ruled_out():
    lost = [each for each in await play(5, scripted_skill=0.0) if each.end_reason == "lost"]
    assert [len(each.turns) for each in lost] == [3] * len(lost) != []
    assert all(each.score <= 0.5 and each.metrics["right"] == 0.0 for each in lost)
