"""The environment that is checked: opened, played by its scripted agent at a skill, its calls traced."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.data.tasks import GroupTask
from environments.env_checks.call_trace import CallTrace, TracedCalls
from environments.hooks import writes
from environments.policy.base import Policy
from environments.server_config import ModelServerConfig, ServerConfig
from environments.trajectory import CreditedGroup, Trajectory

SIBLINGS = 4
"""Rollouts of one item."""
_HOOK_S = 20.0
_ROLLOUT_S = 60.0
_BLOCK_S = 10.0
"""Longest that code of the environment may take here; a check that waits for minutes is not used."""


@dataclass(slots=True, kw_only=True)
class CheckedEnv:
    """What the checks work with."""

    env_cls: type[AgentEnv]
    config: AgentEnvConfig
    """As the user set it."""
    servers: Sequence[ModelServerConfig]
    """Those that were named, the policy's included."""
    items: int
    """How many are played."""
    trace: CallTrace
    env: AgentEnv = field(init=False)
    """While it is open."""
    played: dict[float, list[CreditedGroup]] = field(default_factory=dict[float, list[CreditedGroup]])
    """The groups that were played, by skill; those of a first rollout alone are not among them."""

    def made(self, *, with_model: bool = False, **settings: Any) -> AgentEnv:
        """A new instance with limits that a check can wait for; without its model server the script plays.

        Raises:
            UsageError: the class or a setting is wrong.
        """
        limits = {
            "hook_timeout_s": min(self.config.hook_timeout_s, _HOOK_S),
            "rollout_timeout_s": min(self.config.rollout_timeout_s, _ROLLOUT_S),
            "hook_block_s": self.block_s,
            "group_size": SIBLINGS,
            "min_group_size": min(self.config.min_group_size, SIBLINGS),
            "use_wandb": False,
            "use_trackio": False,
            "total_steps": -1,
        }
        servers = [each for each in self.servers if with_model or not isinstance(each, ServerConfig)]
        return self.env_cls(self.config.model_copy(update=limits | settings), servers)

    @property
    def block_s(self) -> float:
        """How long code may block the event loop before the process ends."""
        return min(self.config.hook_block_s, _BLOCK_S)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """With `env`, its calls traced."""
        env = self.env = self.made()
        env.new_hook_calls = partial(TracedCalls, self.trace)
        async with env.opened(notify=lambda _: None):
            yield

    @property
    def tasks(self) -> list[GroupTask]:
        """Those that are played: the first ones."""
        return self.env.tasks()[: self.items]

    @property
    def has_script(self) -> bool:
        """Whether the environment writes an agent of its own."""
        return writes(self.env, "scripted_choices")

    async def play(self, skill: float) -> list[CreditedGroup]:
        """A group for each task, played at a skill; once for each skill."""
        if skill not in self.played:
            self.env.config.scripted_skill = skill
            self.played[skill] = list(
                await asyncio.gather(*(self.env.run_group(task) for task in self.tasks))
            )
        return self.played[skill]

    async def play_with(self, policy: Policy, task: GroupTask) -> CreditedGroup:
        """A group that somebody else plays."""
        self.env.policy = policy
        try:
            return await self.env.run_group(task)
        finally:
            self.env.policy = None

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of everything that was played."""
        return [
            each for groups in self.played.values() for group in groups for each in group.group.trajectories
        ]
