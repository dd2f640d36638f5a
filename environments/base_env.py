"""The whole flow: item → rollouts in sandboxes → rewards → group → advantages → rows.

`AgentEnv` is the only place that knows generation, reward, credit and wire; none of them knows another.
"""

import asyncio
import hashlib
import logging
import traceback
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, cast

from atroposlib.envs.base import ScoredDataGroup

from environments.atropos_env import AtroposEnv, Item
from environments.credit import credited
from environments.policy.base import Policy
from environments.policy.scripted import Choice, ScriptedPolicy, generic_script
from environments.reward_context import Reward, RewardContext
from environments.rollout.agent_loop import AgentLoop, Budget
from environments.trajectory import (
    CreditedGroup,
    Failure,
    Message,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from environments.turn_level_reward import ScalarScoring, Scoring, checked_metrics, checked_text
from environments.wire.columns import columns_of
from environments.wire.views import token_advantages
from tools.calls import ToolSpec
from tools.errors import ConfigError, PolicyError, RolloutError, SandboxError, TurnwiseError, UsageError
from tools.sandbox import open_sandbox
from tools.sandbox.base import Sandbox, SandboxLimits

logger = logging.getLogger(__name__)


class AgentEnv(AtroposEnv):
    """An environment in which an agent works in a sandbox with tools. Subclass it.

    Set `name` and `tools`; write `format_prompt` and a reward; the rest has defaults.
    """

    system_prompt: str | None = None

    # What an environment writes. Only the prompt and a reward have no default.

    def format_prompt(self, item: Item) -> str | list[Message]:
        """The task: the text of one user message, or a whole opening conversation."""
        raise ConfigError(f"environment {self.name!r} has no prompt; write format_prompt(self, item)")

    async def prepare(self, item: Item, sandbox: Sandbox) -> None:
        """Put into the workspace what the agent is to find there."""

    async def compute_reward(self, item: Item, trajectory: Trajectory, ctx: RewardContext) -> Reward:
        """One number for the whole session, while the sandbox is still open."""
        raise ConfigError(
            f"environment {self.name!r} has no reward; write compute_reward, or list TurnLevelRewardMixin "
            f"before AgentEnv and write compute_turn_rewards"
        )

    def state_key(self, item: Item, turn: Turn | None) -> str | None:
        """The state that `turn` led to (`None`: the start), for estimators that compare equal states."""
        return None

    def passed(self, item: Item, trajectory: Trajectory) -> bool:
        """Whether `evaluate` counts this rollout as passed."""
        outcome = trajectory.rewards.outcome if trajectory.rewards else None
        return (trajectory.score if outcome is None else outcome) >= self.config.pass_score

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """What the scripted agent may say next, with probabilities."""
        return generic_script(messages, tools, skill)

    def scoring(self, item: Item, ctx: RewardContext) -> Scoring:
        """The one hook that `TurnLevelRewardMixin` takes over."""
        return ScalarScoring(self, item, ctx)

    # The flow, from item to rows.

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup | None, list[Item]]:
        """Atropos' hook: one item in, one group for the trainer out; `None` when it would teach nothing."""
        credited = await self.run_group(item, *self.next_epoch(item))
        if credited.status != "ok":
            return None, []
        return ScoredDataGroup(**columns_of(token_advantages(credited))), []

    async def run_group(self, item: Item, identity: str, epoch: int) -> CreditedGroup:
        """Roll an item out `group_size` times and give every turn its advantage."""
        credited_group = self.credit(await self.rollout_group(item, identity, epoch, self.config.group_size))
        self.track(credited_group)
        return credited_group

    async def rollout_group(self, item: Item, identity: str, epoch: int, size: int) -> TrajectoryGroup:
        """`size` siblings side by side; those that break are failures, and the others go on."""
        try:
            async with asyncio.TaskGroup() as siblings:
                tasks = [
                    siblings.create_task(self._sibling(item, identity, epoch, sibling))
                    for sibling in range(size)
                ]
        except* UsageError as errors:
            raise errors.exceptions[0] from None
        results = [task.result() for task in tasks]
        return TrajectoryGroup(
            group_id=uuid.uuid4().hex,
            env=self.name,
            item_id=identity,
            epoch=epoch,
            trajectories=tuple(result for result in results if isinstance(result, Trajectory)),
            failures=tuple(result for result in results if isinstance(result, Failure)),
        )

    async def rollout(
        self, item: Item, identity: str, sibling: int, seed: int, turns: list[Turn]
    ) -> Trajectory:
        """One rollout, scored before its sandbox closes. `turns` grows as they happen."""
        started = monotonic()
        async with self.open_sandbox() as sandbox:
            await self.prepare(item, sandbox)
            ctx = RewardContext(
                env=self.name, item_id=identity, sandbox=sandbox, fresh_sandbox=self.open_sandbox
            )
            scoring = self.scoring(item, ctx)
            prompt = self.opening(item)
            loop = AgentLoop(
                policy=self.policy_for(item, seed),
                toolset=self.toolset,
                sandbox=sandbox,
                prompt=prompt,
                budget=self.budget,
                seed=seed,
            )
            async for turn in loop.turns():
                turns.append(replace(turn, anchor=self._state(item, identity, turns)))
                await scoring.on_turn(turns[-1])
            if not turns:
                raise RolloutError(f"no turn was finished: {loop.stop_reason}")
            trajectory = Trajectory(
                item_id=identity,
                sibling=sibling,
                seed=seed,
                prompt=prompt,
                turns=tuple(turns),
                rows=loop.rows,
                stop_reason=loop.stop_reason or StopReason.COMPLETED,
                exact=loop.exact,
                sandbox=sandbox.record,
                wall_s=monotonic() - started,
            )
            rewards = await scoring.finish(trajectory)
        return trajectory.with_rewards(rewards, checked_metrics(ctx))

    def credit(self, group: TrajectoryGroup) -> CreditedGroup:
        """Advantages for every turn, unless too few siblings survived to compare."""
        needed = min(self.config.min_group_size, self.config.group_size)
        if len(group.trajectories) >= needed:
            return credited(
                group,
                self.estimator,
                policy=self.policy_name,
                preset=self.config.estimator_preset,
                params=self.config.estimator_params(),
            )
        return CreditedGroup(
            group=group,
            advantages=tuple((0.0,) * len(trajectory.turns) for trajectory in group.trajectories),
            policy=self.policy_name,
            estimator=self.estimator,
            estimator_params=self.credit_params,
            status="failed",
            reason=f"{len(group.trajectories)} of {self.config.group_size} rollouts survived, "
            f"at least {needed} are needed",
        )

    def _state(self, item: Item, identity: str, turns: Sequence[Turn]) -> str | None:
        """The anchor state before the turn that comes after `turns`."""
        state = self.state_key(item, turns[-1] if turns else None)
        where = f"environment {self.name!r}, item {identity!r}, turn {len(turns)}: what state_key gave"
        return None if state is None else checked_text(state, where)

    async def _sibling(self, item: Item, identity: str, epoch: int, sibling: int) -> Trajectory | Failure:
        """The error boundary: whatever breaks in a rollout drops this sibling and nothing else."""
        seed = _seed(self.config.seed, identity, epoch, sibling)
        turns: list[Turn] = []
        async with self.rollout_slots:
            with self.watch_rollout():
                try:
                    return await self.rollout(item, identity, sibling, seed, turns)
                except UsageError:
                    raise
                except Exception as error:  # noqa: BLE001  # the one broad except: recorded, never scored
                    told = _writable(f"{type(error).__name__}: {error}{_place(error)}")
                    logger.warning("%s, item %s, rollout %d dropped: %s", self.name, identity, sibling, told)
                    return Failure(
                        sibling=sibling,
                        stop_reason=_lost(error),
                        error=told,
                        traceback=_writable(traceback.format_exc()),
                        turns=len(turns),
                    )

    # What a rollout is made of.

    async def preflight(self) -> None:
        """Refuse to compare states where there are none; then isolation and the model server."""
        if self.estimator == "gigpo" and type(self).state_key is AgentEnv.state_key:
            raise ConfigError(f"gigpo compares turns taken in equal states; write state_key in {self.name!r}")
        await super().preflight()

    @property
    def budget(self) -> Budget:
        """What one rollout may spend."""
        return Budget(
            max_turns=self.config.max_turns,
            max_tokens_per_turn=self.config.max_tokens_per_turn,
            token_budget=self.config.token_budget,
            max_row_tokens=self.config.max_token_length,
            timeout_s=self.config.rollout_timeout_s,
            tool_timeout_s=self.config.tool_timeout_s,
            tool_output_chars=self.config.tool_output_chars,
        )

    def opening(self, item: Item) -> tuple[Message, ...]:
        """The conversation before the first turn."""
        prompt = self.format_prompt(item)
        if not isinstance(prompt, str):
            return _conversation(prompt, self.name)
        system = (Message(role="system", content=self.system_prompt),) if self.system_prompt else ()
        return (*system, Message(role="user", content=prompt))

    def open_sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        """A fresh sandbox as the config asks for."""
        limits = SandboxLimits(
            memory_mb=self.config.sandbox_memory_mb,
            pids=self.config.sandbox_pids,
            disk_mb=self.config.sandbox_disk_mb,
            network=self.config.sandbox_network,
        )
        return open_sandbox(
            self.config.sandbox,
            limits=limits,
            allow_unsafe=self.config.allow_unsafe_sandbox,
            image=self.config.sandbox_image,
        )

    def policy_for(self, item: Item, seed: int) -> Policy:
        """Who plays this rollout: a model server, or the scripted agent, which knows the item."""
        if self.chat_policies:
            return self.chat_policies[seed % len(self.chat_policies)]
        script = partial(self.scripted_choices, item)
        return ScriptedPolicy(script, skill=self.config.scripted_skill, renderer=self.renderer)


