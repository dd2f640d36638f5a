"""The public names: `from turnwise import AgentEnv, tool, terminal, …`; each is loaded when first used.

Further ones are in `turnwise.rewards`, `turnwise.credit`, `turnwise.records` and `turnwise.condensers`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base_env import AgentEnv
    from environments.config import (
        AgentEnvConfig,
        JudgeConfig,
        ReferenceConfig,
        ServerConfig,
        SummariserConfig,
        UserConfig,
    )  # fmt: skip
    from environments.policy.base import CompletionRequest, Policy
    from environments.policy.scripted import Choice, call, say
    from environments.rewards.reward_context import GroupContext, Reward, RolloutContext
    from environments.rollout.agents.command import Command
    from environments.rollout.agents.harnesses import ClaudeCode, Codex, MiniSweAgent, OpenCode, QwenCode
    from environments.rollout.branching import first_unsolved
    from environments.rollout.items.tasks import GroupTask
    from environments.rollout.simulated_user import SimulatedUser
    from environments.run.workers.workers import Workers
    from environments.testing import group_of
    from environments.trajectory import (
        Completion,
        CreditedGroup,
        Message,
        Rewards,
        StopReason,
        TextScore,
        Trajectory,
        TrajectoryGroup,
        Turn,
    )
    from environments.turn_level_reward import TurnLevelRewardMixin
    from tools.calls import State, ToolCall, ToolContext, ToolResult, ToolSpec
    from tools.errors import ConfigError, RolloutError, ToolError, TurnwiseError, UsageError
    from tools.files import file
    from tools.mcp.mcp_toolset import MCPToolset
    from tools.registry import ToolOutput, Toolset, tool
    from tools.sandbox import ExecResult, Sandbox, SandboxLimits, SandboxSpec, open_sandbox
    from tools.terminal import terminal

__version__ = "0.1.0"

__all__ = [
    "AgentEnv",
    "AgentEnvConfig",
    "Choice",
    "ClaudeCode",
    "Codex",
    "Command",
    "Completion",
    "CompletionRequest",
    "ConfigError",
    "CreditedGroup",
    "ExecResult",
    "GroupContext",
    "GroupTask",
    "JudgeConfig",
    "MCPToolset",
    "Message",
    "MiniSweAgent",
    "OpenCode",
    "Policy",
    "QwenCode",
    "ReferenceConfig",
    "Reward",
    "Rewards",
    "RolloutContext",
    "RolloutError",
    "Sandbox",
    "SandboxLimits",
    "SandboxSpec",
    "ServerConfig",
    "SimulatedUser",
    "State",
    "StopReason",
    "SummariserConfig",
    "TextScore",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "Toolset",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "TurnLevelRewardMixin",
    "TurnwiseError",
    "UsageError",
    "UserConfig",
    "Workers",
    "__version__",
    "call",
    "file",
    "first_unsolved",
    "group_of",
    "open_sandbox",
    "say",
    "terminal",
    "tool",
]

_NAMES = {
    "environments.base_env": ("AgentEnv",),
    "environments.config": (
        "AgentEnvConfig", "JudgeConfig", "ReferenceConfig",
        "ServerConfig", "SummariserConfig", "UserConfig",
    ),
    "environments.policy.base": ("CompletionRequest", "Policy"),
    "environments.policy.scripted": ("Choice", "call", "say"),
    "environments.rewards.reward_context": ("GroupContext", "Reward", "RolloutContext"),
    "environments.rollout.agents.command": ("Command",),
    "environments.rollout.agents.harnesses": (
        "ClaudeCode", "Codex", "MiniSweAgent", "OpenCode", "QwenCode",
    ),
    "environments.rollout.branching": ("first_unsolved",),
    "environments.rollout.items.tasks": ("GroupTask",),
    "environments.rollout.simulated_user": ("SimulatedUser",),
    "environments.run.workers.workers": ("Workers",),
    "environments.testing": ("group_of",),
    "environments.trajectory": (
        "Completion", "CreditedGroup", "Message", "Rewards",
        "StopReason", "TextScore", "Trajectory", "TrajectoryGroup", "Turn",
    ),
    "environments.turn_level_reward": ("TurnLevelRewardMixin",),
    "tools.calls": ("State", "ToolCall", "ToolContext", "ToolResult", "ToolSpec"),
    "tools.errors": ("ConfigError", "RolloutError", "ToolError", "TurnwiseError", "UsageError"),
    "tools.files": ("file",),
    "tools.mcp.mcp_toolset": ("MCPToolset",),
    "tools.registry": ("ToolOutput", "Toolset", "tool"),
    "tools.sandbox": ("ExecResult", "Sandbox", "SandboxLimits", "SandboxSpec", "open_sandbox"),
    "tools.terminal": ("terminal",),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name on first use.

    Raises:
        ImportError: if a folder or file of the user hides its package.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from turnwise.own_packages import refuse_foreign_packages  # noqa: PLC0415

    refuse_foreign_packages()
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
