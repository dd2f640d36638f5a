"""What an item may have less of than the settings say: `limits_for`."""

import pytest

from environments.trajectory import Failure, StopReason, Trajectory
from tests.environments.talking import Talking, made, played
from tests.tables import cases


def limiting(limits_for, *, says=(), plays=("hello",), settings=None):
    hooks = {"limits_for": limits_for, "says": says, "plays": plays}
    return made(type("Limiting", (Talking,), hooks), **(settings or {}))


async def limited(limits, *, says=("more",) * 9, **settings):
    plays = ("look",) * 9
    return await played(limiting(lambda self, item: limits, says=says, plays=plays, settings=settings))


async def test_the_smaller_one_of_limit_and_setting_wins():
    for limit, setting in ((2, 5), (5, 2)):
        assert len((await limited({"max_turns": limit}, max_turns=setting)).turns) == 2


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"token_budget": 1}, StopReason.TOKEN_BUDGET),
        ({"max_token_length": 16}, None),
        ({"rollout_timeout_s": 1e-9}, None),
        ({}, StopReason.MAX_TURNS),
    ],
    ids=["token_budget", "max_token_length", "rollout_timeout_s", "none"],
)
async def test_limits_are_those_of_a_rollouts_budget(limits, reason):
    ended = await limited(limits, max_turns=3)
    if reason is None:
        assert isinstance(ended, Failure)
        assert "no turn was finished" in ended.error
    else:
        assert ended.stop_reason is reason


@cases(
    ("limits", "said"),
    [
        (None, 'limits_for gave None; give a mapping such as {"max_turns": 6}'),
        ([("max_turns", 2)], "limits_for gave [('max_turns', 2)]; give a mapping"),
        (
            {"group_size": 2},
            "limits_for gave a limit 'group_size'; choose from max_turns, max_tokens_per_turn",
        ),
        ({"max_turns": 0}, "limits_for gave max_turns 0: Input should be greater than or equal to 1"),
        ({"max_turns": 2.5}, "limits_for gave max_turns 2.5: Input should be a valid integer"),
        ({"max_turns": "2"}, "limits_for gave max_turns '2': Input should be a valid integer"),
        ({"max_turns": True}, "limits_for gave max_turns True: Input should be a valid integer"),
        ({"rollout_timeout_s": float("nan")}, "rollout_timeout_s nan: Input should be a finite number"),
        ({"tool_output_chars": 5}, "tool_output_chars 5: Input should be greater than or equal to 200"),
        ({3: 4}, "limits_for gave a limit 3; choose from"),
    ],
    ids=["none", "pairs", "no budget", "zero", "fraction", "text", "bool", "nan", "too small", "no name"],
)
async def test_wrong_limits_are_one_clear_error(limits, said):
    failure = await limited(limits)
    assert failure.error.startswith("ConfigError: environment 'talking': limits_for gave")
    assert said in failure.error


async def test_limits_are_asked_with_the_rollouts_item():
    ended = await played(limiting(lambda self, item: {"max_turns": len(item["id"])}))
    assert isinstance(ended, Trajectory)
