"""The contract of turn rewards, sentence by sentence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rewards.reward_context import RolloutContext
from environments.rewards.rubric import Rubric
from environments.trajectory import Message, Span, Trajectory, Turn
from environments.turn_level_reward import (
    ScalarScoring,
    TurnLevelRewardMixin,
    aggregate,
    scalar_scoring,
)
from tests.tables import cases
from tools.errors import ConfigError, RewardError


def context():
    return RolloutContext(env="toy", item_id="item-7", sandbox=None, fresh_sandbox=None)


def trajectory_of(turns):
    return Trajectory(
        item_id="item-7",
        turns=tuple(
            Turn(index=k, message=Message(role="assistant"), span=Span(row=0, start=k, end=k + 1))
            for k in range(turns)
        ),
        rows=(),
    )


def env_giving(rewards, outcome=None):
    class Env(TurnLevelRewardMixin):
        async def compute_turn_rewards(self, item, trajectory, ctx):
            return rewards

        async def compute_outcome(self, item, trajectory, ctx):
            return outcome

    return Env()


async def rewards_from(env, turns):
    return await env.scoring()(None, context()).finish(trajectory_of(turns))


async def test_an_environment_that_asks_for_turn_rewards_and_gives_none_is_refused():
    class Misspelt(TurnLevelRewardMixin):
        async def score_turns(self, item, turn, ctx):
            return 1.0

    with pytest.raises(ConfigError, match="write score_turn, compute_turn_rewards or compute_outcome"):
        Misspelt().scoring()


async def test_there_is_one_entry_per_turn_and_none_is_not_zero():
    rewards = await rewards_from(env_giving([0.5, -1, None, 0.0]), 4)
    assert (rewards.turns, rewards.outcome) == ((0.5, -1.0, None, 0.0), None)


SECOND = "'toy', item 'item-7', turn 2: compute_turn_rewards: "


@cases(
    ("given_rewards", "says"),
    [
        *(([1.0] * n, f"gave {n} rewards for 2 turns") for n in (0, 1, 3)),
        *(([0.0, bad], SECOND + ".*finite number") for bad in (math.nan, -math.inf, "1.0", [1.0])),
        *(
            (bad, "give a list with one entry per turn")
            for bad in ({0: 1.0, 1: 2.0}, {1.0, 2.0}, b"12", "12")
        ),
        *((bad, f"compute_turn_rewards gave {bad}") for bad in (None, 1.0)),
        ([0.0, {"a": 1e308, "b": 1e308}], SECOND + "the sum of components"),
        *(([0.0, {name: 1.0}], SECOND + "the name of a component") for name in ("\udcff", 3)),
        ([{"style": math.nan}, 0.0], "turn 1: compute_turn_rewards, component 'style'"),
        ([6e99, 6e99], r"the sum: a reward is at most 1e\+100 either way, got 1.2e\+100"),
        ([0.0, -1e101], SECOND + r".* at most 1e\+100 either way, got -1e\+101"),
    ],
)
async def test_rewards_that_are_none_are_refused_by_environment_item_and_turn(given_rewards, says):
    with pytest.raises(RewardError, match=says):
        await rewards_from(env_giving(given_rewards), 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
async def test_a_bad_outcome_is_an_error(bad):
    with pytest.raises(RewardError, match="compute_outcome"):
        await rewards_from(env_giving([1.0], outcome=bad), 1)


async def test_components_add_up_to_the_reward_and_are_kept():
    rewards = await rewards_from(env_giving([{"a": 0.25, "b": 0.5}, None]), 2)
    assert rewards.turns == (0.75, None)
    assert rewards.turn_components == ({"a": 0.25, "b": 0.5}, {})


async def test_the_score_is_outcome_plus_the_sum_of_turn_rewards():
    assert (await rewards_from(env_giving([0.5, None, 1.0], outcome=2.0), 3)).score == 3.5


async def test_rewards_recorded_while_the_rollout_runs_are_the_default():
    class Env(TurnLevelRewardMixin):
        async def score_turn(self, item, turn, ctx):
            return None if turn.index == 1 else float(turn.index)

    scoring = Env().scoring()(None, context())
    trajectory = trajectory_of(3)
    for turn in trajectory.turns:
        await scoring.on_turn(turn)
    assert (await scoring.finish(trajectory)).turns == (0.0, None, 2.0)


async def test_a_reward_function_that_raises_is_not_swallowed():
    class Env(TurnLevelRewardMixin):
        async def compute_turn_rewards(self, item, trajectory, ctx):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await rewards_from(Env(), 1)


async def test_the_scalar_path_has_no_turn_rewards():
    class Env:
        async def compute_reward(self, item, trajectory, ctx):
            return {"exact": 0.5, "format": 0.25}

    rewards = await ScalarScoring(Env(), None, context()).finish(trajectory_of(2))
    assert (rewards.turns, rewards.score, rewards.outcome) == (None, 0.75, 0.75)


async def test_a_scalar_reward_beside_turn_rewards_would_not_be_asked_for_and_is_refused():
    class Converted(TurnLevelRewardMixin):
        async def score_turn(self, item, turn, ctx):
            return 1.0

        async def compute_reward(self, item, trajectory, ctx):
            return 5.0

    with pytest.raises(ConfigError, match=r"compute_reward, which is not called .* in compute_outcome"):
        Converted().scoring()


async def test_a_scalar_reward_that_is_only_inherited_gives_way_to_turn_rewards():
    class Scalar:
        async def compute_reward(self, item, trajectory, ctx):
            return 5.0

    class Turned(TurnLevelRewardMixin, Scalar):
        async def score_turn(self, item, turn, ctx):
            return 1.0

    env, ctx = Turned(), context()
    ctx.turn_scores.append(1.0)
    assert (await env.scoring()(None, ctx).finish(trajectory_of(1))).score == 1.0


async def test_an_outcome_may_use_a_scalar_reward_of_the_same_environment():
    class Converted(TurnLevelRewardMixin):
        async def compute_reward(self, item, trajectory, ctx):
            return 5.0

        async def compute_outcome(self, item, trajectory, ctx):
            return await self.compute_reward(item, trajectory, ctx)

        async def compute_turn_rewards(self, item, trajectory, ctx):
            return [1.0]

    assert (await rewards_from(Converted(), 1)).score == 6.0


@pytest.mark.parametrize("hook", ["score_turn", "compute_turn_rewards"])
async def test_a_turn_hook_without_the_mixin_would_not_be_asked_for_and_is_refused(hook):
    async def compute_reward(self, item, trajectory, ctx):
        return 1.0

    env = type("Env", (), {"name": "toy", "compute_reward": compute_reward, hook: compute_reward})()
    with pytest.raises(ConfigError, match=rf"writes {hook}, which is called only when TurnLevelRewardMixin"):
        scalar_scoring(env)


async def test_the_scalar_path_refuses_nan_too():
    class Env:
        async def compute_reward(self, item, trajectory, ctx):
            return math.nan

    with pytest.raises(RewardError, match="compute_reward"):
        await ScalarScoring(Env(), None, context()).finish(trajectory_of(1))


TURNS = st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=10)


@given(TURNS, st.none() | st.floats(-1e6, 1e6))
def test_an_unscored_turn_changes_no_aggregate(turns, outcome):
    for how in ("sum", "mean", "outcome"):
        assert aggregate([*turns, None], outcome, how) == aggregate(turns, outcome, how)


def test_aggregates_by_hand():
    turns = [1.0, None, 2.0]
    assert [aggregate(turns, 10.0, how) for how in ("sum", "mean", "outcome")] == [13.0, 11.5, 10.0]


def test_a_mixin_listed_after_the_base_is_refused_at_once():
    class Base:
        def scoring(self):
            raise AssertionError("the scalar path must not be taken")

    with pytest.raises(TypeError, match="before"):

        class Env(Base, TurnLevelRewardMixin):
            pass


RUBRIC = Rubric(answer=2.0, format=0.1)


async def test_a_rubrics_parts_are_kept_weighted_and_raw_per_turn_and_for_the_outcome():
    given = [RUBRIC(answer=1, format=1), 0.5, None]
    rewards = await rewards_from(env_giving(given, outcome=RUBRIC(answer=0, format=1)), 3)
    assert rewards.turns == (2.1, 0.5, None)
    assert rewards.turn_components == ({"answer": 2.0, "format": 0.1}, {}, {})
    assert rewards.turn_raw == ({"answer": 1.0, "format": 1.0}, {}, {})
    assert (rewards.outcome_components, rewards.outcome_raw) == (
        {"answer": 0.0, "format": 0.1},
        {"answer": 0.0, "format": 1.0},
    )


async def test_a_rubrics_parts_are_kept_in_a_scalar_environment_too():
    class Env:
        name = "scalar"

        async def compute_reward(self, item, trajectory, ctx):
            return RUBRIC(answer=1, format=None)

    rewards = await ScalarScoring(Env(), None, context()).finish(trajectory_of(1))
    assert (rewards.score, rewards.outcome_components, rewards.outcome_raw) == (
        2.0,
        {"answer": 2.0},
        {"answer": 1.0},
    )
