"""verl: an agent loop's output with rewards of turns."""

# pyright: basic, reportMissingImports=false
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker

from environments.trainers.registry_estimators import turn_slices
from tools.errors import ConfigError


class TurnRewardOutput(AgentLoopOutput):
    """An agent loop's output with a reward per turn, where verl's own has one, on its last token."""

    turn_rewards: list[float | None]
    """One for each run of `response_mask`; `None`: not scored. `reward_score` is added to the last."""

    def as_dict(self) -> dict[str, Any]:
        """The row's tensors; `rm_scores` has each turn's reward on its last token."""
        fields = super().as_dict()
        rewards, turns = fields.pop("turn_rewards"), turn_slices(self.response_mask)
        if len(rewards) != len(turns):
            raise ConfigError(
                f"an agent loop's response has {len(turns)} turns and the turn_rewards {rewards}"
            )
        if self.reward_score is not None and rewards:
            rewards[-1] = (rewards[-1] or 0.0) + self.reward_score
        scores = torch.zeros(len(self.response_mask), dtype=torch.float32)
        for turn, reward in zip(turns, rewards, strict=True):
            scores[turn.stop - 1] = float("nan") if reward is None else reward
        return fields | {"rm_scores": scores}


def _refusing_turns(inherited: Any) -> Any:
    """Workers of other trainers than verl's V1 never call `as_dict`, and would keep one reward per row."""

    async def _agent_loop_postprocess(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(output, TurnRewardOutput):
            raise ConfigError("this worker of verl drops rewards of turns: use main_ppo, trainer.use_v1=True")
        return await inherited(self, output, *args, **kwargs)

    return _agent_loop_postprocess


AgentLoopWorker._agent_loop_postprocess = _refusing_turns(AgentLoopWorker._agent_loop_postprocess)
