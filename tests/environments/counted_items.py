"""An environment without tools or a sandbox: ten items, whose rollouts score by the length of an answer."""

import io

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, say


class Counted(AgentEnv):
    """Answers are one or two letters long."""

    name = "counted"
    sandbox = "none"
    size = 10

    def load_items(self):
        return [{"id": f"i{n}", "share": n} for n in range(self.size)][: self.config.max_items]

    def format_prompt(self, item):
        return f"Task {item['id']}."

    def compute_reward(self, item, trajectory, ctx):
        return float(len(trajectory.acts[-1].message.content) == 2)

    def scripted_choices(self, item, messages, tools, skill):
        right, wrong = say("ab"), say("a")
        return [Choice(probability=skill, message=right), Choice(probability=1 - skill, message=wrong)]


def counted(cls=Counted, **fields):
    fields.setdefault("group_size", 2)
    return cls(AgentEnvConfig(**fields))


def shown_console():
    return Console(file=io.StringIO(), width=300)
