"""A Wordle-like game: a guess is a tool call, for the rollout ends at a message without one."""

from common import GUESSES, WORD_RULES, WORDS, is_guess, marks
from datasets import Dataset


class WordGame:
    def reset(self, answer, **kwargs):
        self.answer, self.best, self.guesses, self.solved = answer, 0, 0, False

    def guess(self, word: str) -> str:
        """Make a guess.

        Args:
            word: A word of five letters.

        Returns:
            A mark for every letter.
        """
        word = word.strip().lower()
        if self.solved or self.guesses == GUESSES:
            return "the game is over; answer without calling a tool"
        self.guesses += 1
        self.solved = word == self.answer
        if not is_guess(word):
            return "no word of five letters"
        shown = marks(word, self.answer)
        self.best = max(self.best, shown.count("g"))
        return shown

    def get_reward(self) -> float:
        return 0.1 * self.best + float(self.solved)


DATASET = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": WORD_RULES},
                {"role": "user", "content": "Make your first guess, with the tool."},
            ],
            "answer": word,
        }
        for word in WORDS
    ]
)
TRAINER = {"train_dataset": DATASET, "environment_factory": WordGame}
