# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# TRL and torch are in no lock: their types are unknown where they are not installed.
"""TRL's `GRPOTrainer` (1.16) on rollouts of an environment: each token keeps the advantage of its turn."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from datasets import Dataset
from transformers.trainer_callback import ExportableState, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base_env import AgentEnv
from environments.config import EMBEDDED_TOKENIZER
from environments.data.tasks import GroupTask
from environments.hooks import writes
from environments.policy.rendering.families import load_renderer
from environments.trainers.in_process_policy import InProcessPolicy
from environments.trainers.loop_thread import OpenInThread
from environments.trainers.step_columns import COUNTED, StepColumns, step_columns
from environments.trainers.torch_dropout import dropout_fields, dropout_modules, is_random
from environments.trainers.torch_sampling import sample_batch
from environments.trainers.trl_settings import refuse_inexact
from environments.trajectory import CreditedGroup
from tools.errors import ConfigError


class Rollouts:
    """TRL's `rollout_func` for an environment, which the model that is trained plays.

    `with Rollouts(MyEnv, tokenizer="Qwen/Qwen3-0.6B") as rollouts: …` keeps the environment open.
    """

    def __init__(
        self,
        env: Callable[..., AgentEnv],
        *,
        tokenizer: str = EMBEDDED_TOKENIZER,
        family: str | None = None,
        name: str = "trl",
    ) -> None:
        """Nothing is opened yet.

        Args:
            env: called with `policy=`: an environment's class, or `partial(MyEnv, config, servers)`.
            tokenizer: the model's: `embedded`, a folder, or a Hugging Face name.
            family: the model's chat format; `None`: by the tokenizer's name.
            name: what the record calls the policy.

        Raises:
            UsageError: no such tokenizer or chat format, or the environment cannot be made.
        """
        self._renderer = load_renderer(family=family, model_name=tokenizer, tokenizer_name=tokenizer)
        self._policy = InProcessPolicy(self._renderer, name=name)
        self.env = env(policy=self._policy)
        if writes(self.env, "next_items"):
            raise ConfigError(
                f"environment {self.env.name!r} writes next_items, which TRL's own sampler would ignore"
            )
        self._opened = OpenInThread(self.env)
        self.epochs = Counter[str]()
        """How often each item was rolled out."""
        self.groups: list[CreditedGroup] = []
        """Those of the last step."""
        self.step = StepColumns()
        """They as columns."""
        self.counts = Counter[str]()
        """Of all steps: groups `ok`, `no_credit`, `failed` and `left_out`, and rows of `padding`."""

    def __enter__(self) -> Self:
        self._opened.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    @property
    def dataset(self) -> Dataset:
        """A row for each item, whose `prompt` is the item's id."""
        return Dataset.from_dict({"prompt": list(self.env.item_ids)})

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Roll out what TRL asks for, `num_generations` rows for each item.

        Raises:
            ConfigError: TRL asks for a part of a group.
            RunError: no group of the step can be trained on.
        """
        model = trainer.accelerator.unwrap_model(trainer.model)
        sample = partial(
            sample_batch,
            model=model,
            stop_ids=self._renderer.stop_ids,
            autocast=trainer.accelerator.autocast,
        )
        window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        version = f"step-{trainer.state.global_step}"
        self._policy.use(sample, weight_version=version, context_tokens=window)
        size = trainer.num_generations
        item_ids = prompts[::size]
        if list(prompts) != [item_id for item_id in item_ids for _ in range(size)]:
            raise ConfigError(
                f"TRL asked for rollouts of other than whole groups of {size}: leave its sampler and its "
                f"evaluation as they are, and see `turnwise evaluate`"
            )
        self.groups = self._opened.run(self._rolled_out(item_ids, size))
        self.step = step = step_columns(self.groups, rows=size)
        self.counts += step.counts
        return {
            "prompt_ids": step.columns.prompt_ids,
            "completion_ids": step.columns.completion_ids,
            "logprobs": step.columns.logprobs,
            "env_mask": step.columns.tool_mask,
            "token_advantages": step.columns.advantages,
            "score": step.scores,
        }

    async def _rolled_out(self, item_ids: Sequence[str], size: int) -> list[CreditedGroup]:
        items = dict(zip(self.env.item_ids, self.env.items, strict=True))
        tasks: list[GroupTask] = []
        for item_id in item_ids:
            tasks.append(GroupTask(item=items[item_id], item_id=item_id, epoch=self.epochs[item_id]))
            self.epochs[item_id] += 1
        return await asyncio.gather(*(self.env.run_group(task, size) for task in tasks))


def rollout_score(score: Sequence[float | None], **_: Any) -> list[float | None]:
    """A reward function for TRL's own scalar GRPO on the same rollouts: the score of each."""
    return list(score)


class TurnwiseGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose loss gets an advantage per token: those of the environment's estimator."""

    def __init__(self, model: Any, args: GRPOConfig, rollouts: Rollouts, **more: Any) -> None:
        """Take open `rollouts`; `more` goes to `GRPOTrainer`, such as `processing_class`.

        Raises:
            ConfigError: a setting of `args`, or of the model, would change the step that the advantages ask
                for; or the environment has fewer items than a step takes.
        """
        accumulation = args.accelerator_config.gradient_accumulation_kwargs
        refuse_inexact(
            {**vars(args), "world_size": args.world_size, "gradient_accumulation_kwargs": accumulation}
        )
        given: Mapping[str, Any] = {"train_dataset": rollouts.dataset, **more}
        _refuse_few_items(len(given["train_dataset"]), args)
        super().__init__(model=model, args=args, reward_funcs=rollout_score, rollout_func=rollouts, **given)
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ConfigError(
                "DeepSpeed and FSDP shard the weights, with which Turnwise could not play; start the script "
                "with python, as one process"
            )
        _refuse_dropout(self.accelerator.unwrap_model(self.model))
        self.add_callback(_KeptEpochs(rollouts))

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Not here: TRL would compare rollouts of evaluation items.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("TRL does not evaluate with Turnwise; use `turnwise evaluate` on what was saved")

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *_: Any) -> torch.Tensor:
        """What TRL's charts show; a row without a score has none there."""
        scores = [math.nan if each["score"] is None else each["score"] for each in inputs]
        return torch.tensor(scores, dtype=torch.float32, device=self.accelerator.device)[:, None]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch with (B, T) advantages, which `_compute_loss` takes from subclasses."""
        output = super()._generate_and_score_completions(inputs)
        advantages = torch.zeros(output["completion_ids"].shape, dtype=torch.float32)
        for row, each in zip(advantages, inputs, strict=True):
            row[: len(each["token_advantages"])] = torch.tensor(each["token_advantages"])
        output["advantages"] = advantages.to(output["completion_ids"].device)
        for name in COUNTED:
            self._metrics["train"][f"turnwise/{name}"].append(self.rollout_func.step.counts[name])
        return output


class _KeptEpochs(TrainerCallback, ExportableState):
    """Has TRL's checkpoints keep how often each item was rolled out: a run that goes on repeats no seed."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"epochs": dict(self._rollouts.epochs)}}

    def on_train_begin(self, args: GRPOConfig, state: Any, control: Any, **_: Any) -> None:
        kept = state.stateful_callbacks.get(type(self).__name__)
        if kept is not None:
            self._rollouts.epochs = Counter(kept["attributes"]["epochs"])


def _refuse_few_items(items: int, args: GRPOConfig) -> None:
    """TRL drops what does not fill a step, and would train nothing without a word."""
    groups = args.generation_batch_size // args.num_generations
    if items < groups:
        raise ConfigError(
            f"a step takes {groups} items (gradient_accumulation_steps x per_device_train_batch_size / "
            f"num_generations), and there are {items}; lower gradient_accumulation_steps or "
            f"per_device_train_batch_size, or raise --env.max_items"
        )


def _refuse_dropout(model: Any) -> None:
    why = "so that the loss would be of another network than the one that plays"
    if modules := dropout_modules(model):
        raise ConfigError(
            f"the model has dropout ({modules[0]}), {why}; use GRPOConfig(disable_dropout=True)"
        )
    if is_random(model):
        fields = ", ".join(dropout_fields(model.config)) or "noise of some kind"
        raise ConfigError(
            f"the model draws at random when it trains ({fields}), {why}; set that to 0.0 in the model's "
            f"config, with GRPOConfig(model_init_kwargs=…) where TRL loads it"
        )
