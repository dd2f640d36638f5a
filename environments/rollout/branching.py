"""Branches: rollouts that replay the first turns of another one, their trunk, and then play on.

A fresh sandbox and a fresh state are brought to the branch turn by running the trunk's calls and hooks again.
Only completions and second models' answers are taken from the trunk. A branch whose replay differs is
refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from inspect import isasyncgenfunction, isgeneratorfunction
from random import Random
from typing import Any

from environments.config import AgentEnvConfig
from environments.credit import describe
from environments.policy.base import CompletionRequest, Policy
from environments.rewards.reward_checks import optional_reward
from environments.rewards.reward_context import RolloutContext
from environments.rollout.hooks import Hooks, is_recorded, writes
from environments.trajectory import Completion, Trajectory, TrajectoryGroup, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolResult
from tools.errors import ConfigError, RolloutError
from tools.mcp.mcp_servers import MCPServers


def first_unsolved(env: Hooks, item: Any, ctx: RolloutContext) -> bool:
    """Branch at the turn after the first whose `score_turn` is below 1: `branch_at = first_unsolved`."""
    last = optional_reward(ctx.turn_scores[-1], "score_turn")[0] if ctx.turn_scores else None
    return last is not None and last < 1.0


def check_branches(
    env: Hooks, config: AgentEnvConfig, estimator: str, params: Mapping[str, Any], mcp: MCPServers
) -> None:
    """Raise UsageError if branches are set, and cannot be played or credited."""
    count = config.branches
    if count == 1:
        return
    describe(estimator).check_branches(config.estimator_preset, params)
    cause = None
    if is_recorded(env):
        cause = "a recorded agent owns its loop"
    elif mcp:
        cause = "the state of an MCP server is not known"
    elif isgeneratorfunction(env.prepare) or isasyncgenfunction(env.prepare):
        cause = "prepare is a generator, whose state is a resource outside of the rollout"
    if cause is not None:
        raise ConfigError(f"--env.branches {count}: turns cannot be replayed, since {cause}; set it to 1")
    if config.branch_at == "hook" and not writes(env, "branch_at"):
        raise ConfigError(
            f"--env.branches {count}: say where, with --env.branch_at (a turn's number, or draw), or write "
            f"branch_at(self, item, ctx) in {env.name!r}, such as `branch_at = turnwise.first_unsolved`"
        )
    if isinstance(config.branch_at, int) and config.branch_at > config.max_turns:
        raise ConfigError(
            f"--env.branch_at {config.branch_at} is beyond --env.max_turns {config.max_turns}: "
            f"no rollout would branch"
        )
    count_trunks(config.group_size, count)


def count_trunks(group_size: int, branches: int) -> int:
    """Return how many rollouts of a group play from the start."""
    if group_size % branches or group_size == branches > 1:
        raise ConfigError(
            f"a group of {group_size} rollouts with --env.branches {branches}: the size counts all rollouts, "
            f"so it is a multiple of branches, and at least {2 * branches}"
        )
    return group_size // branches


def is_drawn(act: int, seed: int, max_turns: int) -> bool:
    """Whether the draw of a rollout falls on this act; acts count from 1 and are equally likely."""
    return Random(f"branch/{seed}").randrange(max_turns) == act - 1


class ReplayingPolicy:
    """Answers the first requests with a trunk's completions, and later ones with a policy."""

    def __init__(self, policy: Policy, trunk: Trajectory) -> None:
        self._policy, self._completions = policy, _shared_completions(trunk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    @property
    def name(self) -> str:
        return self._policy.name

    async def complete(self, request: CompletionRequest) -> Completion:
        recorded = next(self._completions, None)
        return await self._policy.complete(request) if recorded is None else recorded


def _shared_completions(trunk: Trajectory) -> Iterator[Completion]:
    ends: dict[int, int] = {}
    for turn in trunk.turns[: trunk.branch_turn]:
        span, row = turn.span, trunk.rows[turn.span.row]
        yield Completion(
            message=turn.message,
            finish_reason=turn.finish_reason,
            prompt_ids=tuple(row.token_ids[ends.get(span.row, 0) : span.start]),
            extends_row=span.row in ends,
            fork=turn.fork,
            token_ids=tuple(row.token_ids[span.start : span.end]),
            logprobs=None if row.logprobs is None else tuple(row.logprobs[span.start : span.end]),
            exact=trunk.exact,
            prompt_tokens=turn.usage.get("prompt_tokens"),
            sampled_tokens=turn.usage.get("completion_tokens"),
            weight_version=turn.weight_version,
            weight_spans=turn.weight_spans,
            sampling=turn.sampling,
        )
        ends[span.row] = span.end


def refuse_difference(env: Hooks, turn: Turn, ctx: RolloutContext, trunk: Trajectory) -> None:
    """Raise RolloutError if a replayed turn, or the state before the branch turn, is not the trunk's."""
    if turn.index > (trunk.branch_turn or 0) or turn.index >= len(trunk.turns):
        return
    recorded = trunk.turns[turn.index]
    pairs: dict[str, tuple[Any, Any]] = {"state_key": (turn.anchor, recorded.anchor)}
    if turn.index != trunk.branch_turn:
        pairs |= {
            "results": (_results(turn), _results(recorded)),
            "replies": (turn.replies, recorded.replies),
            "context": (turn.context, recorded.context),
            "score_turn": _rewards(env, turn, ctx, trunk),
        }
    for what, (own, theirs) in pairs.items():
        if own != theirs:
            raise RolloutError(f"branch refused, since its replay differs in {what}: turn {turn.index + 1}")


def _results(turn: Turn) -> list[ToolResult]:
    return [replace(each, duration_s=0.0) for each in turn.tool_results]


def _rewards(env: Hooks, turn: Turn, ctx: RolloutContext, trunk: Trajectory) -> tuple[Any, Any]:
    """Return what `score_turn` gave here and in the trunk, or None twice where a later hook replaces it."""
    known = trunk.act_rewards
    later = TurnLevelRewardMixin.compute_turn_rewards
    writes_later = getattr(type(env), "compute_turn_rewards", later) is not later
    if known is None or turn.kind != "act" or writes_later:
        return None, None
    act = len(ctx.turn_scores) - 1
    return optional_reward(ctx.turn_scores[act], "score_turn")[0], known[act]


def one_of_each_trunk(group: TrajectoryGroup) -> list[tuple[Trajectory, ...]]:
    """Return groups with one continuation of each trunk; together they have all that no agent broke.

    The first group has the trunks themselves. A trunk with few continuations stands in later groups again.
    """
    families = ([group.trajectories[index] for index in family] for family in group.families)
    whole = [own for family in families if (own := [each for each in family if each.agent_caused is None])]
    most = max(map(len, whole), default=0)
    return [tuple(own[number] if number < len(own) else own[0] for own in whole) for number in range(most)]
