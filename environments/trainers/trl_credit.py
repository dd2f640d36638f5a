"""TRL's `GRPOTrainer` (1.16) with turn credit, on rollouts of your own `rollout_func`."""
# pyright: basic, reportMissingImports=false

from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.credit.array_credit import turn_advantages
from environments.trainers.settings import Exact, check_grpo_config, turn_slices
from tools.errors import ConfigError


class TurnCreditGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` that credits `turn_rewards`, `[completion][turn]`, of `rollout_func`.

    A turn is a run of 1 in `env_mask`; a reward of None is not scored. The outcome is the weighted sum of
    `reward_funcs`; a completion without any is not compared and not trained, as in TRL.
    """

    estimator: str = "turn_return"
    params: ClassVar[dict[str, Any]] = {}

    def __init__(self, *given: Any, exact: Exact | None = None, **named: Any) -> None:
        """Take `GRPOTrainer`'s arguments and `exact`, the reaction to settings that change the step."""
        super().__init__(*given, **named)
        check_grpo_config(self.args, exact, own_rollouts=True)

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *given: Any) -> torch.Tensor:
        self._by_func = super()._calculate_rewards(inputs, *given)  # from all processes
        return self._by_func

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        masks = output["completion_mask"] * output.get("tool_mask", 1)
        turns = [turn_slices(mask) for mask in masks.tolist()]
        given = [each.get("turn_rewards") or [] for each in inputs]
        for row, (found, rewards) in enumerate(zip(turns, given, strict=True)):
            if found and len(found) != len(rewards):  # a completion without turns is masked
                raise ConfigError(f"completion {row} has {len(found)} turns and the turn_rewards {rewards}")
        outcomes = (self._by_func * self.reward_weights.to(masks.device)).nansum(dim=1).tolist()
        unscored = self._by_func.isnan().all(dim=1).tolist()
        sizes = [
            [turn.stop - turn.start for turn in found] or [0] * len(rewards)
            for found, rewards in zip(turns, given, strict=True)
        ]
        rows, lengths = (
            [[] if no else row for row, no in zip(gather_object(each), unscored, strict=True)]
            for each in (given, sizes)
        )
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [row // size for row in range(len(rows))]
        credit = turn_advantages(
            rows, groups, outcomes, estimator=self.estimator, lengths=lengths, **self.params
        )
        local = credit[self.accelerator.process_index * len(inputs) :]
        output["advantages"] = torch.zeros(masks.shape, dtype=torch.float32, device=masks.device)
        for row, found in enumerate(turns):
            for turn, advantage in zip(found, local[row], strict=False):
                output["advantages"][row, turn] = advantage
        return output
