"""verl: a credited group as the output of one agent loop, and an estimator that leaves its advantages alone.

Import it where verl starts: `VERL_USE_EXTERNAL_MODULES=environments.trainers.verl`. Settings and an example
are in docs/trainers.md.
"""

# verl and torch are in no lock, so that their names have no types here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUntypedFunctionDecorator=false

from abc import abstractmethod
from collections.abc import Collection
from typing import Any
from uuid import uuid4

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.core_algos import register_adv_est

from environments.trainers.completion_columns import (
    CompletionColumns,
    completion_columns,
    groups_left_out,
    mean_score,
)
from environments.trainers.in_process_policy import Sample, Sampled, Wanted
from environments.trainers.settings import ESTIMATOR, Exact, check_settings
from environments.trajectory import SEVERAL_VERSIONS, CreditedGroup, Trajectory
from tools.errors import PolicyError


@register_adv_est(ESTIMATOR)
def turnwise_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Advantages and returns `[row, token]`: both are the token-level rewards, where a token is trained."""
    advantages = token_level_rewards * response_mask
    return advantages, advantages


class CreditedOutput(AgentLoopOutput):
    """One token row. verl's own output has one reward, which it puts on the last token."""

    advantages: list[float]
    """Per token of the response."""

    def as_dict(self) -> dict[str, Any]:
        """The row's tensors; `rm_scores` are its advantages."""
        fields: dict[str, Any] = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("advantages"), dtype=torch.float32)
        return fields


def outputs_of(credited: CreditedGroup, *, version: int) -> list[CreditedOutput]:
    """The token rows of a group, sampled from weights of this `version` where the server gave no numbers.

    There are none of a group without credit, nor of one with an advantage too large for a trainer, which is
    warned of.
    """
    if credited.status != "ok":
        return []
    columns = CompletionColumns()
    with groups_left_out():
        columns = completion_columns(credited)
    trajectories = credited.group.trajectories
    info = {"turnwise_score": mean_score(trajectories)}
    outputs: list[CreditedOutput] = []
    rows = [(trajectory, index) for trajectory in trajectories for index in range(len(trajectory.rows))]
    for row, (trajectory, index) in enumerate(rows if columns.rows else ()):
        oldest, newest = _versions(trajectory, index, version)
        logprobs = {} if columns.logprobs is None else {"response_logprobs": columns.logprobs[row]}
        output = CreditedOutput(
            prompt_ids=columns.prompt_ids[row],
            response_ids=columns.completion_ids[row],
            response_mask=columns.tool_mask[row],
            advantages=columns.advantages[row],
            reward_score=0.0,  # so that no reward function is asked; `rm_scores` has what counts
            num_turns=len(trajectory.turns),
            metrics=AgentLoopMetrics(),
            extra_fields={
                "reward_extra_info": info,
                "min_global_steps": oldest,
                "max_global_steps": newest,
            },
            **logprobs,
        )
        outputs.append(output)
    return outputs


def _versions(trajectory: Trajectory, row: int, version: int) -> tuple[int, int]:
    """The oldest and the newest weights that sampled a row, as verl counts its updates."""
    turns = [turn for turn in trajectory.turns if turn.span.row == row]
    named = [each for turn in turns for each in turn.weight_versions]
    steps = [int(each) if each is not None and each.isdecimal() else version for each in named]
    return min(steps, default=version), max(steps, default=version)


def check_config(config: Any, *, exact: Exact | None = None) -> None:
    """Hold verl's whole config to what is known about its settings.

    Raises:
        ConfigError: a setting is refused.
    """
    check_settings("verl", config, exact=exact)


def sampler_of(server_manager: Any, stop_ids: Collection[int]) -> Sample:
    """How an `InProcessPolicy` samples by verl's own client, which resumes turns that an update aborted.

    Args:
        server_manager: that of an agent loop.
        stop_ids: those that end a turn, of the policy's renderer.
    """
    # No seed: what is resumed would draw the same numbers again.
    fixed = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    ends = {"stop_token_ids": [*stop_ids], "ignore_eos": True}

    async def sample(wanted: Wanted) -> Sampled:
        given = await server_manager.generate(
            uuid4().hex,
            prompt_ids=[*wanted.prompt_ids],
            sampling_params={**fixed, **ends, "max_tokens": wanted.max_tokens},
        )
        if given.stop_reason == "aborted":  # where `partial_rollout` is off
            raise PolicyError("verl aborted the turn for an update of the weights, and does not resume it")
        found = [given.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")]
        versions = dict.fromkeys(str(each) for each in found if each is not None)
        return Sampled(
            token_ids=tuple(given.token_ids),
            logprobs=tuple(given.log_probs),
            weight_version=SEVERAL_VERSIONS.join(versions) or None,
        )

    return sample


class TurnwiseAgentLoop(AgentLoopBase):
    """Rolls out a whole group as one session of verl, so that siblings are compared: `rollout.n` is 1."""

    exact: Exact | None = None
    """What becomes of settings that change the step."""

    def __init__(self, trainer_config: Any, *args: Any, **kwargs: Any) -> None:
        """What verl gives to every agent loop.

        Raises:
            ConfigError: a setting of verl's is refused.
        """
        super().__init__(trainer_config, *args, **kwargs)
        check_config(self.config, exact=self.exact)

    @abstractmethod
    async def credited_group(self, sampling_params: dict[str, Any], **item: Any) -> CreditedGroup:
        """`AgentEnv.run_group`, and `withhold_stale`, for the item that the dataset's columns describe."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[CreditedOutput]:
        """The group's token rows, each a trajectory to verl."""
        credited = await self.credited_group(sampling_params, **kwargs)
        return outputs_of(credited, version=kwargs["global_steps"])
