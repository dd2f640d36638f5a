"""Settings by what they are for: the groups of `turnwise COMMAND ENV --help`, those that matter first."""

from collections.abc import Mapping, Sequence

from environments.config import AgentEnvConfig
from environments.config_section import Section
from environments.server_config import ServerConfig

FIRST: Sequence[tuple[type[Section], str]] = (
    (AgentEnvConfig, "group_size"),
    (AgentEnvConfig, "max_items"),
    (AgentEnvConfig, "dataset_path"),
    (ServerConfig, "base_url"),
    (ServerConfig, "model_name"),
    (AgentEnvConfig, "scripted_skill"),
    (AgentEnvConfig, "max_turns"),
    (AgentEnvConfig, "max_concurrent_rollouts"),
    (AgentEnvConfig, "sandbox"),
    (AgentEnvConfig, "estimator"),
)
"""The ten that a first run sets."""
OTHER = "Other"
_GROUPS: Mapping[str, Sequence[str]] = {
    "Items": ("total_steps", "shuffle", "weight_field", "item_", "dataset_", "max_items", "seed"),
    "Rollouts": (
        "group_size", "max_turns", "max_tokens_per_turn", "token_budget", "min_group_size",
        "max_failed_groups", "max_concurrent_rollouts", "rollout_timeout_s", "hook_", "profile",
    ),
    "Sampling": ("scripted_skill", "temperature", "top_p", "request_", "tokenizer_name"),
    "Context": ("condenser", "max_token_length"),
    "Tools": ("enabled_toolsets", "disabled_toolsets", "tool_"),
    "Sandbox": ("sandbox", "verify_sandbox", "allow_unsafe_sandbox"),
    "Rewards and credit": (
        "score_aggregation", "missing_outcome", "mask_truncated", "max_staleness", "estimator",
    ),
    "Evaluation": ("eval_", "pass_score", "held_out"),
    "Record and tracking": (
        "data_", "run_", "fresh", "accept", "use_", "wandb_", "trackio_", "include_messages",
    ),
    "Serving a trainer": (
        "credit_view", "score_divisor", "prefix_weighting", "rollout_server_url", "outbox_",
        "shutdown_grace_s", "exit_when_api_away_s", "allow_approximate_tokens", "max_num_workers",
        "inference_weight",        "max_batches_offpolicy", "min_batch_allocation", "worker_timeout",
    ),
}  # fmt: skip
"""Names, and how those begin of which there are several."""


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """Settings of an environment by their group; in a group those that are named first come first."""
    groups: dict[str, list[str]] = {title: [] for title in (*_GROUPS, OTHER)}
    for name in names:
        groups[_group_of(name)].append(name)
    for title, known in _GROUPS.items():
        groups[title].sort(key=lambda name: next(at for at, each in enumerate(known) if _is(name, each)))
    return {title: each for title, each in groups.items() if each}


def _group_of(name: str) -> str:
    # A name in full counts before the beginning of a name: `sandbox_network` before `sandbox`.
    exact = (title for title, known in _GROUPS.items() if name in known)
    begins = (title for title, known in _GROUPS.items() if any(_is(name, each) for each in known))
    return next(exact, None) or next(begins, OTHER)


def _is(name: str, known: str) -> bool:
    return name == known or name.startswith(known if known.endswith("_") else f"{known}_")
