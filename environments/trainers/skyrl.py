"""SkyRL: groups as a generator's output with a reward per token, and an estimator that keeps these.

SkyRL needs Python 3.12 or newer: on 3.11, pydantic refuses its types. See docs/trainers.md.
"""

# skyrl is not locked, so its names have no types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownParameterType=false

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import register_advantage_estimator
from skyrl.train.generators.base import GeneratorInterface, GeneratorOutput

from environments.trainers.completion_columns import mean_score, step_columns
from environments.trainers.settings import ESTIMATOR, Exact, check_settings, turnwise_advantages
from environments.trajectory import CreditedGroup

RunGroup = Callable[[Mapping[str, Any], int], Awaitable[CreditedGroup]]


register_advantage_estimator(ESTIMATOR)(turnwise_advantages)


def output_of(groups: Sequence[CreditedGroup], *, rows: int, pad_id: int = 0) -> GeneratorOutput:
    """Return groups as SkyRL trains them: `rows` (`n_samples_per_prompt`) of each, in order.

    A group without credit, or with more rows, becomes padding.
    """
    step = step_columns(groups, rows=rows, pad_id=pad_id, trained=("ok",))
    return GeneratorOutput(
        prompt_token_ids=step.columns.prompt_ids,
        response_ids=step.columns.completion_ids,
        rewards=step.columns.advantages,
        loss_masks=step.columns.tool_mask,
        stop_reasons=None,
        rollout_metrics={
            "turnwise/score": mean_score(chain.from_iterable(each.group.trajectories for each in groups)),
            "turnwise/groups_left_out": len(groups) - step.counts["ok"],
        },
        rollout_logprobs=step.columns.logprobs,
    )


class TurnwiseGenerator(GeneratorInterface):
    """A generator for SkyRL's trainer; each prompt is one group of `run_group`."""

    def __init__(
        self, config: Any, run_group: RunGroup, *, pad_id: int = 0, exact: Exact | None = None
    ) -> None:
        """Take SkyRL's config, or raise ConfigError if a setting changes the step, see `Exact`."""
        check_settings("SkyRL", config, exact=exact)
        self._rows: int = config.generator.n_samples_per_prompt
        self._run_group = run_group
        self._pad_id = pad_id

    async def generate(self, input_batch: Any) -> GeneratorOutput:
        """Roll out the prompts of a batch, which repeats each `n_samples_per_prompt` times in a row."""
        extras: list[Mapping[str, Any]] = input_batch["env_extras"] or [{}] * len(input_batch["prompts"])
        prompts = zip(input_batch["prompts"], extras, strict=True)
        firsts = [{"prompt": prompt, **extra} for prompt, extra in prompts][:: self._rows]
        groups = await asyncio.gather(*(self._run_group(each, self._rows) for each in firsts))
        return output_of(groups, rows=self._rows, pad_id=self._pad_id)
