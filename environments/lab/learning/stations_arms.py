"""The arms that `turnwise learn` compares at `stations`, each with the learning rate that suits it."""

from collections.abc import Mapping, Sequence
from typing import get_args

from environments.credit import describe
from environments.lab.learning.exact_success import exact_success
from environments.lab.learning.learned_arms import CONTROL, SCALAR, TURN
from environments.lab.learning.run_arm import Arm, LearningSetup, NetworkKind
from environments.stations_env.env import StationsConfig, StationsEnv, Task

SAME_RATE: Mapping[NetworkKind, float] = {"table": 0.2, "mlp": 0.003}
"""For all arms, and for estimators that nobody tuned."""
RATES: Mapping[NetworkKind, Mapping[Task, Mapping[str, float]]] = {
    "table": {
        "stop": {"turn_return": 4.5, "rloo": 0.28},
        "independent": {"turn_return": 1.1, "rloo": 0.56},
        "delayed": {"turn_return": 0.56, "rloo": 0.56},
        "shuffled": {"turn_return": 0.28, "rloo": 0.56},
    },
    "mlp": {task: {"turn_return": 0.003, "rloo": 0.003} for task in get_args(Task)},
}
"""By network, task and estimator: the fastest of the grid of `tests/benchmarks/learning_rates.py`."""


def stations_setup(config: StationsConfig, network: NetworkKind, *, cap: int) -> LearningSetup:
    """What all arms have in common; no item is rolled out twice while there are enough of them."""
    groups = 2
    return LearningSetup(
        env_cls=StationsEnv,
        config=config.model_copy(update={"max_items": groups * cap}),
        network=network,
        groups=groups,
        cap=cap,
        success=exact_success,
    )


def stations_arms(
    task: Task, network: NetworkKind, *, is_same_rate: bool, estimators: Sequence[str] = ()
) -> list[Arm]:
    """Turn credit, scalar credit, the control, and one for each further estimator.

    Raises:
        CreditError: there is no such estimator.
    """
    rates: Mapping[str, float] = {} if is_same_rate else RATES[network][task]

    def arm(name: str, estimator: str, *, permuted: bool = False) -> Arm:
        rate = rates.get(estimator, SAME_RATE[network])
        return Arm(name=name, estimator=estimator, learning_rate=rate, permuted=permuted)

    further = [describe(name).name for name in dict.fromkeys(estimators) if name != TURN]
    return [
        arm(TURN, "turn_return"),
        arm(SCALAR, "rloo"),
        *(arm(name, name) for name in further),
        arm(CONTROL, "turn_return", permuted=True),
    ]
