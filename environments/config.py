"""Every setting of an environment: flat, bounded and described."""

from typing import Literal, Self

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig
from pydantic import ConfigDict, Field, model_validator

EMBEDDED_TOKENIZER = "embedded"
WITHOUT_EFFECT = {
    "ensure_scores_are_not_same": "a group is kept or skipped by its credit, not by its scores",
    "eval_handling": "evaluate with `turnwise evaluate`",
    "eval_limit_ratio": "evaluate with `turnwise evaluate`",
    "steps_per_eval": "evaluate with `turnwise evaluate`",
    "batch_size": "the trainer says it",
    "max_eval_workers": "--env.max_concurrent_rollouts bounds an evaluation, too",
    "num_rollouts_to_keep": "wandb gets numbers, the rollout JSONL the rollouts",
    "num_rollouts_per_group_for_logging": "wandb gets numbers, the rollout JSONL the rollouts",
    "min_items_sent_before_logging": "wandb gets every group",
    "thinking_mode": "switch reasoning on at the model server",
    "reasoning_effort": "switch reasoning on at the model server",
    "max_reasoning_tokens": "switch reasoning on at the model server",
    "custom_thinking_prompt": "write it into the environment's system_prompt",
}
"""Settings of Atropos that do nothing here, and what to do instead: refused rather than ignored."""


