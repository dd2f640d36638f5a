"""SkyRL: Turnwise's estimators in its registry, over the step rewards of its own generator.

Import it where SkyRL starts, make the trainer of `TurnMasks` and SkyRL's, and set
`trainer.algorithm.advantage_estimator=turn_return`. For rollouts that SkyRL makes; those of an environment
have the adapter `environments.trainers.skyrl`.
"""

# skyrl is in no lock, so that its names have no types here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from functools import partial
from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimator, register_advantage_estimator

from environments.trainers.registry_estimators import registry_estimators
from tools.errors import ConfigError


class TurnMasks:
    """Has SkyRL's trainer show its estimators turns: `class MyTrainer(TurnMasks, RayPPOTrainer): ...`."""

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """As SkyRL's, with the mask of sampled tokens in place of that of the whole response."""
        whole = data["response_mask"]
        data["response_mask"] = data["loss_mask"].bool()  # SkyRL's own masks are of numbers
        inherited: Any = super()
        data = inherited.compute_advantages_and_returns(data)
        data["response_mask"] = whole
        return data


def _estimate(
    estimate: Callable[..., tuple[Any, Any]], *, response_mask: Any, **given: Any
) -> tuple[Any, Any]:
    """Raises ConfigError where the mask has no turns."""
    if "bool" not in str(response_mask.dtype):
        raise ConfigError(
            "the mask is that of the whole response, with what the environment replied: make the trainer of "
            "environments.trainers.skyrl_credit.TurnMasks, and leave generator.step_wise_trajectories off"
        )
    return estimate(response_mask=response_mask, **given)


for _name, _estimator in registry_estimators({each.value for each in AdvantageEstimator}).items():
    register_advantage_estimator(_name)(partial(_estimate, _estimator))
