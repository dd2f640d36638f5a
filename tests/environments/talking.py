"""An environment whose world answers, without a sandbox: its hooks are noted as they are called."""

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.rollout.items.tasks import GroupTask
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.adversarial.misbehaving_env import no_sandbox
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox

TASK = GroupTask(item={"id": "one"}, item_id="one")


@tool
def look(sandbox: Sandbox) -> str:
    """Look around."""
    return "a door"


class Talking(TurnLevelRewardMixin, AgentEnv):
    """Says what `says` has for each turn, in its order; `plays` is what the agent does."""

    name = "talking"
    tools = (Toolset("acting", (look,)),)
    says = ()
    plays = ()

    def __init__(self, config=None, policy=None):
        super().__init__(config or AgentEnvConfig(group_size=1, min_group_size=1), (), policy=policy)
        self.called = []

    def load_items(self):
        return [{"id": "one"}]

    def open_sandbox(self):
        return no_sandbox()

    def format_prompt(self, item):
        return "begin"

    def respond(self, item, turn, ctx):
        return self.says[turn.index] if turn.index < len(self.says) else None

    def score_turn(self, item, turn, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        index = sum(message.role == "assistant" for message in messages)
        step = self.plays[index] if index < len(self.plays) else "done"
        return [Choice(probability=1.0, message=call("look", {}) if step == "look" else say(step))]


def made(cls, **settings):
    return cls(AgentEnvConfig(**{"group_size": 1, "min_group_size": 1} | settings))


async def played(env):
    """The only rollout: a trajectory, or the failure."""
    group = await env.rollout_group(TASK, 1)
    return (*group.trajectories, *group.failures)[0]


def world(*says, plays=("hello", "hello", "hello"), **hooks):
    """A class whose world says these things, to these words of the agent."""
    return type("World", (Talking,), {"says": says, "plays": plays, **hooks})
