"""Maths with a tool: the last message has to be the right number."""

from common import PROBLEMS

from turnwise import AgentEnv, numeric_match, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


class Maths(AgentEnv):
    name = "maths"
    tools = (multiply,)
    sandbox = "none"

    def load_items(self):
        return PROBLEMS

    def format_prompt(self, item):
        return f"{item['question']} Answer with the number alone."

    def compute_reward(self, item, trajectory, ctx):
        return float(numeric_match(trajectory.acts[-1].message.content, item["answer"]))
