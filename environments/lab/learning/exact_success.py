"""How good a small policy is at `stations`, computed from its probabilities: no rollout and no luck in it."""

from environments.lab.learning.choice_policy import ChoicePolicy
from environments.policy.scripted import call
from environments.stations_env.env import KEYS, RIGHT_KEY, SIGNS, STATIONS


def exact_success(policy: ChoicePolicy) -> float:
    """How likely it presses eight right keys at eight random signs, which are independent of each other."""
    messages = [call("press", {"key": key}) for key in KEYS]
    right = [policy.chances(sign, messages)[KEYS.index(RIGHT_KEY[sign])] for sign in SIGNS]
    return (sum(right) / len(right)) ** STATIONS
