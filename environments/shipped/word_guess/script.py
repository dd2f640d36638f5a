"""The scripted agent of `word_guess`: it plays by elimination, and makes mistakes as its skill allows."""

from collections.abc import Sequence

from environments.policy.scripted import Choice, choices, say
from environments.shipped.word_guess.embedded_words import WORDS, agreeing, marks_shown
from environments.trajectory import Message

_CONSIDERED = 6
"""Words that it chooses among; more would cost time and teach nothing."""


def word_script(messages: Sequence[Message], skill: float) -> Sequence[Choice]:
    """What comes next: mostly a word that every reply so far allows, else any word, else no word.

    It knows the embedded words, and the game from its replies alone.
    """
    replies = [marks_shown(message.content) for message in messages if message.role == "user"]
    facts = [fact for fact in replies if fact is not None]
    candidates = WORDS
    for guess, marks in facts:
        candidates = agreeing(candidates, guess, marks)
    p_right = 0.2 + 0.79 * skill
    p_other = (1 - p_right) / 2
    right, wrong = _spread(candidates or WORDS), _spread(WORDS)
    clumsy = [say("I am not sure."), say("<guess>guesses</guess>")]
    guesses = [say(f"<guess>{word}</guess>") for word in right]
    return choices((p_right, guesses), (p_other, [say(word) for word in wrong]), (p_other, clumsy))


def _spread(words: Sequence[str]) -> Sequence[str]:
    """Some of the words, from all over them."""
    return words[:: 1 + (len(words) - 1) // _CONSIDERED]
