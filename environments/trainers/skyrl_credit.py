"""SkyRL: Turnwise's estimators in its registry, over the step rewards of SkyRL's own generator.

Import it in SkyRL's entry point, and set `trainer.algorithm.advantage_estimator=turn_return`. Rollouts of an
environment use `environments.trainers.skyrl`.
"""

# skyrl is not locked, so its names have no types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
from skyrl.train.trainer import RayPPOTrainer

from environments.trainers.settings import check_own_rollouts, registry_estimators
from tools.errors import ConfigError


def _show_turns(inherited: Callable[..., Any]) -> Callable[..., Any]:
    """Give our estimators the mask of sampled tokens, where SkyRL gives that of the whole response."""

    @wraps(inherited)
    def compute_advantages_and_returns(self: Any, data: Any) -> Any:
        if self.cfg.trainer.algorithm.advantage_estimator not in _OURS:
            return inherited(self, data)
        check_own_rollouts("SkyRL", self.cfg, self.cfg.trainer.algorithm)
        whole = data["response_mask"]
        data["response_mask"] = data["loss_mask"].bool()  # SkyRL's own masks are numeric
        data = inherited(self, data)
        data["response_mask"] = whole
        return data

    return compute_advantages_and_returns


def _estimate(
    estimate: Callable[..., tuple[Any, Any]], *, response_mask: Any, **given: Any
) -> tuple[Any, Any]:
    if "bool" not in str(response_mask.dtype):
        raise ConfigError(
            "the mask is that of the whole response, with what the environment replied: import "
            "environments.trainers.skyrl_credit where the trainer is made, with step_wise_trajectories off"
        )
    return estimate(response_mask=response_mask, **given)


_known = {name: AdvantageEstimatorRegistry.get(name) for name in AdvantageEstimatorRegistry.list_available()}
_OURS = registry_estimators(_known)
for _name in _OURS.keys() - _known:  # another process may have registered the rest
    AdvantageEstimatorRegistry.register(_name, partial(_estimate, _OURS[_name]))
RayPPOTrainer.compute_advantages_and_returns = _show_turns(RayPPOTrainer.compute_advantages_and_returns)
