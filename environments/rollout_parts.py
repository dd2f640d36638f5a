"""What rollouts are made of, from the settings: their budget, their sandboxes and the model servers."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
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
    from environments.inference.model_server import ModelServer  # noqa: PLC0415
    from environments.policy.chat import ChatPolicy  # noqa: PLC0415
    from environments.policy.served import ServedPolicy  # noqa: PLC0415

    policies = [
        ChatPolicy(
            server=ModelServer(
                base_url=str(server.base_url),
                api_key=server.api_key or "none",
                request_timeout_s=config.request_timeout_s,
                tries=config.request_tries,
                max_concurrency=server.num_max_requests_at_once,
            ),
            model=server.model_name,
            renderer=renderer,
            temperature=config.temperature,
            top_p=config.top_p,
        )
        for server in servers
    ]
    return ServedPolicy(policies, sampling=config.sampling())
