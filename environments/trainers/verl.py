"""verl: a credited group as the output of one agent loop, and an estimator that keeps its advantages.

Import it where verl starts: `VERL_USE_EXTERNAL_MODULES=environments.trainers.verl`. See docs/trainers.md.
"""

# verl and torch are not locked, so their names have no types.
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
from environments.trainers.settings import ESTIMATOR, Exact, check_settings, turnwise_advantages
from environments.trajectory import SEVERAL_VERSIONS, CreditedGroup
from tools.errors import PolicyError

register_adv_est(ESTIMATOR)(turnwise_advantages)


class CreditedOutput(AgentLoopOutput):
    """One token row with an advantage per token; verl's own output has one reward, on the last token."""

    advantages: list[float]

    def as_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("advantages"), dtype=torch.float32)
        return fields


def outputs_of(credited: CreditedGroup, *, version: int) -> list[CreditedOutput]:
    """Return the token rows of a group; `version` is that of the weights where the server gave none.

    A group without credit, or that a trainer cannot use, gives none.
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
        turns = [turn for turn in trajectory.turns if turn.span.row == index]
        named = [each for turn in turns for each in turn.weight_versions]
        steps = [int(each) if each is not None and each.isdecimal() else version for each in named]
        logprobs = {} if columns.logprobs is None else {"response_logprobs": columns.logprobs[row]}
        output = CreditedOutput(
            prompt_ids=columns.prompt_ids[row],
            response_ids=columns.completion_ids[row],
            response_mask=columns.tool_mask[row],
            advantages=columns.advantages[row],
            reward_score=0.0,  # skips reward functions; `rm_scores` counts
            num_turns=len(trajectory.turns),
            metrics=AgentLoopMetrics(),
            extra_fields={
                "reward_extra_info": info,
                "min_global_steps": min(steps, default=version),
                "max_global_steps": max(steps, default=version),
            },
            **logprobs,
        )
        outputs.append(output)
    return outputs


def check_config(config: Any, *, exact: Exact | None = None) -> None:
    """Check verl's whole config; raise ConfigError if a setting changes the step."""
    check_settings("verl", config, exact=exact)


def sampler_of(server_manager: Any, stop_ids: Collection[int]) -> Sample:
    """Return a sampler by verl's own client, which resumes turns that an update aborted."""
    # No seed: a resumed turn would draw the same numbers again.
    fixed = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    ends = {"stop_token_ids": [*stop_ids], "ignore_eos": True}

    async def sample(wanted: Wanted) -> Sampled:
        given = await server_manager.generate(
            uuid4().hex,
            prompt_ids=[*wanted.prompt_ids],
            sampling_params={**fixed, **ends, "max_tokens": wanted.max_tokens},
        )
        if given.stop_reason == "aborted":  # `partial_rollout` is off
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

    def __init__(self, trainer_config: Any, *args: Any, **kwargs: Any) -> None:
        """Take verl's arguments, or raise ConfigError if a setting changes the step, see `Exact`."""
        super().__init__(trainer_config, *args, **kwargs)
        check_config(self.config, exact=self.exact)

    @abstractmethod
    async def credited_group(self, sampling_params: dict[str, Any], **item: Any) -> CreditedGroup:
        """Return `AgentEnv.run_group`, then `withhold_stale`, for the item in the dataset's columns."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[CreditedOutput]:
        """Return the group's token rows, each a trajectory to verl."""
        credited = await self.credited_group(sampling_params, **kwargs)
        return outputs_of(credited, version=kwargs["global_steps"])
