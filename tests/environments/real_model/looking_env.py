"""A task for a tiny model: look keys up until the right one is found, and say what it holds."""

from environments.base_env import AgentEnv
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox

HOLDS = {f"k{number}": str(number * 7 % 10) for number in range(8)}


@tool
def look(sandbox: Sandbox, key: str) -> str:
    """Say what a key holds.

    Args:
        key: One of k0 to k7.
    """
    return HOLDS.get(key, "nothing")


def question(key: str) -> str:
    return f"What does {key} hold?"


class Looking(TurnLevelRewardMixin, AgentEnv):
    """With a reward for each turn that runs a tool, and one for the answer."""

    name = "looking"
    tools = (Toolset("keys", (look,)),)

    async def load_items(self):
        return [{"id": key, "key": key} for key in HOLDS]

    def format_prompt(self, item):
        return question(item["key"])

    def score_turn(self, item, turn, ctx):
        if not turn.tool_results:
            return None
        return float(any(result.content == HOLDS[item["key"]] for result in turn.tool_results))

    def compute_outcome(self, item, trajectory, ctx):
        return float(HOLDS[item["key"]] in trajectory.turns[-1].message.content)