class AgentEnvConfig(BaseEnvConfig):
    """Settings of an `AgentEnv`; environments subclass it to add their own flat fields."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    # What Atropos already names, with defaults that work offline.
    group_size: int = Field(default=4, ge=1, le=1024, description="Rollouts per item.")
    tokenizer_name: str = Field(
        default=EMBEDDED_TOKENIZER,
        description="Tokenizer for text of servers that return no token ids: `embedded`, a local folder or "
        "a Hugging Face name.",
    )
    use_wandb: bool = Field(default=False, description="Log to Weights & Biases.")
    total_steps: int = Field(
        default=-1,
        ge=-1,
        description="process: groups to roll out, going round the items again when there are fewer; -1: "
        "every item once. serve: trainer steps; -1: what the trainer says.",
    )
    max_token_length: int = Field(
        default=32768, ge=16, description="Tokens one training row may have; a rollout stops before it."
    )
    include_messages: bool = Field(default=True, description="Send messages with the tokens.")

    # Items.
    dataset_name: str | None = Field(default=None, description="Hugging Face hub dataset.")
    dataset_config: str | None = Field(default=None, description="Configuration of the hub dataset.")
    dataset_split: str = Field(default="train", description="Split of the hub dataset.")
    dataset_path: str | None = Field(default=None, description="Local .jsonl, .json or .parquet file.")
    max_items: int | None = Field(default=None, ge=1, description="Use only the first items.")

    # The record.
    fresh: bool = Field(default=False, description="process: empty the rollout JSONL instead of resuming it.")

    # Rollouts.
    seed: int = Field(default=0, ge=0, description="Seed of the whole run; each rollout derives its own.")
    max_turns: int = Field(default=10, ge=1, le=10_000, description="Model calls per rollout.")
    max_tokens_per_turn: int = Field(default=1024, ge=1, description="Tokens one model call may sample.")
    token_budget: int = Field(default=16_384, ge=1, description="Tokens one rollout may sample in all.")
    rollout_timeout_s: float = Field(
        default=300.0, gt=0, description="Wall clock of one rollout, tools included."
    )
    min_group_size: int = Field(
        default=2, ge=1, description="Siblings that must survive; a smaller group is recorded as failed."
    )
    max_failed_groups: int = Field(
        default=16,
        ge=0,
        description="process, evaluate: stop after so many groups in a row of which no rollout was left; 0: "
        "never. serve slows down instead.",
    )
    max_concurrent_rollouts: int = Field(default=16, ge=1, le=4096, description="Rollouts in flight at once.")

    # The policy. A server given by --openai.base_url replaces the scripted agent.
    scripted_skill: float = Field(
        default=0.6, ge=0, le=1, description="How good the scripted agent is: 0 clumsy, 1 flawless."
    )
    temperature: float = Field(default=1.0, ge=0, le=2, description="Sampling temperature of a model server.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling of a model server.")
    request_timeout_s: float = Field(
        default=120.0, gt=0, description="Wall clock of one request to the server."
    )
    request_tries: int = Field(
        default=4, ge=1, le=20, description="Requests per model call before it is lost."
    )

    # Tools and sandbox.
    enabled_toolsets: list[str] | None = Field(
        default=None, description="Toolsets the agent gets; unset: those of the environment."
    )
    disabled_toolsets: list[str] = Field(default=[], description="Toolsets taken away.")
    tool_output_chars: int = Field(
        default=8_000, ge=200, description="Characters of a tool's output the model sees; the middle is cut."
    )
    tool_timeout_s: float = Field(default=30.0, gt=0, description="Longest a tool's command may take.")
    sandbox: str = Field(
        default="local",
        description="Where the agent's code runs: local, docker, or a backend that a package registers.",
    )
    sandbox_image: str | None = Field(
        default=None, description="docker: the image of a sandbox; unset: the backend's own."
    )
    sandbox_memory_mb: int = Field(default=1024, ge=64, description="Memory of one sandbox.")
    sandbox_pids: int = Field(default=256, ge=8, description="Processes of one sandbox.")
    sandbox_disk_mb: int = Field(default=256, ge=1, description="Workspace of one sandbox.")
    sandbox_network: Literal["none", "full"] = Field(
        default="none",
        description="none: no network but a loopback. full: the host's network; with docker the engine's "
        "default network.",
    )
    allow_unsafe_sandbox: bool = Field(
        default=False, description="Run the agent's code unisolated where this machine cannot isolate it."
    )

    # Reward and credit.
    score_aggregation: Literal["sum", "mean", "outcome"] | None = Field(
        default=None,
        description="A trajectory's scalar: outcome plus the sum, or plus the mean, of its turn rewards, or "
        "the outcome alone; unset: what the environment says, else the sum.",
    )
    estimator: str | None = Field(
        default=None,
        description="Advantage estimator (see `turnwise estimators`); unset: turn_return with turn rewards, "
        "grpo without.",
    )
    estimator_preset: str | None = Field(
        default=None, description="Constants of a trainer: verl, trl, rllm, torchtitan, tinker or skyrl."
    )
    # One field per parameter of any estimator. Unset: the preset's value, or the estimator's own default.
    estimator_gamma: float | None = Field(default=None, ge=0, le=1, description="Discount per turn.")
    estimator_lam: float | None = Field(
        default=None, ge=0, le=1, description="turn_gae: trust in the rewards (1) or in the values (0)."
    )
    estimator_outcome_weight: float | None = Field(
        default=None, ge=-1e6, le=1e6, description="turn_return: what one unit of outcome is worth."
    )
    estimator_baseline: Literal["loo_index", "loo_total", "group_mean", "none"] | None = Field(
        default=None, description="turn_return: what is subtracted from a return."
    )
    estimator_scale: Literal["none", "group_std"] | None = Field(
        default=None, description="turn_return: what advantages are divided by."
    )
    estimator_norm_by_std: bool | None = Field(
        default=None, description="grpo: divide by the group's standard deviation."
    )
    estimator_ddof: int | None = Field(
        default=None, ge=0, le=1, description="grpo, mt_grpo: 1 sample deviation, 0 population deviation."
    )
    estimator_eps: float | None = Field(
        default=None, ge=0, le=1, description="grpo, mt_grpo, gigpo: added to the deviation."
    )
    estimator_singleton: Literal["zero", "raw", "error"] | None = Field(
        default=None, description="grpo, rloo: a group of one gets no advantage, its raw score or an error."
    )
    estimator_zero_variance: Literal["zero", "error"] | None = Field(
        default=None, description="grpo: equal scores give no advantage, or are an error."
    )
    estimator_step_weight: float | None = Field(
        default=None, ge=0, le=1e6, description="gigpo: weight of the state advantage."
    )
    estimator_mode: Literal["mean_norm", "mean_std_norm"] | None = Field(
        default=None, description="gigpo: subtract the mean, or also divide by the deviation."
    )
    estimator_episode_stats: Literal["trajectory", "rows"] | None = Field(
        default=None, description="gigpo: statistics over trajectories, or over turns as verl-agent does."
    )
    estimator_turn_coef: float | None = Field(
        default=None, ge=0, le=1e6, description="mt_grpo: weight of the turn advantage."
    )
    estimator_segments: Literal["two", "per_turn"] | None = Field(
        default=None, description="mt_grpo: as published, or the usual K-turn form (biased)."
    )

    # Serving.
    credit_view: Literal["token_advantages", "turn_rows", "prefix_rows"] = Field(
        default="token_advantages",
        description="serve: how credit is shown. token_advantages: to trainers that read advantages (verl's "
        "Atropos recipe). turn_rows: to those that read only scores (Atropos' example trainer).",
    )
    outbox_path: str | None = Field(
        default=None,
        description="serve: file in which groups wait for the trainer; unset: data/NAME.outbox.sqlite.",
    )
    outbox_groups: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="serve: groups that may wait or be in flight; more are not started.",
    )
    shutdown_grace_s: float = Field(
        default=30.0, ge=0, description="serve: time that rollouts in flight get after a SIGTERM."
    )
    exit_when_api_away_s: float = Field(
        default=-1,
        ge=-1,
        description="serve: exit with code 1 when the API or its trainer is away for that long; -1: wait.",
    )
    allow_approximate_tokens: bool = Field(
        default=False,
        description="serve: send token ids that were made from text, or rows without logprobs, when the "
        "model server gives neither.",
    )

    # Evaluation.
    eval_rollouts: int = Field(default=4, ge=1, le=1024, description="Rollouts per evaluation item.")
    pass_score: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Outcome, or score where there is none, from which a rollout counts as passed.",
    )

    # Atropos' own numbers, unchanged but for the bounds that they lack.
    max_num_workers: int = Field(
        default=-1, ge=-1, description="serve: groups at once; -1: as many as max_num_workers_per_node."
    )
    max_eval_workers: int = Field(
        default=16, ge=1, description="Of Atropos; has no effect here, so only its default is accepted."
    )
    max_num_workers_per_node: int = Field(default=8, ge=1, description="serve: groups at once per server.")
    steps_per_eval: int = Field(
        default=100, ge=0, description="Of Atropos; has no effect here, so only its default is accepted."
    )
    eval_limit_ratio: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Of Atropos; has no effect here, so only its default is accepted.",
    )
    inference_weight: float = Field(
        default=1.0, ge=-1, description="serve: this environment's share of inference; -1: not managed."
    )
    batch_size: int = Field(
        default=-1, ge=-1, description="Of Atropos; has no effect here, so only its default is accepted."
    )
    max_batches_offpolicy: int = Field(default=3, ge=1, description="serve: batches that may wait.")
    num_rollouts_to_keep: int = Field(
        default=32, ge=0, description="Of Atropos; has no effect here, so only its default is accepted."
    )
    num_rollouts_per_group_for_logging: int = Field(
        default=1, ge=-1, description="Of Atropos; has no effect here, so only its default is accepted."
    )
    min_items_sent_before_logging: int = Field(
        default=2, ge=0, description="Of Atropos; has no effect here, so only its default is accepted."
    )
    min_batch_allocation: float | None = Field(
        default=None, ge=0, le=1, description="serve: share of a batch that this environment must fill."
    )
    worker_timeout: float = Field(
        default=600, ge=-1, description="serve: seconds for one group; -1: no limit."
    )

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        for name, instead in WITHOUT_EFFECT.items():
            if getattr(self, name) != BaseEnvConfig.model_fields[name].default:
                raise ValueError(f"--env.{name} has no effect in Turnwise: {instead}")
        if self.max_num_workers == 0:
            raise ValueError("--env.max_num_workers 0 would serve nothing; give 1 or more, or -1")
        return self

    def sampling(self) -> dict[str, float]:
        """How a model server is asked to sample; empty when nothing reshapes what the model gives."""
        asked = {"temperature": self.temperature, "top_p": self.top_p}
        return {} if set(asked.values()) == {1.0} else asked

    def estimator_params(self) -> dict[str, float | int | bool | str]:
        """The estimator parameters that are set, by the names the estimator uses."""
        fields = type(self).model_fields.keys() - {"estimator", "estimator_preset"}
        given = {name: getattr(self, name) for name in fields if name.startswith("estimator_")}
        return {name.removeprefix("estimator_"): value for name, value in given.items() if value is not None}


class ServerConfig(APIServerConfig):
    """One OpenAI-compatible model server; without a `base_url` the scripted agent plays."""

    model_config = ConfigDict(extra="forbid")

    base_url: str | None = Field(
        default="",
        description="Base URL of an OpenAI-compatible server, for example http://localhost:8000/v1.",
    )
    api_key: str | None = Field(
        default="none", description="API key of the server; its client refuses an empty one."
    )
    health_check: bool = Field(
        default=False, description="Atropos' health check: it samples a real completion every second."
    )
