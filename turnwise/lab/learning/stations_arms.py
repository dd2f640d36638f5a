"""The arms that `turnwise learn` compares at `stations`, each with its own rate, and what they show."""

from collections.abc import Mapping, Sequence

from environments.credit import describe, read_params
from environments.policy.scripted import call
from environments.shipped.stations.env import (
    KEYS,
    RIGHT_KEY,
    SIGNS,
    STATIONS,
    StationsConfig,
    StationsEnv,
    Task,
)
from turnwise.lab.learning.arms import SCALAR, TURN, Arm, LearnedArms, LearningSetup
from turnwise.lab.learning.choice_policy import ChoicePolicy

CONTROL = "control"
"""The arm that can learn nothing."""
UNTUNED_RATE = 0.2
"""For estimators that were not tuned."""
RATES: Mapping[Task, Mapping[str, float]] = {
    "stop": {"turn_return": 4.5, "rloo": 0.28},
    "independent": {"turn_return": 1.1, "rloo": 0.56},
    "delayed": {"turn_return": 0.56, "rloo": 0.56},
    "shuffled": {"turn_return": 0.28, "rloo": 0.56},
}
"""By task and estimator: the fastest of the grid of `tests/benchmarks/learning_rates.py`."""


def exact_success(policy: ChoicePolicy) -> float:
    """How likely it presses eight right keys at eight random signs, from its probabilities alone."""
    messages = [call("press", {"key": key}) for key in KEYS]
    right = [policy.chances(sign, messages)[KEYS.index(RIGHT_KEY[sign])] for sign in SIGNS]
    return (sum(right) / len(right)) ** STATIONS


def stations_setup(config: StationsConfig, *, cap: int) -> LearningSetup:
    """What all arms have in common; no item is rolled out twice while there are enough of them."""
    groups = 2
    return LearningSetup(
        make_env=StationsEnv,
        config=config.model_copy(update={"max_items": groups * cap}),
        groups=groups,
        cap=cap,
        success=exact_success,
    )


def stations_arms(task: Task, *, estimators: Sequence[str] = ()) -> list[Arm]:
    """Turn credit, scalar credit, the control, and one for each further `NAME[:PARAMETER=VALUE,…]`.

    Raises:
        CreditError: there is no such estimator or parameter, or it compares all groups of a step.
    """

    def arm(name: str, estimator: str, *, permuted: bool = False) -> Arm:
        estimator, _, given = estimator.partition(":")
        settings = [each.partition("=") for each in given.split(",") if each]
        params = read_params(estimator, None, {key: value for key, _, value in settings})
        describe(estimator).refuse_alone()
        rate = RATES[task].get(estimator, UNTUNED_RATE)
        return Arm(name=name, estimator=estimator, params=params, learning_rate=rate, permuted=permuted)

    return [
        arm(TURN, "turn_return"),
        arm(SCALAR, "rloo"),
        *(arm(given, given) for given in dict.fromkeys(estimators) if given != TURN),
        arm(CONTROL, "turn_return", permuted=True),
    ]


def findings(learned: LearnedArms, task: Task) -> list[str]:
    """What the table of steps does not show: whether the runs are what they should be."""
    control, turn, scalar = (learned.steps(name) for name in (CONTROL, TURN, SCALAR))
    arrived = sum(each is not None for each in control)
    found = [
        f"The control, whose advantages changed places among a step's turns, arrived in {arrived} of "
        f"{len(control)}."
    ]
    if task == "delayed" and turn == scalar:
        found.append("All is paid at the last turn, so both credits are the same, and so are the steps.")
    elif task == "delayed":
        found.append(
            "All is paid at the last turn, so the steps must be equal, and they are NOT: this is a defect."
        )
    return found
