# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false
# TRL and torch are not locked, so their names have no types.
"""TRL's `GRPOTrainer` (1.16) on rollouts of an environment: each token keeps its turn's advantage."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from threading import Thread
from typing import Any, Self, TypeVar

import torch
from accelerate.utils import gather, gather_object
from datasets import Dataset
from transformers.trainer_callback import ExportableState, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from environments.base_env import AgentEnv
from environments.config import EMBEDDED_TOKENIZER
from environments.policy.rendering.families import load_renderer
from environments.rollout.hooks import writes
from environments.rollout.items.tasks import GroupTask
from environments.trainers.completion_columns import COUNTED, StepColumns, behaviour_ratios, step_columns
from environments.trainers.in_process_policy import InProcessPolicy
from environments.trainers.settings import Exact, check_grpo_config, inexact
from environments.trainers.trl_sampling import MAX_CACHE_BYTES, RowCache, sampler_of, whole_weights
from environments.trajectory import CreditedGroup
from tools.errors import ConfigError, RunError

Result = TypeVar("Result")


class Rollouts:
    """TRL's `rollout_func`: the trained model plays an environment.

    `with Rollouts(MyEnv, tokenizer="Qwen/Qwen3-0.6B") as rollouts: …` keeps the environment open.
    """

    def __init__(
        self,
        env: Callable[..., AgentEnv],
        *,
        tokenizer: str = EMBEDDED_TOKENIZER,
        family: str | None = None,
        name: str = "trl",
        max_cache_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        """Create the environment without opening it.

        Args:
            env: called with `policy=`: an environment's class, or `partial(MyEnv, config, servers)`.
            tokenizer: the model's: `embedded`, a folder, or a Hugging Face name.
            family: the model's chat format; by default chosen by the tokenizer's name.
            name: the policy's name in the record.
            max_cache_bytes: keys and values that the model keeps of a step's rollouts between their turns.

        Raises:
            UsageError: if an argument is unknown or invalid.
        """
        self._renderer = load_renderer(family=family, model_name=tokenizer, tokenizer_name=tokenizer)
        self._policy = InProcessPolicy(self._renderer, name=name)
        self._cache = RowCache(max_cache_bytes)
        self.env = env(policy=self._policy)
        if writes(self.env, "next_items"):
            raise ConfigError(
                f"environment {self.env.name!r} writes next_items, which TRL's own sampler would ignore"
            )
        self._opened = OpenInThread(self.env)
        self.epochs = Counter[str]()
        self.groups: list[CreditedGroup] = []
        """This process's groups of the last step."""
        self.step = StepColumns()
        self.counts = Counter[str]()

    def __enter__(self) -> Self:
        self._opened.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._opened.__exit__(*raised)

    @property
    def dataset(self) -> Dataset:
        return Dataset.from_dict({"prompt": list(self.env.item_ids)})

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Roll out TRL's items, `num_generations` rows each, in all processes together.

        Raises:
            ConfigError: if TRL requests a part of a group.
            RunError: if no group of the step can be trained on.
        """
        accelerator, args = trainer.accelerator, trainer.args
        config = accelerator.unwrap_model(trainer.model).config.get_text_config()
        window = getattr(config, "max_position_embeddings", None)
        self._policy.use(
            sampler_of(trainer, self._renderer.stop_ids, self._cache),
            weight_version=f"step-{trainer.state.global_step}",
            context_tokens=(args.use_vllm and args.vllm_max_model_length) or window,
            scores=not args.use_vllm,
        )
        size, asked = trainer.num_generations, gather_object(list(prompts))
        item_ids = asked[::size]
        process, processes = accelerator.process_index, accelerator.num_processes
        share = slice(len(item_ids) * process // processes, len(item_ids) * (process + 1) // processes)
        if trainer.use_vllm and trainer.vllm_mode == "server":  # only the first process has a client of it
            share = slice(len(item_ids) if process == 0 else 0)
        if asked != [item_id for item_id in item_ids for _ in range(size)]:
            raise ConfigError(
                f"TRL asked for rollouts of other than whole groups of {size}: leave its sampler and its "
                f"evaluation as they are, and see `turnwise evaluate`"
            )
        try:
            with whole_weights(trainer):
                self.groups = self._opened.run(self._roll_out(item_ids, size, share))
        finally:
            self._cache.clear()  # the optimizer needs the memory
        self.step = step = StepColumns.join(gather_object([step_columns(self.groups, rows=size)]))
        self.counts += step.counts
        if not any(step.counts[status] for status in ("ok", "no_credit", "alone")):
            raise RunError(
                f"none of the {len(item_ids)} groups of a step can be trained on; the last: {step.reason}"
            )
        columns = {
            "prompt_ids": step.columns.prompt_ids,
            "completion_ids": step.columns.completion_ids,
            "logprobs": step.columns.logprobs,
            "env_mask": step.columns.tool_mask,
            "token_advantages": step.columns.advantages,
            "turn_ids": step.columns.turn_ids,
            "score": step.scores,
        }
        first = process * len(prompts)
        return {name: of and of[first : first + len(prompts)] for name, of in columns.items()}

    async def _roll_out(self, item_ids: Sequence[str], size: int, share: slice) -> list[CreditedGroup]:
        items = dict(zip(self.env.item_ids, self.env.items, strict=True))
        tasks: list[GroupTask] = []
        for item_id in item_ids:
            tasks.append(GroupTask(item=items[item_id], item_id=item_id, epoch=self.epochs[item_id]))
            self.epochs[item_id] += 1
        groups = await asyncio.gather(*(self.env.run_group(task, size) for task in tasks[share]))
        return [self.env.withhold_stale(each) for each in groups]


def rollout_score(score: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return each rollout's score, a reward function for TRL's own scalar GRPO."""
    return list(score)


class TurnwiseGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` that uses the environment's advantages, one per token."""

    def __init__(
        self,
        model: Any,
        args: GRPOConfig,
        rollouts: Rollouts,
        *,
        exact: Exact | None = None,
        behaviour_cut: float | None = None,
        **more: Any,
    ) -> None:
        """Check the settings and the model.

        Args:
            model: as for `GRPOTrainer`.
            args: as for `GRPOTrainer`.
            rollouts: rollouts of the environment.
            exact: the reaction to settings that change the step.
            behaviour_cut: with vLLM, weigh each turn's advantage by its `behaviour_ratios`, at most this,
                in the place of TRL's own importance weights; by default TRL's weights apply.
            more: further arguments of `GRPOTrainer`.

        Raises:
            ConfigError: if a setting or the model would change the step, or there are too few items for one.
        """
        check_grpo_config(args, exact)
        is_weighed = args.use_vllm and args.vllm_importance_sampling_correction
        if behaviour_cut is not None and not (behaviour_cut > 0 and is_weighed):
            raise ConfigError(
                f"behaviour_cut={behaviour_cut:g} takes the place of TRL's importance weights; give more "
                f"than 0, with use_vllm and vllm_importance_sampling_correction; without vLLM each ratio is 1"
            )
        self._behaviour_cut = behaviour_cut
        given: Mapping[str, Any] = {"train_dataset": rollouts.dataset, **more}
        items, groups = len(given["train_dataset"]), args.generation_batch_size // args.num_generations
        if items < groups:  # TRL would silently train nothing
            raise ConfigError(
                f"a step takes {groups} items (gradient_accumulation_steps x per_device_train_batch_size / "
                f"num_generations), and there are {items}; lower gradient_accumulation_steps or "
                f"per_device_train_batch_size, or raise --env.max_items"
            )
        super().__init__(model=model, args=args, reward_funcs=rollout_score, rollout_func=rollouts, **given)
        if self.is_deepspeed_enabled:
            raise ConfigError(
                "with DeepSpeed no step was shown to be exact; shard weights with FSDP2 (fsdp_version 2), or "
                "start the script with python, torchrun or accelerate launch without it"
            )
        if self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.fsdp_version != 2:
            raise ConfigError(
                "FSDP1 gathers weights in every forward pass, of which each process needs its own number to "
                "play; use FSDP2 (fsdp_version 2)"
            )
        is_shared = args.vllm_enable_sleep_mode or args.vllm_tensor_parallel_size > 1
        if args.use_vllm and args.vllm_mode == "colocate" and is_shared:
            raise ConfigError(
                "with vllm_enable_sleep_mode, or vllm_tensor_parallel_size above 1, a colocated vLLM samples "
                "when TRL wakes it, and in all processes at once; use vllm_mode server, or neither"
            )
        if self.accelerator.is_main_process:  # others may have no weights yet (cpu_ram_efficient_loading)
            _check_dropout(self.accelerator.unwrap_model(self.model), exact)
        self.add_callback(_KeptEpochs(rollouts))

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Raise ConfigError, since TRL would compare rollouts of evaluation items."""
        raise ConfigError("TRL does not evaluate with Turnwise; use `turnwise evaluate` on what was saved")

    def _calculate_rewards(self, inputs: list[dict[str, Any]], *_: Any) -> torch.Tensor:
        scores = [math.nan if each["score"] is None else each["score"] for each in inputs]
        return gather(torch.tensor(scores, dtype=torch.float32, device=self.accelerator.device)[:, None])

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        advantages = torch.zeros(output["completion_ids"].shape, dtype=torch.float32)
        for row, each in zip(advantages, inputs, strict=True):
            row[: len(each["token_advantages"])] = torch.tensor(each["token_advantages"])
        if self._behaviour_cut is not None:
            logprobs = zip(output["old_per_token_logps"], output["sampling_per_token_logps"], strict=True)
            for row, each, (old, sampled) in zip(advantages, inputs, logprobs, strict=True):
                tokens = slice(len(each["turn_ids"]))
                of_tokens = old[tokens].tolist(), sampled[tokens].tolist()
                ratios = behaviour_ratios(each["turn_ids"], *of_tokens, cut=self._behaviour_cut)
                row[tokens] *= torch.tensor(ratios)
            output["importance_sampling_ratio"] = torch.ones_like(output["importance_sampling_ratio"])
        output["advantages"] = advantages.to(output["completion_ids"].device)
        for name in COUNTED:
            self._metrics["train"][f"turnwise/{name}"].append(self.rollout_func.step.counts[name])
        return output


class _KeptEpochs(TrainerCallback, ExportableState):
    """Stores each item's epoch in TRL's checkpoints, so that a resumed run repeats no seed."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"epochs": dict(self._rollouts.epochs)}}

    def on_train_begin(self, args: GRPOConfig, state: Any, control: Any, **_: Any) -> None:
        kept = state.stateful_callbacks.get(type(self).__name__)
        if kept is not None:
            self._rollouts.epochs = Counter(kept["attributes"]["epochs"])


def _check_dropout(model: Any, exact: Exact | None) -> None:
    why = "so that the loss would be of another network than the one that plays"
    modules = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Dropout) and module.p > 0.0
    ]
    if modules:
        inexact(
            f"the model has dropout ({modules[0]}), {why}; use GRPOConfig(disable_dropout=True)",
            exact or "refuse",
        )
    elif is_random(model):
        found = model.config.get_text_config().to_dict().items()
        drops = [
            f"{name}={value}"
            for name, value in found
            if "drop" in name and isinstance(value, float | int) and value > 0
        ]
        inexact(
            f"the model draws at random when it trains ({', '.join(drops) or 'noise of some kind'}), {why}; "
            f"set that to 0.0 in the model's config, with GRPOConfig(model_init_kwargs=…) where TRL loads it",
            exact or "refuse",
        )


@torch.no_grad()
def is_random(model: Any) -> bool:
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(16, device=model.device)[None] % vocabulary
    was_training = model.training
    model.train()
    try:
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
        first, *others = (model(**given).logits for _ in range(3))
    finally:
        model.train(was_training)
    return not all(torch.equal(first, other) for other in others)


class OpenInThread:
    """Keeps an async context manager open in a thread's event loop."""

    def __init__(self, opening: AbstractAsyncContextManager[Any]) -> None:
        self._opening = opening
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="turnwise-loop", daemon=True)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._opening.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        async def cancel_others() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        try:
            self.run(cancel_others())
            self.run(self._opening.__aexit__(*raised))
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
