"""`WordGuessEnv`: find a word of five letters in six guesses, each answered letter by letter."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.shipped.word_guess.game import (
    WORDS,
    Game,
    filter_words,
    format_marks,
    parse_guess,
    parse_marks,
)
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.errors import DatasetError
from tools.sandbox.base import Sandbox

GUESSES = 6
INFORMATION_WEIGHT = 0.5
"""Sum of the turn rewards of a solved game."""
_CONSIDERED = 6

Item = Mapping[str, Any]
"""`answer`, five letters from a to z."""


class WordGuessEnv(TurnLevelRewardMixin, AgentEnv):
    """Six guesses at a word: each turn is worth the information gained, a solved game 1."""

    name = "word_guess"
    sandbox = "none"
    data = ("words.txt",)
    required_fields = ("answer",)
    system_prompt = (
        "Find the secret English word of five letters; you have six guesses. Each is answered with a mark "
        "for every letter: g is right and in place, y is in the word but elsewhere, - is not in it, or not "
        "once more. Answer with the guess alone, or end with it, like <guess>crane</guess>. What is no word "
        "of five letters uses up a guess."
    )

    async def load_items(self) -> Sequence[Item]:
        if not self.config.has_dataset:
            return [{"id": word, "answer": word} for word in WORDS]
        items = await super().load_items()
        for answer in (item["answer"] for item in items):
            if not (isinstance(answer, str) and answer.islower() and parse_guess(answer) == answer):
                raise DatasetError(f"the answer {answer!r:.100} is not five letters from a to z")
        return items

    def format_prompt(self, item: Item) -> str:
        return "Make your first guess."

    def prepare(self, item: Item, sandbox: Sandbox) -> Game:
        return Game.begin(item["answer"])

    async def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str:
        game: Game = ctx.state
        game.turns += 1
        word = parse_guess(turn.message.content)
        if word is None:
            ctx.metrics["invalid_guesses"] = ctx.metrics.get("invalid_guesses", 0) + 1
            answer = "That is no word of five letters.\n"
        else:
            answer = format_marks(word, game.guess(word))
        ctx.metrics["information"] = game.information
        if game.is_solved:
            ctx.end("won")
            return f"{answer}You found it."
        if game.turns == GUESSES:
            ctx.end("lost")
            return f"{answer}No guess is left. It was {game.answer}."
        return f"{answer}Guesses left: {GUESSES - game.turns}."

    def state_key(self, item: Item, turn: Turn | None, ctx: RolloutContext) -> str:
        game: Game = ctx.state
        return " ".join([str(game.turns), *sorted(f"{word}:{marks}" for word, marks in game.facts)])

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float:
        before = ctx.notes.get("information", 0.0)
        ctx.notes["information"] = now = ctx.metrics["information"]
        return INFORMATION_WEIGHT * (now - cast(float, before))

    async def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        return float(trajectory.end_reason == "won")

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly guess a word that fits every reply so far; else any word, or no word."""
        replies = [parse_marks(message.content) for message in messages if message.role == "user"]
        candidates = WORDS
        for guess, marks in filter(None, replies):
            candidates = filter_words(candidates, guess, marks)
        right = [say(f"<guess>{word}</guess>") for word in _spread(candidates or WORDS)]
        clumsy = [say("I am not sure."), say("<guess>guesses</guess>")]
        return mostly(0.2 + 0.79 * skill, right, [say(word) for word in _spread(WORDS)], clumsy)


def _spread(words: Sequence[str]) -> Sequence[str]:
    return words[:: 1 + (len(words) - 1) // _CONSIDERED]
