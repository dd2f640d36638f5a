"""An environment that writes 1, 2, 3 into a file, a number each turn; a wrong one is not undone."""

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call
from environments.rollout.branching import first_unsolved
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.terminal import terminal


def last_number(turn):
    return turn.tool_results[0].content.partition("[exit")[0].split()[-1]


class CountUp(TurnLevelRewardMixin, AgentEnv):
    """Count to three in a file of the sandbox; the branch turn follows the first wrong number."""

    name = "count_up"
    tools = (terminal,)
    branch_at = first_unsolved

    def load_items(self):
        return [{"id": "a"}, {"id": "b"}, {"id": "c"}]

    def prepare(self, item, sandbox):
        return []

    def format_prompt(self, item):
        return "Append 1, then 2, then 3 to numbers.txt, one a turn."

    def state_key(self, item, turn, ctx):
        return "".join(ctx.state)

    def respond(self, item, turn, ctx):
        ctx.state.append(last_number(turn))
        if len(ctx.state) == 4:
            ctx.end("four turns")
        return f"next: {len(ctx.state) + 1}"

    async def score_turn(self, item, turn, ctx):
        return float(last_number(turn) == str(turn.index + 1))

    def scripted_choices(self, item, messages, tools, skill):
        number = 1 + sum(message.role == "tool" for message in messages)
        return [
            Choice(
                probability=chance,
                message=call("terminal", {"command": f"echo {said} >> numbers.txt; cat numbers.txt"}),
            )
            for said, chance in ((number, skill), (9, 1 - skill))
        ]
