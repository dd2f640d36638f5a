"""The whole flow: item → rollouts → rewards → group → advantages.

`AgentEnv` is the only place that knows generation, reward and credit; none of them knows another.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import NoReturn, Self

from environments.config import AgentEnvConfig, ModelServerConfig, ServerConfig, checked_config
from environments.credit import comparable, credited
from environments.policy.base import Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import ScriptedPolicy, policy_for_rollout
from environments.rewards.reward_checks import where_of
from environments.rollout.agent_loop import AgentLoop, Loop
from environments.rollout.boundary import Boundary
from environments.rollout.condensing import model_summary
from environments.rollout.containment.hook_calls import HookCalls, InFlight, Watch
from environments.rollout.hooks import Hooks, Item
from environments.rollout.items.item_json import item_hash, recorded_item
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.hook_checks import refuse_no_reward
from environments.rollout.lifecycle.lifecycle import Lifecycle
from environments.rollout.lifecycle.parts import build
from environments.rollout.lifecycle.rollout_hooks import (
    NewJudge,
    RolloutHooks,
    below_floor,
    not_compared,
    open_rollout,
    with_group_reward,
)
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup, Turn
from environments.turn_level_reward import CallHook, NewScoring, scalar_scoring
from tools.registry import Toolset
from tools.sandbox.base import Sandbox, record_of

_LOG = logging.getLogger(__name__)


class AgentEnv(Hooks):
    """Base class of environments: an agent acts with tools, optionally in a sandbox, and the world may reply.

    Set `name` and `tools`; write `format_prompt` and a reward; all other `Hooks` have defaults. In your own
    loop: `async with MyEnv(config, policy=…) as env: group = await env.run_group(env.tasks()[0])`.
    """

    _opened: AbstractAsyncContextManager[Self]
    """Entered by `async with env`."""

    def __init__(
        self,
        config: AgentEnvConfig | None = None,
        servers: Sequence[ModelServerConfig] | None = None,
        *,
        policy: Policy | None = None,
    ) -> None:
        """Check the class and its settings; nothing is opened yet.

        Args:
            config: the settings; unset: those of the class.
            servers: model servers that play, judge (`JudgeConfig`), are users (`UserConfig`) or sum up
                (`SummariserConfig`), those without a `base_url` left out; unset: those of the class.
            policy: plays instead. With neither, the scripted agent plays.

        Raises:
            UsageError: if the class lacks something, or a setting cannot work.
        """
        # First: what the class states may be a property that reads it.
        self.config = checked_config(self.config_init()[0] if config is None else config, type(self))
        parts = build(self, self.scoring, self.config, servers, policy)
        self.lifecycle = Lifecycle(self, parts, self.open_sandbox)

    # The flow, from item to credit.

    async def run_group(
        self, task: GroupTask, size: int | None = None, *, watch: Watch = nullcontext
    ) -> CreditedGroup:
        """Roll an item out `size` times, or `group_size`, and give every turn its advantage.

        Raises:
            RunError: if too much of the environment's code hangs; a rollout that breaks is a `Failure`.
            UsageError: if the environment is not open.
        """
        size = self.config.group_size if size is None else size
        return self.credit(await self.compare(task, await self.rollout_group(task, size, watch=watch), watch))

    async def rollout_group(
        self, task: GroupTask, size: int, *, watch: Watch = nullcontext
    ) -> TrajectoryGroup:
        """Roll out `size` siblings side by side; those that break are failures, and the others go on.

        Siblings that the task has already count among them.
        """
        life = self.lifecycle
        life.refuse_rollouts_before_setup()
        life.refuse_abandoned()
        item, identity = recorded_item(task.item), item_hash(task.item)
        boundary = Boundary(f"{self.name}, item {task.item_id}", life.failure_kinds)
        left = range(len(task.rolled_out), size)
        async with asyncio.TaskGroup() as siblings:
            rollouts = [
                siblings.create_task(self._sibling(task, sibling, watch, boundary)) for sibling in left
            ]
        ended = [boundary.result(rollout, sibling) for rollout, sibling in zip(rollouts, left, strict=True)]
        results = [*task.rolled_out, *ended]
        return TrajectoryGroup(
            group_id=uuid.uuid4().hex,
            env=self.name,
            item_id=task.item_id,
            epoch=task.epoch,
            item=item,
            item_hash=identity,
            trajectories=tuple(result for result in results if isinstance(result, Trajectory)),
            failures=tuple(result for result in results if isinstance(result, Failure)),
        )

    async def _sibling(
        self, task: GroupTask, sibling: int, watch: Watch, boundary: Boundary
    ) -> Trajectory | Failure:
        """One rollout in its slot; whatever breaks in it drops this sibling and nothing else."""
        turns: list[Turn] = []
        async with self.lifecycle.slots.one():
            in_flight = InFlight(item_id=task.item_id, epoch=task.epoch, sibling=sibling)
            with watch(in_flight), self.lifecycle.hook_calls(in_flight) as calls:
                try:
                    trajectory = await self.rollout(task.for_rollout(), sibling, turns, calls)
                    return replace(trajectory, profile=calls.profile)
                except BaseException as error:  # noqa: BLE001  # the one broad except: recorded, never scored
                    failure = boundary.failure_of(error, sibling, turns=len(turns), asked=calls.asked)
                    return replace(failure, profile=calls.profile)

    async def rollout(self, task: GroupTask, sibling: int, turns: list[Turn], calls: HookCalls) -> Trajectory:
        """Roll out once, and score it before its state and its sandbox close. `turns` grows meanwhile."""
        started = monotonic()
        async with open_rollout(self.lifecycle, task, sibling, calls) as (hooks, tools):
            ctx, loop = hooks.ctx, await self._loop(task, hooks, tools, calls)
            broken = await hooks.play(loop, turns)
            result = loop.result(turns, ctx.turn_scores)
            ctx.turn_scores = result.scores
            trajectory = Trajectory(
                item_id=task.item_id,
                sibling=sibling,
                seed=ctx.seed,
                prompt=result.prompt,
                turns=tuple(result.turns),
                rows=result.rows,
                tools=result.tools,
                stop_reason=result.stop_reason,
                end_reason=ctx.end_reason,
                agent_caused=broken,
                agent=result.agent,
                user_calls=tuple(ctx.user_model.calls),
                summariser_calls=tuple(ctx.summariser_model.calls),
                other_calls=result.other_calls,
                exact=result.exact,
                sandbox=record_of(ctx.sandbox),
                wall_s=monotonic() - started,
            )
            return ctx.files.add_to(await hooks.score(trajectory), scored=[turn.index for turn in turns])

    async def compare(
        self, task: GroupTask, group: TrajectoryGroup, watch: Watch, judge: NewJudge | None = None
    ) -> TrajectoryGroup:
        """Return the siblings that can be compared, with the part of their outcome that compares them."""
        parts = self.lifecycle.parts
        group, incomparable = comparable(group, parts.rules)
        if incomparable is not None:
            return not_compared(self, group, incomparable)
        group = await with_group_reward(self.lifecycle, task, group, watch, judge)
        if below := below_floor(group.trajectories, parts.failed_score):
            _LOG.warning("%s: %s", self.name, below)
        return group

    def credit(self, group: TrajectoryGroup) -> CreditedGroup:
        """Give every turn its advantage, unless too few siblings survived to compare."""
        parts = self.lifecycle.parts
        return credited(
            group,
            parts.estimator,
            policy=self.policy_name,
            preset=self.config.estimator_preset,
            params=parts.estimator_params,
            rules=parts.rules,
        )

    def withhold_stale(self, credited: CreditedGroup) -> CreditedGroup:
        """Return a finished group without credit for siblings that are older than `max_staleness` by now.

        Raises:
            ConfigError: if age is bounded, and no completion has ever named a version of the weights.
        """
        return self.lifecycle.weight_versions.withheld(credited)

    # Who plays, and how it is scored.

    async def _loop(self, task: GroupTask, hooks: RolloutHooks, tools: Toolset, calls: HookCalls) -> Loop:
        """Make the loop that calls model and tools: our own, or one that records an agent's requests."""
        parts, ctx = self.lifecycle.parts, hooks.ctx
        policy, prompt = self.policy_for(task.item, calls.hook), await hooks.opening()
        budget, toolset = await hooks.budget(), await hooks.toolset(tools)
        if parts.endpoints is not None:
            # The server of the endpoint loads slowly.
            from environments.rollout.lifecycle.recording import recorded_loop  # noqa: PLC0415

            return recorded_loop(parts.endpoints, task, hooks, policy, prompt, budget)
        return AgentLoop(
            policy=policy,
            toolset=toolset,
            sandbox=ctx.sandbox,
            messages=prompt,
            budget=budget,
            seed=ctx.seed,
            calls=calls,
            respond=hooks.respond,
            is_ended=lambda: ctx.end_reason is not None,
            on_messages=ctx.see,
            anchor=hooks.anchor,
            context=ctx,
            condensers=parts.condensers,
            where=where_of(ctx),
            estimate=parts.token_estimate,
            summariser=partial(model_summary, ctx.summariser_model, seed=ctx.seed),
        )

    def policy_for(self, item: Item, call: CallHook) -> Policy:
        """Return who plays this rollout: the policy in use, or the scripted agent, which knows the item."""
        script = partial(call, "scripted_choices", self.scripted_choices, item)
        summary = partial(call, "scripted_summary", self.scripted_summary, item)
        skill = self.config.scripted_skill
        if self.policy is not None:
            return policy_for_rollout(self.policy, script, summary, skill)
        return ScriptedPolicy(script, skill=skill, renderer=self.renderer, summary=summary)

    def scoring(self) -> NewScoring:
        """How each rollout is scored: the one hook that `TurnLevelRewardMixin` takes over."""
        refuse_no_reward(self)
        return scalar_scoring(self)

    # Its life.

    @asynccontextmanager
    async def opened(
        self,
        *,
        evaluation: bool = False,
        waits: bool = False,
        notify: Callable[[str], None] = _LOG.info,
    ) -> AsyncGenerator[Self]:
        """Open the environment: load its items, and check everything that a rollout needs.

        Args:
            evaluation: load the evaluation items.
            waits: wait for model servers that do not answer yet.
            notify: takes a line for a person when something takes long, such as pulling an image.

        Raises:
            UsageError: if there are no items, no isolation, no image or no model server, or it is
                open already.
            RunError: if what the class writes for its setup broke, which is the cause.
        """
        async with self.lifecycle.opened(evaluation=evaluation, waits=waits, notify=notify):
            await self.preflight(notify)
            yield self

    async def preflight(self, notify: Callable[[str], None] = _LOG.info) -> None:
        """Fail now rather than in every rollout: check image, isolation and policy.

        Raises:
            IsolationError: if no sandbox can be made here.
            ConfigError: if the image cannot be had, or a model server does not answer as one.
        """
        await self.lifecycle.preflight(notify)

    @asynccontextmanager
    async def loaded(self, *, evaluation: bool = False) -> AsyncGenerator[Self]:
        """Set the environment up with its items alone, where nothing is rolled out.

        Raises:
            UsageError: if there are no items, or it is open already.
            RunError: as for `opened`.
        """
        async with self.lifecycle.loaded(evaluation=evaluation):
            yield self

    async def __aenter__(self) -> Self:
        opened = self.opened()
        await opened.__aenter__()
        self._opened = opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    @property
    def items(self) -> Sequence[Item]:
        """The items, in the order of `item_ids`.

        Raises:
            ConfigError: if the environment is not open.
        """
        return self.lifecycle.items

    @property
    def item_ids(self) -> Sequence[str]:
        """The id of each item; empty before the environment is open."""
        return self.lifecycle.item_ids

    def tasks(self) -> list[GroupTask]:
        """Return the groups to roll out: every item once, or `total_steps` of them.

        Raises:
            ConfigError: if the environment is not open.
        """
        return self.lifecycle.tasks()

    def tasks_for_ever(self, first: int) -> Iterator[GroupTask]:
        """Yield the same groups without an end, from group number `first` on."""
        return self.lifecycle.tasks_for_ever(first)

    def open_sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox as class and config ask for."""
        return self.lifecycle.parts.sandboxes.open()

    # What it is made of.

    @property
    def toolset(self) -> Toolset:
        """The tools that agents get; those of MCP servers are among them while the environment is open."""
        return self.lifecycle.toolset

    @property
    def policy(self) -> Policy | None:
        """Who plays; `None`: the scripted agent."""
        return self.lifecycle.parts.policy

    @property
    def policy_name(self) -> str:
        """The policy's name in the record."""
        return f"scripted:{self.config.scripted_skill:g}" if self.policy is None else self.policy.name

    @property
    def renderer(self) -> ChatMLRenderer:
        """Makes token ids of messages, for the scripted agent and for estimates."""
        return self.lifecycle.parts.renderer

    @property
    def servers(self) -> tuple[ServerConfig, ...]:
        """The model servers that play."""
        return self.lifecycle.parts.servers

    @property
    def estimator(self) -> str:
        """The estimator in use."""
        return self.lifecycle.parts.estimator

    @classmethod
    def cli(cls) -> NoReturn:
        """Run the command line of this one environment: `python my_env.py process --env.group_size 4`."""
        import_module("turnwise.cli.main").main_for(cls)
        raise AssertionError("main_for ends the process")
