"""An environment in which a simulated user talks, and a judge scores each turn and the whole."""

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, say
from environments.rewards.judge import quoted
from environments.rollout.simulated_user import SimulatedUser
from environments.turn_level_reward import TurnLevelRewardMixin

PERSONAS = ("Ada wants a cat", "Bob wants a dog")


class Talk(TurnLevelRewardMixin, AgentEnv):
    """The scripted user says three things; the scripted judge likes `meow`."""

    name = "talk"
    sandbox = "none"
    user = SimulatedUser(max_replies=3)

    def load_items(self):
        return [{"id": persona[:3], "persona": persona} for persona in PERSONAS]

    async def format_prompt(self, item, ctx):
        return await self.user.opening(ctx, persona=item["persona"])

    async def respond(self, item, turn, ctx):
        return await self.user.reply(ctx, persona=item["persona"])

    async def score_turn(self, item, turn, ctx):
        return await ctx.judge(f"Rate {quoted(turn.message.content)}", turn=turn)

    def scripted_choices(self, item, messages, tools, skill):
        return [
            Choice(probability=0.5, message=say("meow")),
            Choice(probability=0.5, message=say("woof")),
        ]

    def scripted_judge(self, item, messages):
        return f'Well.\n```json\n{{"score": {float("meow" in messages[-1].content)}}}\n```'

    def scripted_user(self, item, messages):
        replies = sum(message.role == "assistant" for message in messages)
        return (f"Hello, {item['persona']}.", "And?", "Thanks!\n###STOP###")[replies]


def talk(cls=Talk, *, servers=None, **settings):
    """A small one, without waits between tries."""
    return cls(AgentEnvConfig(**{"group_size": 2, "min_group_size": 1, **settings}), servers)
