"""verl: Turnwise's estimators in its registry, and its tool agent with tools' rewards on their turns."""

# pyright: basic, reportMissingImports=false
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.trainer.ppo.core_algos import AdvantageEstimator, register_adv_est

from environments.trainers.registry_estimators import registry_estimators, turn_slices
from tools.errors import ConfigError

for _name, _estimator in registry_estimators({each.value for each in AdvantageEstimator}).items():
    register_adv_est(_name)(_estimator)


class TurnRewardOutput(AgentLoopOutput):
    """An agent loop's output with a reward per turn, where verl's own has one, on its last token."""

    turn_rewards: list[float | None]
    """One for each run of `response_mask`; `None`: not scored. `reward_score` is added to the last."""

    def as_dict(self) -> dict[str, Any]:
        """The row's tensors; `rm_scores` has each turn's reward on its last token."""
        fields = super().as_dict()
        rewards = fields.pop("turn_rewards")
        if self.reward_score is not None and rewards:
            rewards[-1] = (rewards[-1] or 0.0) + self.reward_score
        scores = torch.zeros(len(self.response_mask), dtype=torch.float32)
        for turn, reward in zip(turn_slices(self.response_mask), rewards, strict=True):
            scores[turn.stop - 1] = float("nan") if reward is None else reward
        return fields | {"rm_scores": scores}


@register("turnwise_tool_agent")
class TurnRewardToolAgentLoop(ToolAgentLoop):
    """verl's `tool_agent`, which collects its tools' rewards, and trains on none of them."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> TurnRewardOutput:
        """Its output, where a turn's reward is the sum over its tool calls."""
        if not self.config.trainer.use_v1:
            raise ConfigError("verl's legacy trainer drops rewards of turns; set trainer.use_v1=True")
        output = await super().run(sampling_params, **kwargs)
        fields = {name: getattr(output, name) for name in output.model_fields_set}
        scores, turns = output.extra_fields["turn_scores"], len(turn_slices(output.response_mask))
        kept = [*scores[: turns - 1], sum(scores[turns - 1 :])] if turns else []  # of a response that is cut
        return TurnRewardOutput(**fields, turn_rewards=kept)

    async def _handle_generating_state(self, agent_data: Any, *args: Any, **kwargs: Any) -> Any:
        before = sum(agent_data.response_mask)
        state = await super()._handle_generating_state(agent_data, *args, **kwargs)
        agent_data.turn_scores += [0.0] * (sum(agent_data.response_mask) > before)  # if something was sampled
        return state

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        before = len(agent_data.tool_rewards)
        state = await super()._handle_processing_tools_state(agent_data)
        agent_data.turn_scores[-1] += sum(agent_data.tool_rewards[before:])
        return state
