"""The public names: `from turnwise import AgentEnv, tool, terminal, …`; each is loaded when first used.

Further ones are in `turnwise.rewards`, `turnwise.credit`, `turnwise.records` and `turnwise.condensers`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base_env import AgentEnv
    from environments.config import AgentEnvConfig, JudgeConfig, ServerConfig, SummariserConfig, UserConfig
    from environments.policy.base import CompletionRequest, Policy
    from environments.policy.scripted import Choice, call, say
    from environments.rewards.reward_context import GroupContext, Reward, RolloutContext
    from environments.rollout.agents.command import Command
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
    "Policy",
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
    "group_of",
    "open_sandbox",
    "say",
    "terminal",
    "tool",
]

_MODULES = {
    "AgentEnv": "environments.base_env",
    "AgentEnvConfig": "environments.config",
    "Choice": "environments.policy.scripted",
    "Command": "environments.rollout.agents.command",
    "Completion": "environments.trajectory",
    "CompletionRequest": "environments.policy.base",
    "ConfigError": "tools.errors",
    "CreditedGroup": "environments.trajectory",
    "ExecResult": "tools.sandbox",
    "GroupContext": "environments.rewards.reward_context",
    "GroupTask": "environments.rollout.items.tasks",
    "JudgeConfig": "environments.config",
    "MCPToolset": "tools.mcp.mcp_toolset",
    "Message": "environments.trajectory",
    "Policy": "environments.policy.base",
    "Reward": "environments.rewards.reward_context",
    "Rewards": "environments.trajectory",
    "RolloutContext": "environments.rewards.reward_context",
    "RolloutError": "tools.errors",
    "Sandbox": "tools.sandbox",
    "SandboxLimits": "tools.sandbox",
    "SandboxSpec": "tools.sandbox",
    "ServerConfig": "environments.config",
    "SimulatedUser": "environments.rollout.simulated_user",
    "State": "tools.calls",
    "StopReason": "environments.trajectory",
    "SummariserConfig": "environments.config",
    "ToolCall": "tools.calls",
    "ToolContext": "tools.calls",
    "ToolError": "tools.errors",
    "ToolOutput": "tools.registry",
    "ToolResult": "tools.calls",
    "ToolSpec": "tools.calls",
    "Toolset": "tools.registry",
    "Trajectory": "environments.trajectory",
    "TrajectoryGroup": "environments.trajectory",
    "Turn": "environments.trajectory",
    "TurnLevelRewardMixin": "environments.turn_level_reward",
    "TurnwiseError": "tools.errors",
    "UsageError": "tools.errors",
    "UserConfig": "environments.config",
    "Workers": "environments.run.workers.workers",
    "call": "environments.policy.scripted",
    "file": "tools.files",
    "group_of": "environments.testing",
    "open_sandbox": "tools.sandbox",
    "say": "environments.policy.scripted",
    "terminal": "tools.terminal",
    "tool": "tools.registry",
}


def __getattr__(name: str) -> object:
    """A public name, from the module that has it; from then on it is an ordinary attribute.

    Raises:
        ImportError: a folder or file of the user's hides the package that it is in.
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
