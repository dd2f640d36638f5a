"""`word_guess`: find a word of five letters in six guesses, with a reward for what each guess reveals."""

from environments.shipped.word_guess.env import WordGuessEnv

__all__ = ["WordGuessEnv"]
