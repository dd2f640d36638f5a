"""The game: eight signs, one after the other, a letter for each, and rewards with noise."""

import random

from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, say

SIGNS = ("one", "two", "up", "left", "time", "line", "code", "file")
LETTERS = "abcdefgh"
RIGHT = dict(zip(SIGNS, LETTERS, strict=True))
LENGTH = 8
NOISE = 1.0
"""Standard deviation of what is added to each turn's reward, in right letters: a judge is not sure either."""


class Signs(TurnLevelRewardMixin, AgentEnv):
    """A right letter is worth 1/8, paid at its turn, where nothing depends on the turns before."""

    name = "signs"
    sandbox = "none"

    def load_items(self):
        rng = random.Random(0)
        roads = [[rng.choice(SIGNS) for _ in range(LENGTH)] for _ in range(512)]
        return [{"id": f"road{number}", "signs": signs} for number, signs in enumerate(roads)]

    def format_prompt(self, item):
        return f"sign: {item['signs'][0]}"

    def respond(self, item, turn, ctx):
        ahead = item["signs"][turn.index + 1 :]
        return f"sign: {ahead[0]}" if ahead else None

    def score_turn(self, item, turn, ctx):
        right = turn.message.content == RIGHT[item["signs"][turn.index]]
        ctx.metrics["right"] = (
            ctx.metrics.get("right", 0.0) + right / LENGTH
        )  # without the noise: what is learned
        return (right + random.Random(f"{ctx.seed} {turn.index}").gauss(0, NOISE)) / LENGTH

    def scripted_choices(self, item, messages, tools, skill):
        sign = messages[-1].content.removeprefix("sign: ")
        guess = (1 - skill) / len(LETTERS)
        return [
            Choice(probability=guess + skill * (RIGHT[sign] == letter), message=say(letter))
            for letter in LETTERS
        ]
