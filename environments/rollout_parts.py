"""What rollouts are made of, from the settings: their budget, their sandboxes and the model servers."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING

from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.renderer import Renderer
from environments.rollout.agent_loop import Budget
from tools.sandbox import open_sandbox
from tools.sandbox.base import Sandbox, SandboxLimits

if TYPE_CHECKING:
    from environments.policy.served import ServedPolicy


def budget_of(config: AgentEnvConfig) -> Budget:
    """What one rollout may spend."""
    return Budget(
        max_turns=config.max_turns,
        max_tokens_per_turn=config.max_tokens_per_turn,
        token_budget=config.token_budget,
        max_row_tokens=config.max_token_length,
        timeout_s=config.rollout_timeout_s,
        tool_timeout_s=config.tool_timeout_s,
        tool_output_chars=config.tool_output_chars,
    )


def sandbox_of(config: AgentEnvConfig) -> AbstractAsyncContextManager[Sandbox]:
    """A fresh sandbox."""
    return open_sandbox(
        config.sandbox,
        limits=SandboxLimits(
            memory_mb=config.sandbox_memory_mb,
            pids=config.sandbox_pids,
            disk_mb=config.sandbox_disk_mb,
            network=config.sandbox_network,
        ),
        allow_unsafe=config.allow_unsafe_sandbox,
        image=config.sandbox_image,
    )


def served_policy(
    config: AgentEnvConfig, servers: Sequence[ServerConfig], renderer: Renderer
) -> "ServedPolicy | None":
    """The model servers that play; `None` without any.

    Raises:
        ConfigError: a `base_url` is no URL.
    """
    if not servers:
        return None
    # The client of model servers loads slowly, and the scripted agent needs none.
    chat, served = (import_module(f"environments.policy.{name}") for name in ("chat", "served"))
    return served.ServedPolicy(
        [
            chat.ChatPolicy(
                base_url=server.base_url,
                model=server.model_name,
                api_key=server.api_key,
                temperature=config.temperature,
                top_p=config.top_p,
                request_timeout_s=config.request_timeout_s,
                tries=config.request_tries,
                max_concurrency=server.num_max_requests_at_once,
                renderer=renderer,
            )
            for server in servers
        ],
        sampling=config.sampling(),
    )
