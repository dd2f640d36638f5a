from environments.shipped.word_guess.env import WordGuessEnv

__all__ = ["WordGuessEnv"]
