"""What an agent breaks is a score, the floor, and never a missing sibling."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from environments.config import AgentEnvConfig
from environments.record.group_line import decode_group, encode_group
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.run.rescore_run import Replay
from tools.errors import AgentCausedError, ConfigError
from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, call, say, terminal


class Shop(TurnLevelRewardMixin, AgentEnv):
    """The agent of sibling 0 breaks something in its second turn; the others lose 1 in each and win 3."""

    name = "shop"
    tools = (terminal,)
    breaks = ""
    cause = "sandbox_lost"

    def load_items(self):
        return [{"id": "a"}]

    def format_prompt(self, item):
        return "Shop."

    def prepare(self, item, sandbox, ctx):
        ctx.notes["breaks"] = ctx.seed % 2 == 0

    def scripted_choices(self, item, messages, tools, skill):
        if len(messages) > 4:
            return [Choice(probability=1.0, message=say("bye"))]
        return [Choice(probability=1.0, message=call("terminal", {"command": "true"}))]

    def _break_at(self, where, ctx):
        if self.breaks == where and ctx.notes["breaks"]:
            raise AgentCausedError(f"it broke {where}", cause=self.cause)

    def respond(self, item, turn, ctx):
        if turn.index == 1:
            self._break_at("respond", ctx)

    def score_turn(self, item, turn, ctx):
        if turn.index == 1:
            self._break_at("score_turn", ctx)
        return -1.0

    def compute_outcome(self, item, trajectory, ctx):
        self._break_at("compute_outcome", ctx)
        return 3.0


class Plain(AgentEnv):
    """The same with one reward for the whole."""

    name = "plain"
    tools = (terminal,)
    load_items, format_prompt, prepare = Shop.load_items, Shop.format_prompt, Shop.prepare
    scripted_choices = Shop.scripted_choices

    def compute_reward(self, item, trajectory, ctx):
        if ctx.notes["breaks"]:
            raise AgentCausedError("it broke", cause="unusable_answer")
        return 3.0


async def group_of(cls, *, size=4, **settings):
    async with cls(AgentEnvConfig(group_size=size, scripted_skill=1.0, **settings)) as env:
        return await env.run_group(env.tasks()[0])


def broken(credited):
    return [each for each in credited.group.trajectories if each.agent_caused is not None]


def breaking(where, cls=Shop, **attributes):
    return type(cls.__name__, (cls,), {"breaks": where, **attributes})


@pytest.mark.parametrize(
    ("where", "turns", "stop_reason"),
    [
        ("respond", (-1.0, None), "sandbox_lost"),
        ("score_turn", (-1.0, None), "sandbox_lost"),
        ("compute_outcome", (-1.0, -1.0, -1.0), "completed"),
    ],
)
async def test_turn_rewards_given_so_far_stay_and_the_outcome_is_the_floor(where, turns, stop_reason):
    credited = await group_of(breaking(where), failed_score=-5.0)
    assert broken(credited)
    assert not credited.group.failures
    for each in broken(credited):
        rewards = each.rewards
        assert (rewards.turns, rewards.outcome, dict(rewards.outcome_components)) == (
            turns,
            -5.0,
            {"failed": -5.0},
        )
        assert each.stop_reason == stop_reason


async def test_the_turn_in_which_it_broke_has_its_tokens_and_the_credit_of_the_floor():
    credited = await group_of(breaking("respond"), failed_score=-5.0)
    pairs = zip(credited.group.trajectories, credited.advantages, strict=True)
    assert broken(credited)
    for trajectory, advantages in pairs:
        if trajectory.agent_caused is not None:
            last = trajectory.turns[-1]
            assert (last.index, last.span.end) == (1, len(trajectory.rows[0].token_ids))
            assert advantages[1] < 0


async def test_a_scalar_environment_scores_it_with_the_floor():
    credited = await group_of(type("Own", (Plain,), {"failed_score": -2.0}))
    assert {each.score for each in broken(credited)} == {-2.0}


async def test_it_counts_among_the_siblings_that_a_group_needs():
    credited = await group_of(breaking("respond"), min_group_size=4)
    assert (credited.status, len(credited.group.trajectories)) == ("ok", 4)


async def test_where_no_outcomes_are_written_the_floor_refuses_no_group():
    credited = await group_of(
        breaking("score_turn", compute_outcome=TurnLevelRewardMixin.compute_outcome),
        failed_score=-9.0,
    )
    assert (credited.status, credited.reason, len(broken(credited)) > 0) == ("ok", None, True)


async def test_score_group_gets_the_others_and_the_floor_misses_no_part():
    seen = []

    def score_group(self, item, trajectories, ctx):
        seen.extend(trajectories)
        return [1.0] * len(trajectories)

    credited = await group_of(breaking("compute_outcome", score_group=score_group))
    assert credited.status == "ok"
    assert len(seen) == 4 - len(broken(credited))
    assert {each.rewards.group for each in broken(credited)} == {None}


async def test_the_record_keeps_cause_and_floor_and_counts_them():
    credited = await group_of(breaking("respond"))
    again = decode_group(encode_group(credited), __file__, 1)
    assert again == credited
    summary = Summary()
    summary.add(again)
    rows = dict(summary_rows(summary.values(), wall_s=0.0))
    assert rows["broken by agents"] == f"sandbox_lost {len(broken(credited))} (scored with failed_score)"


async def test_rewards_computed_anew_keep_the_floor():
    cls = breaking("respond")
    credited = await group_of(cls)
    async with cls(AgentEnvConfig(group_size=4, failed_score=-7.0)) as env:
        again = await Replay(env, lambda _: nullcontext()).rescore_group(credited)
    assert {each.rewards.turns for each in broken(again)} == {(-1.0, None)}
    assert {each.rewards.outcome for each in broken(again)} == {-7.0}


async def test_what_breaks_before_the_agent_has_acted_drops_the_sibling():
    def prepare(self, item, sandbox, ctx):
        raise AgentCausedError("too early", cause="sandbox_lost")

    credited = await group_of(breaking("", prepare=prepare))
    assert {each.error for each in credited.group.failures} == {"AgentCausedError: too early"}


async def test_a_file_that_a_reward_cannot_read_is_the_agents_doing():
    async def compute_outcome(self, item, trajectory, ctx):
        return float(await ctx.sandbox.read_file("answer"))

    credited = await group_of(breaking("", compute_outcome=compute_outcome))
    assert {each.agent_caused.cause for each in credited.group.trajectories} == {"unreadable_files"}


@pytest.mark.parametrize(
    ("others", "floors"), [([AgentCausedError("b", cause="unusable_answer")], 4), ([ValueError("mine")], 0)]
)
async def test_several_errors_at_once_are_the_agents_doing_where_all_of_them_are(others, floors):
    async def compute_outcome(self, item, trajectory, ctx):
        raise ExceptionGroup("of a TaskGroup", [AgentCausedError("a", cause="unusable_answer"), *others])

    assert len(broken(await group_of(breaking("", compute_outcome=compute_outcome)))) == floors


async def test_an_error_of_the_authors_own_still_drops_the_sibling_and_is_counted_as_after_acting():
    def compute_outcome(self, item, trajectory, ctx):
        return float(Path("/no/such/file").read_text())

    credited = await group_of(breaking("", compute_outcome=compute_outcome))
    summary = Summary()
    summary.add(credited)
    rows = dict(summary_rows(summary.values(), wall_s=0.0))
    assert rows["dropped after acting"] == "FileNotFoundError 4"


@pytest.mark.parametrize("value", [float("nan"), "0", None, True])
def test_a_floor_that_is_no_number_is_refused(value):
    with pytest.raises(ConfigError, match=r"failed_score of 'shop' is .*; give a finite number"):
        type("Own", (Shop,), {"failed_score": value})()
