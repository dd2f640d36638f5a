"""The game: six signs, one after the other, and a letter for each. A wrong one ends it."""

import random

from pydantic import Field

from environments.config import AgentEnvConfig
from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, say

SIGNS = ("one", "two", "up", "left", "time", "line", "code", "file")
LETTERS = "abcdefgh"
RIGHT = dict(zip(SIGNS, LETTERS, strict=True))
LENGTH = 6


class SignsConfig(AgentEnvConfig):
    """Settings of the game."""

    practice: bool = Field(default=False, description="Go on after a wrong letter.")


class Signs(TurnLevelRewardMixin, AgentEnv):
    """A right letter is worth 1/6, paid at its turn."""

    name = "signs"
    sandbox = "none"
    env_config_cls = SignsConfig

    def load_items(self):
        rng = random.Random(0)
        roads = [[rng.choice(SIGNS) for _ in range(LENGTH)] for _ in range(512)]
        return [{"id": f"road{number}", "signs": signs} for number, signs in enumerate(roads)]

    def format_prompt(self, item):
        return f"sign: {item['signs'][0]}"

    def respond(self, item, turn, ctx):
        ahead = item["signs"][turn.index + 1 :]
        goes_on = self.config.practice or is_right(item, turn)
        return f"sign: {ahead[0]}" if ahead and goes_on else None

    def score_turn(self, item, turn, ctx):
        return is_right(item, turn) / LENGTH

    def scripted_choices(self, item, messages, tools, skill):
        sign = messages[-1].content.removeprefix("sign: ")
        guess = (1 - skill) / len(LETTERS)
        return [
            Choice(probability=guess + skill * (RIGHT[sign] == letter), message=say(letter))
            for letter in LETTERS
        ]


def is_right(item, turn):
    """Whether the turn said the letter of its sign."""
    return turn.message.content == RIGHT[item["signs"][turn.index]]
