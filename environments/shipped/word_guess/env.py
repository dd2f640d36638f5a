"""`WordGuessEnv`: find a word of five letters in six guesses, each answered letter by letter."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.shipped.word_guess.embedded_words import (
    RIGHT,
    WORDS,
    agreeing,
    guess_in,
    marks_of,
    marks_shown,
    shown,
)
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import State, ToolSpec
from tools.errors import DatasetError
from tools.sandbox.base import Sandbox

GUESSES = 6
INFORMATION_WEIGHT = 0.5
"""What all turn rewards of a solved game add up to."""

_CONSIDERED = 6
"""Words that the scripted player chooses among; more would cost time and teach nothing."""

Item = Mapping[str, Any]
"""`answer`, five letters from a to z."""


@dataclass(slots=True, kw_only=True)
class Game(State):
    """One game as far as it was played."""

    answer: str
    candidates: tuple[str, ...]
    """The words that all marks so far allow."""
    all_candidates: int
    turns: int = 0
    facts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Each guess with its marks."""

    @classmethod
    def begin(cls, answer: str) -> "Game":
        words = WORDS if answer in WORDS else (*WORDS, answer)
        return cls(answer=answer, candidates=words, all_candidates=len(words))

    def guess(self, word: str) -> str:
        """The marks of a guess, which every candidate left agrees with."""
        marks = marks_of(word, self.answer)
        self.candidates = agreeing(self.candidates, word, marks)
        self.facts.add((word, marks))
        return marks

    @property
    def information(self) -> float:
        """What was learned so far, as a share of what there was to learn."""
        return 1.0 - math.log(len(self.candidates)) / math.log(self.all_candidates)

    @property
    def is_solved(self) -> bool:
        return (self.answer, RIGHT) in self.facts


class WordGuessEnv(TurnLevelRewardMixin, AgentEnv):
    """Six guesses at a word; a turn is worth the information that it gained, a solved game 1."""

    name = "word_guess"
    sandbox = "none"
    required_fields = ("answer",)
    system_prompt = (
        "Find the secret English word of five letters; you have six guesses. Each is answered with a mark "
        "for every letter: g is right and in place, y is in the word but elsewhere, - is not in it, or not "
        "once more. Answer with the guess alone, or end with it, like <guess>crane</guess>. What is no word "
        "of five letters uses up a guess."
    )

    async def load_items(self) -> Sequence[Item]:
        if not (self.config.dataset_name or self.config.dataset_path):
            return [{"id": word, "answer": word} for word in WORDS][: self.config.max_items]
        items = await super().load_items()
        answers = [item["answer"] for item in items]
        if wrong := [
            each
            for each in answers
            if not (isinstance(each, str) and each.islower() and guess_in(each) == each)
        ]:
            raise DatasetError(f"the answer {wrong[0]!r:.100} is not five letters from a to z")
        return items

    def format_prompt(self, item: Item) -> str:
        return "Make your first guess."

    def prepare(self, item: Item, sandbox: Sandbox) -> Game:
        return Game.begin(item["answer"])

    async def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str:
        """The marks of the guess, and the end of the game when it is solved or lost."""
        game: Game = ctx.state
        game.turns += 1
        word = guess_in(turn.message.content)
        if word is None:
            ctx.metrics["invalid_guesses"] = ctx.metrics.get("invalid_guesses", 0) + 1
            answer = "That is no word of five letters.\n"
        else:
            answer = shown(word, game.guess(word))
        ctx.metrics["information"] = game.information
        if game.is_solved:
            ctx.end("won")
            return f"{answer}You found it."
        if game.turns == GUESSES:
            ctx.end("lost")
            return f"{answer}No guess is left. It was {game.answer}."
        return f"{answer}Guesses left: {GUESSES - game.turns}."

    def state_key(self, item: Item, turn: Turn | None, ctx: RolloutContext) -> str:
        """What is known, in whatever order it was found, and how many guesses are left."""
        game: Game = ctx.state
        return " ".join([str(game.turns), *sorted(f"{word}:{marks}" for word, marks in game.facts)])

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float:
        """The information gained, so that a game's turn rewards never exceed `INFORMATION_WEIGHT`."""
        before = ctx.notes.get("information", 0.0)
        ctx.notes["information"] = now = ctx.metrics["information"]
        return INFORMATION_WEIGHT * (now - cast(float, before))

    async def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        return float(trajectory.end_reason == "won")

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly a word that every reply so far allows, else any word, else no word.

        The player knows the embedded words, and the game from its replies alone.
        """
        replies = [marks_shown(message.content) for message in messages if message.role == "user"]
        candidates = WORDS
        for guess, marks in filter(None, replies):
            candidates = agreeing(candidates, guess, marks)
        right = [say(f"<guess>{word}</guess>") for word in _spread(candidates or WORDS)]
        clumsy = [say("I am not sure."), say("<guess>guesses</guess>")]
        return mostly(0.2 + 0.79 * skill, right, [say(word) for word in _spread(WORDS)], clumsy)


def _spread(words: Sequence[str]) -> Sequence[str]:
    return words[:: 1 + (len(words) - 1) // _CONSIDERED]
