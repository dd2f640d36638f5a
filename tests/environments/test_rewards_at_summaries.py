"""Rewards where the policy sums up: hooks score acts alone, and `None` is put at the summaries."""

from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, say
from environments.rewards.rubric import Rubric
from environments.rollout.context import summarise
from environments.turn_level_reward import TurnLevelRewardMixin
from turnwise import AgentEnv

RUBRIC = Rubric(length=2.0)


class Chat(TurnLevelRewardMixin, AgentEnv):
    """Somebody listens, and nothing is kept word for word for long."""

    name = "chat"
    sandbox = "none"
    condenser = summarise(every=1, keep_last=0)

    def load_items(self):
        return [{"id": "a"}]

    def format_prompt(self, item):
        return "Tell a story."

    def respond(self, item, turn, ctx):
        return "Go on."

    def score_turn(self, item, turn, ctx):
        ctx.notes.setdefault("seen", []).append((turn.kind, len(ctx.turn_scores)))
        return RUBRIC(length=len(ctx.turn_scores) / 4)

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("Once."))]

    def scripted_summary(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("They told of once."))]


async def run(cls=Chat, **settings):
    async with cls(AgentEnvConfig(group_size=2, max_turns=3, **settings)) as env:
        return await env.run_group(env.tasks()[0])


async def trajectory_of(cls=Chat, **settings):
    done = await run(cls, **settings)
    assert done.group.failures == ()
    return done.group.trajectories[0]


def kinds(trajectory):
    return "".join(turn.kind[0] for turn in trajectory.turns)


async def test_summaries_have_no_reward_and_no_parts():
    trajectory = await trajectory_of()

    assert kinds(trajectory) == "asasa"
    assert trajectory.rewards.turns == (0.0, None, 0.5, None, 1.0)
    assert trajectory.rewards.turn_components == ({"length": 0.0}, {}, {"length": 0.5}, {}, {"length": 1.0})
    assert trajectory.rewards.turn_raw[1] == {}
    assert trajectory.act_rewards == (0.0, 0.5, 1.0)


async def test_score_turn_is_asked_of_acts_alone():
    seen = []

    class Noting(Chat):
        def compute_outcome(self, item, trajectory, ctx):
            seen.append(ctx.notes["seen"])

    await trajectory_of(Noting)
    assert seen == [[("act", 0), ("act", 1), ("act", 2)]] * 2


async def test_rewards_for_all_turns_are_refused_by_the_name_of_what_they_are_for():
    class PerTurn(Chat):
        def compute_turn_rewards(self, item, trajectory, ctx):
            return [1.0 for _ in trajectory.turns]

    (failure, _) = (await run(PerTurn)).group.failures
    assert "compute_turn_rewards (loop over trajectory.acts: 2 of 5 turns sum up)" in failure.error
    assert "gave 5 rewards for 3 acts; give one entry per act" in failure.error


async def test_rewards_for_all_turns_refuse_the_group_since_dropping_one_would_select_on_behaviour():
    class PerTurn(Chat):
        def compute_turn_rewards(self, item, trajectory, ctx):
            return [1.0 for _ in (trajectory.turns if trajectory.sibling else trajectory.acts)]

    credited = await run(PerTurn)
    assert [(each.sibling, each.refuses_group) for each in credited.group.failures] == [(1, True)]
    assert credited.status == "failed"


async def test_rewards_of_acts_are_spread_over_all_turns():
    class PerAct(Chat):
        def compute_turn_rewards(self, item, trajectory, ctx):
            return [float(number) for number, _ in enumerate(trajectory.acts)]

    assert (await trajectory_of(PerAct)).rewards.turns == (0.0, None, 1.0, None, 2.0)
