"""verl: Turnwise's estimators in its registry, and its tool agent with rewards on turns."""

# pyright: basic, reportMissingImports=false
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from environments.trainers.settings import check_own_rollouts, registry_estimators, turn_slices
from tools.errors import ConfigError

ADV_ESTIMATOR_REGISTRY.update(registry_estimators(ADV_ESTIMATOR_REGISTRY))


class TurnRewardOutput(AgentLoopOutput):
    """An agent loop's output with a reward per turn; verl's own has one, on the last token."""

    turn_rewards: list[float | None]
    """One per run of `response_mask`; None is not scored. `reward_score` is added to the last."""

    def as_dict(self) -> dict[str, Any]:
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


def _refuse_turns(inherited: Any) -> Any:
    """Refuse turn rewards in workers that keep one reward: only verl's V1 trainer calls `as_dict`."""

    async def _agent_loop_postprocess(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(output, TurnRewardOutput):
            raise ConfigError("this worker of verl drops rewards of turns: use main_ppo, trainer.use_v1=True")
        return await inherited(self, output, *args, **kwargs)

    return _agent_loop_postprocess


AgentLoopWorker._agent_loop_postprocess = _refuse_turns(AgentLoopWorker._agent_loop_postprocess)


@register("turnwise_tool_agent")
class TurnRewardToolAgentLoop(ToolAgentLoop):
    """verl's `tool_agent` with its tools' rewards as turn rewards."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> TurnRewardOutput:
        """Return verl's output; a turn's reward is the sum over its tool calls.

        Raises:
            ConfigError: if a setting changes the step, see `check_own_rollouts`.
        """
        check_own_rollouts("verl", self.config, self.config.algorithm)
        output = await super().run(sampling_params, **kwargs)
        fields = {name: getattr(output, name) for name in output.model_fields_set}
        turns = len(turn_slices(output.response_mask))
        scores = output.extra_fields["turn_scores"] + [0.0] * turns
        kept = [*scores[: turns - 1], sum(scores[turns - 1 :])] if turns else []  # the response may be cut
        return TurnRewardOutput(**fields, turn_rewards=kept)

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        turns, before = len(turn_slices(agent_data.response_mask)), len(agent_data.tool_rewards)
        state = await super()._handle_processing_tools_state(agent_data)
        agent_data.turn_scores += [0.0] * (turns - len(agent_data.turn_scores))
        agent_data.turn_scores[-1] += sum(agent_data.tool_rewards[before:])
        return state
