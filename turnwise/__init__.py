"""The public names: `from turnwise import AgentEnv, tool, terminal, …`; each is loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base_env import AgentEnv
    from environments.config import AgentEnvConfig, JudgeConfig, ServerConfig, SummariserConfig, UserConfig
    from environments.credit import Param, estimate, register_estimator
    from environments.data.tasks import GroupTask
    from environments.policy.base import CompletionRequest, Policy
    from environments.policy.scripted import Choice, call, say
    from environments.record.recorder import read_groups
    from environments.reward_context import GroupContext, Reward, RolloutContext
    from environments.rewards.code_cases import CaseReport, function_cases, program_cases
    from environments.rewards.economy import (
        context_efficiency,
        length_penalty,
        longest_context,
        sampled_tokens,
        turn_cost,
    )
    from environments.rewards.judge import quoted
    from environments.rewards.math_checker import MathChecker
    from environments.rewards.rubric import Rubric, novelty_rewards, pairwise_rewards, rank_rewards
    from environments.rewards.text_format import (
        boxed,
        code_block,
        exact_match,
        has_tags,
        has_text,
        numeric_match,
        tagged,
    )
    from environments.rollout.context import (
        Asking,
        Condenser,
        Entry,
        History,
        fit_context,
        keep_last_turns,
        summarise,
        trim_tool_output,
    )
    from environments.simulated_user import SimulatedUser
    from environments.tables.loading import features, load
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
    from tools.calls import ToolCall, ToolResult, ToolSpec
    from tools.errors import ConfigError, RolloutError, ToolError, TurnwiseError, UsageError
    from tools.files import file
    from tools.mcp.mcp_toolset import MCPToolset
    from tools.registry import Toolset, tool
    from tools.sandbox import ExecResult, Sandbox, SandboxLimits, SandboxSpec, open_sandbox
    from tools.terminal import terminal
    from tools.tool_context import State, ToolContext
    from tools.tool_output import ToolOutput

__version__ = "0.1.0"

__all__ = [
    "AgentEnv",
    "AgentEnvConfig",
    "Asking",
    "CaseReport",
    "Choice",
    "Completion",
    "CompletionRequest",
    "Condenser",
    "ConfigError",
    "CreditedGroup",
    "Entry",
    "ExecResult",
    "GroupContext",
    "GroupTask",
    "History",
    "JudgeConfig",
    "MCPToolset",
    "MathChecker",
    "Message",
    "Param",
    "Policy",
    "Reward",
    "Rewards",
    "RolloutContext",
    "RolloutError",
    "Rubric",
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
    "__version__",
    "boxed",
    "call",
    "code_block",
    "context_efficiency",
    "estimate",
    "exact_match",
    "features",
    "file",
    "fit_context",
    "function_cases",
    "group_of",
    "has_tags",
    "has_text",
    "keep_last_turns",
    "length_penalty",
    "load",
    "longest_context",
    "novelty_rewards",
    "numeric_match",
    "open_sandbox",
    "pairwise_rewards",
    "program_cases",
    "quoted",
    "rank_rewards",
    "read_groups",
    "register_estimator",
    "sampled_tokens",
    "say",
    "summarise",
    "tagged",
    "terminal",
    "tool",
    "trim_tool_output",
    "turn_cost",
]

_MODULES = {
    "AgentEnv": "environments.base_env",
    "AgentEnvConfig": "environments.config",
    "Asking": "environments.rollout.context",
    "CaseReport": "environments.rewards.code_cases",
    "Choice": "environments.policy.scripted",
    "Completion": "environments.trajectory",
    "CompletionRequest": "environments.policy.base",
    "Condenser": "environments.rollout.context",
    "ConfigError": "tools.errors",
    "CreditedGroup": "environments.trajectory",
    "Entry": "environments.rollout.context",
    "ExecResult": "tools.sandbox",
    "GroupContext": "environments.reward_context",
    "GroupTask": "environments.data.tasks",
    "History": "environments.rollout.context",
    "JudgeConfig": "environments.config",
    "MCPToolset": "tools.mcp.mcp_toolset",
    "MathChecker": "environments.rewards.math_checker",
    "Message": "environments.trajectory",
    "Param": "environments.credit",
    "Policy": "environments.policy.base",
    "Reward": "environments.reward_context",
    "Rewards": "environments.trajectory",
    "RolloutContext": "environments.reward_context",
    "RolloutError": "tools.errors",
    "Rubric": "environments.rewards.rubric",
    "Sandbox": "tools.sandbox",
    "SandboxLimits": "tools.sandbox",
    "SandboxSpec": "tools.sandbox",
    "ServerConfig": "environments.config",
    "SimulatedUser": "environments.simulated_user",
    "State": "tools.tool_context",
    "StopReason": "environments.trajectory",
    "SummariserConfig": "environments.config",
    "ToolCall": "tools.calls",
    "ToolContext": "tools.tool_context",
    "ToolError": "tools.errors",
    "ToolOutput": "tools.tool_output",
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
    "boxed": "environments.rewards.text_format",
    "call": "environments.policy.scripted",
    "code_block": "environments.rewards.text_format",
    "context_efficiency": "environments.rewards.economy",
    "estimate": "environments.credit",
    "exact_match": "environments.rewards.text_format",
    "features": "environments.tables.loading",
    "file": "tools.files",
    "fit_context": "environments.rollout.context",
    "function_cases": "environments.rewards.code_cases",
    "group_of": "environments.testing",
    "has_tags": "environments.rewards.text_format",
    "has_text": "environments.rewards.text_format",
    "keep_last_turns": "environments.rollout.context",
    "length_penalty": "environments.rewards.economy",
    "load": "environments.tables.loading",
    "longest_context": "environments.rewards.economy",
    "novelty_rewards": "environments.rewards.rubric",
    "numeric_match": "environments.rewards.text_format",
    "open_sandbox": "tools.sandbox",
    "pairwise_rewards": "environments.rewards.rubric",
    "program_cases": "environments.rewards.code_cases",
    "quoted": "environments.rewards.judge",
    "rank_rewards": "environments.rewards.rubric",
    "read_groups": "environments.record.recorder",
    "register_estimator": "environments.credit",
    "sampled_tokens": "environments.rewards.economy",
    "say": "environments.policy.scripted",
    "summarise": "environments.rollout.context",
    "tagged": "environments.rewards.text_format",
    "terminal": "tools.terminal",
    "tool": "tools.registry",
    "trim_tool_output": "environments.rollout.context",
    "turn_cost": "environments.rewards.economy",
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
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