def _seed(run_seed: int, identity: str, epoch: int, sibling: int) -> int:
    """A rollout's own seed: equal for equal runs, unrelated between rollouts; 31 bits, as servers accept."""
    name = f"{run_seed}/{identity}/{epoch}/{sibling}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest()) >> 1


def _conversation(prompt: Any, env: str) -> tuple[Message, ...]:
    given = isinstance(prompt, Iterable)
    messages: tuple[Any, ...] = tuple(cast("Iterable[Any]", prompt)) if given else (prompt,)
    if not all(isinstance(one, Message) for one in messages):
        raise ConfigError(
            f"environment {env!r}: format_prompt gave {prompt!r:.200}; give text, or a list of "
            f"environments.trajectory.Message(role=..., content=...)"
        )
    return messages


def _writable(text: str) -> str:
    """The text as UTF-8 can hold it: an error may quote a file name that is none."""
    return text.encode("utf-8", "backslashreplace").decode()


def _place(error: Exception) -> str:
    """Where code broke; an error of ours says what to do, and not where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, TurnwiseError) or not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})"


def _lost(error: Exception) -> StopReason | None:
    if isinstance(error, PolicyError):
        return StopReason.POLICY_ERROR
    return StopReason.SANDBOX_LOST if isinstance(error, SandboxError) else None
