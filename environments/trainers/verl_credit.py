"""verl: Turnwise's estimators in its registry, and its tool agent with tools' rewards on their turns."""

# pyright: basic, reportMissingImports=false
from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from environments.trainers.registry_estimators import registry_estimators, turn_slices
from environments.trainers.settings import VERL, check_own_rollouts
from environments.trainers.verl_turn_rewards import TurnRewardOutput

ADV_ESTIMATOR_REGISTRY.update(registry_estimators(ADV_ESTIMATOR_REGISTRY))


@register("turnwise_tool_agent")
class TurnRewardToolAgentLoop(ToolAgentLoop):
    """verl's `tool_agent`, which collects its tools' rewards, and trains on none of them."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> TurnRewardOutput:
        """Its output, where a turn's reward is the sum over its tool calls.

        Raises:
            ConfigError: a setting changes the step, see `check_own_rollouts`.
        """
        check_own_rollouts(VERL, self.config, self.config.algorithm)
        output = await super().run(sampling_params, **kwargs)
        fields = {name: getattr(output, name) for name in output.model_fields_set}
        turns = len(turn_slices(output.response_mask))
        scores = output.extra_fields["turn_scores"] + [0.0] * turns
        kept = [*scores[: turns - 1], sum(scores[turns - 1 :])] if turns else []  # of a response that is cut
        return TurnRewardOutput(**fields, turn_rewards=kept)

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        turns, before = len(turn_slices(agent_data.response_mask)), len(agent_data.tool_rewards)
        state = await super()._handle_processing_tools_state(agent_data)
        agent_data.turn_scores += [0.0] * (turns - len(agent_data.turn_scores))
        agent_data.turn_scores[-1] += sum(agent_data.tool_rewards[before:])
        return state
