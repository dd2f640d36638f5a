"""A program of one's own is the agent: started as a command, recorded at the model endpoint that it calls."""

import random
import sys
from pathlib import Path

from turnwise import AgentEnv, Choice, Command, TurnLevelRewardMixin, call, say

AGENT = Path(__file__).with_name("prices_agent.py")
PRICES = {"apple": 30, "pear": 45, "plum": 12, "fig": 80, "melon": 210}


class Prices(TurnLevelRewardMixin, AgentEnv):
    """A price that was not known yet is worth 0.1, one that was costs 0.1; the right sum is worth 1."""

    name = "prices"
    sandbox = "none"
    failed_score = -1.0  # for an agent that breaks its rollout
    agent = Command([sys.executable, str(AGENT)])

    def load_items(self):
        rng = random.Random(0)
        return [{"id": str(n), "fruits": rng.sample(sorted(PRICES), 3)} for n in range(20)]

    def format_prompt(self, item):
        return f"What do these cost together? {', '.join(item['fruits'])}. Reply with the number alone."

    def score_turn(self, item, turn, ctx):
        known = ctx.notes.setdefault("known", [])
        score = 0.0
        for result in turn.tool_results:
            score += -0.1 if result.content in known else 0.1
            known.append(result.content)
        return score

    def compute_outcome(self, item, trajectory, ctx):
        total = sum(PRICES[fruit] for fruit in item["fruits"])
        return float(trajectory.acts[-1].message.content == str(total))

    def scripted_choices(self, item, messages, tools, skill):
        found = [int(message.content) for message in messages if message.role == "tool"]
        if len(found) == len(item["fruits"]):
            return [Choice(probability=1.0, message=say(str(sum(found))))]
        next_one = call("price", {"fruit": item["fruits"][len(found)]})
        first = call("price", {"fruit": item["fruits"][0]})
        return [
            Choice(probability=skill, message=next_one),
            Choice(probability=1 - skill, message=first),
        ]
