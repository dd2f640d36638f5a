"""A Wordle-like game: letters newly in place are a turn's reward, the word the outcome."""

from dataclasses import dataclass

from common import GUESSES, WORD_RULES, WORDS, is_guess, marks

from turnwise import AgentEnv, State, TurnLevelRewardMixin


@dataclass
class Game(State):
    best: int = 0
    gained: int = 0
    solved: bool = False


class WordGame(TurnLevelRewardMixin, AgentEnv):
    name = "word_game"
    system_prompt = WORD_RULES
    sandbox = "none"

    def load_items(self):
        return [{"id": word, "answer": word} for word in WORDS]

    def format_prompt(self, item):
        return "Make your first guess; answer with the word alone."

    def prepare(self, item, sandbox):
        return Game()

    def respond(self, item, turn, ctx):
        guess, game = turn.message.content.strip().lower(), ctx.state
        shown = marks(guess, item["answer"]) if is_guess(guess) else "no word of five letters"
        game.gained = max(0, shown.count("g") - game.best) if is_guess(guess) else 0
        game.best += game.gained
        game.solved = guess == item["answer"]
        if game.solved:
            ctx.end("won")
        elif turn.index == GUESSES - 1:
            ctx.end("lost")
        return shown

    def score_turn(self, item, turn, ctx):
        return 0.1 * ctx.state.gained

    def compute_outcome(self, item, trajectory, ctx):
        return float(ctx.state.solved)
