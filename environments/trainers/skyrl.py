"""SkyRL: groups as a generator's output with a reward per token, and an estimator that leaves these alone.

SkyRL itself needs Python 3.12 or newer: on 3.11, pydantic refuses its types. Settings and an example are in
docs/trainers.md.
"""

# skyrl is in no lock, so that its names have no types here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownParameterType=false

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import register_advantage_estimator
from skyrl.train.generators.base import GeneratorInterface, GeneratorOutput

from environments.trainers.completion_columns import CompletionColumns, completion_columns, groups_left_out
from environments.trainers.exact_settings import ESTIMATOR, SKYRL, refuse_inexact
from environments.trajectory import CreditedGroup

RunGroup = Callable[[Mapping[str, Any], int], Awaitable[CreditedGroup]]
"""`AgentEnv.run_group` of what the dataset has for a prompt, for so many rollouts."""


@register_advantage_estimator(ESTIMATOR)
def turnwise_advantages(token_level_rewards: Any, response_mask: Any, **_: Any) -> tuple[Any, Any]:
    """Advantages and returns `[row, token]`: both are the token-level rewards."""
    advantages = token_level_rewards * response_mask
    return advantages, advantages


def output_of(groups: Sequence[CreditedGroup], *, rows: int, pad_id: int = 0) -> GeneratorOutput:
    """Groups as SkyRL trains them: exactly `rows` (`n_samples_per_prompt`) of each, in their order.

    A group without credit, or with more rows than that, is padding, which trains nothing; it is counted in
    `rollout_metrics`.
    """
    columns: list[CompletionColumns] = []
    left_out = 0
    for credited in groups:
        taken = CompletionColumns()
        if credited.status == "ok":
            with groups_left_out():
                taken = completion_columns(credited, rows=rows, pad_id=pad_id)
        left_out += taken.rows == 0
        columns.append(taken.padded(rows, pad_id))
    scores = [trajectory.score or 0.0 for each in groups for trajectory in each.group.trajectories]
    logprobs = [each.logprobs for each in columns]
    known = [row for each in logprobs if each is not None for row in each]
    return GeneratorOutput(
        prompt_token_ids=[row for each in columns for row in each.prompt_ids],
        response_ids=[row for each in columns for row in each.completion_ids],
        rewards=[row for each in columns for row in each.advantages],
        loss_masks=[row for each in columns for row in each.tool_mask],
        stop_reasons=None,
        rollout_metrics={
            "turnwise/score": sum(scores) / max(1, len(scores)),
            "turnwise/groups_left_out": left_out,
        },
        rollout_logprobs=None if None in logprobs else known,
    )


class TurnwiseGenerator(GeneratorInterface):
    """A generator for SkyRL's trainer over `run_group`: each prompt is one group."""

    def __init__(self, config: Any, run_group: RunGroup, *, pad_id: int = 0) -> None:
        """Take SkyRL's whole config.

        Raises:
            ConfigError: a setting would change the step.
        """
        refuse_inexact(config, SKYRL)
        self._rows: int = config.generator.n_samples_per_prompt
        self._run_group = run_group
        self._pad_id = pad_id

    async def generate(self, input_batch: Any) -> GeneratorOutput:
        """Roll out each prompt of a batch that has it `n_samples_per_prompt` times, one after the other."""
        extras: list[Mapping[str, Any]] = input_batch["env_extras"] or [{}] * len(input_batch["prompts"])
        prompts = zip(input_batch["prompts"], extras, strict=True)
        firsts = [{"prompt": prompt, **extra} for prompt, extra in prompts][:: self._rows]
        groups = await asyncio.gather(*(self._run_group(each, self._rows) for each in firsts))
        return output_of(groups, rows=self._rows, pad_id=self._pad_id)
