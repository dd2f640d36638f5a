"""`Signs`: each turn shows a sign, and the answer is a key; what a key is paid has noise."""

import random

from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, say

SIGNS = ("north", "south", "east", "west", "sun", "moon", "star", "rain")
KEYS = ("a", "b", "c", "d")
RIGHT = {sign: KEYS[index % len(KEYS)] for index, sign in enumerate(SIGNS)}
TURNS = 8
NOISE = 1.0
"""Standard deviation of what is added to each turn's reward, in right keys."""


class Signs(TurnLevelRewardMixin, AgentEnv):
    """Eight signs; each right key is worth 1/8, and nothing depends on the turns before."""

    name = "signs"
    sandbox = "none"

    async def load_items(self):
        rng = random.Random(0)
        return [{"id": str(number), "signs": rng.choices(SIGNS, k=TURNS)} for number in range(10_000)]

    def format_prompt(self, item):
        return item["signs"][0]

    async def respond(self, item, turn, ctx):
        done = turn.index + 1
        return item["signs"][done] if done < TURNS else None

    async def score_turn(self, item, turn, ctx):
        right = turn.message.content.strip() == RIGHT[item["signs"][turn.index]]
        ctx.metrics["right"] = (
            ctx.metrics.get("right", 0.0) + right / TURNS
        )  # without the noise: what is learned
        return (right + random.Random(f"{ctx.seed} {turn.index}").gauss(0, NOISE)) / TURNS

    def scripted_choices(self, item, messages, tools, skill):
        """Any key at skill 0, the right one at skill 1: what the model is warm-started with."""
        right = RIGHT.get(messages[-1].content)
        return [
            Choice(probability=(1 - skill) / len(KEYS) + skill * (key == right), message=say(key))
            for key in KEYS
        ]
