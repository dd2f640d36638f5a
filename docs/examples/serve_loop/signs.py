"""`Signs`: each turn shows a sign, and the answer is a key; a wrong one ends the conversation."""

import random

from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, say

SIGNS = ("north", "south", "east", "west", "sun", "moon", "star", "rain")
KEYS = ("a", "b", "c", "d")
RIGHT = {sign: KEYS[index % len(KEYS)] for index, sign in enumerate(SIGNS)}
TURNS = 6


class Signs(TurnLevelRewardMixin, AgentEnv):
    """Six signs; each right key is worth 1/6."""

    name = "signs"
    sandbox = "none"

    async def load_items(self):
        rng = random.Random(0)
        return [{"id": str(number), "signs": rng.choices(SIGNS, k=TURNS)} for number in range(10_000)]

    def format_prompt(self, item):
        return item["signs"][0]

    async def respond(self, item, turn, ctx):
        done = turn.index + 1
        if not is_right(item, turn) or done == TURNS:
            ctx.end("a wrong key" if done < TURNS else "the last sign")
            return None
        return item["signs"][done]

    async def score_turn(self, item, turn, ctx):
        return is_right(item, turn) / TURNS

    def scripted_choices(self, item, messages, tools, skill):
        """Any key at skill 0, the right one at skill 1: what the model is warm-started with."""
        right = RIGHT.get(messages[-1].content)
        return [
            Choice(probability=(1 - skill) / len(KEYS) + skill * (key == right), message=say(key))
            for key in KEYS
        ]


def is_right(item, turn):
    return turn.message.content.strip() == RIGHT[item["signs"][turn.index]]
