"""The whole flow: item → rollouts → rewards → group → advantages.

`AgentEnv` is the only place that knows generation, reward and credit; none of them knows another.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from contextlib import nullcontext as unwatched
from dataclasses import replace
from functools import partial
from importlib import import_module
from time import monotonic
from typing import NoReturn

from environments.config import (
    AgentEnvConfig,
    ModelServerConfig,
    ServerConfig,
    checked_config,
    server_configs,
)
from environments.credit import GroupRules, comparable, credited, describe, missing_outcome_of, read_params
from environments.policy.base import Policy, checked_policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import ScriptedPolicy, playing
from environments.rewards.reward_context import RolloutContext
from environments.rollout.agent_loop import AgentLoop, Loop
from environments.rollout.boundary import Boundary, Slots, caused_by_agent
from environments.rollout.condensing import model_summary
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.containment.hook_threads import MOST_PINNED
from environments.rollout.containment.user_code import InFlight, Watch
from environments.rollout.hooks import (
    Item,
    pins_thread,
    plays_on_thread,
    refuse_missing_parts,
    refuse_no_reward,
)
from environments.rollout.items.item_json import item_hash, recorded_item
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.env_lifecycle import Lifecycle
from environments.rollout.lifecycle.group_reward import NewJudge, not_compared, with_group_reward
from environments.rollout.lifecycle.hook_signatures import check_hooks, refuse_other_states
from environments.rollout.lifecycle.rollout_hooks import RolloutHooks
from environments.rollout.lifecycle.rollout_parts import (
    below_floor,
    env_condensers,
    failed_score_of,
    recording_of,
    refuse_no_summariser,
    second_models,
    served_policy,
    split_servers,
)
from environments.rollout.prompt_tokens import TokenEstimate
from environments.trajectory import (
    AgentCaused,
    CreditedGroup,
    Failure,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from environments.turn_level_reward import CallHook, NewScoring, scalar_scoring, where_of
from tools.registry import Toolset
from tools.sandbox.base import record_of
from tools.toolsets import select_toolsets

_LOG = logging.getLogger(__name__)


class AgentEnv(Lifecycle):
    """An agent acts with tools, in a sandbox or in none, and the world may answer. Subclass it.

    Set `name` and `tools`; write `format_prompt` and a reward; all other `Hooks` have defaults. In your own
    loop: `async with MyEnv(config, policy=…) as env: group = await env.run_group(env.tasks()[0])`.
    """

    def scoring(self) -> NewScoring:
        """How each rollout is scored: the one hook that `TurnLevelRewardMixin` takes over."""
        refuse_no_reward(self)
        return scalar_scoring(self)

    # The flow, from item to credit.

    async def run_group(
        self, task: GroupTask, size: int | None = None, *, watch: Watch = unwatched
    ) -> CreditedGroup:
        """Roll an item out `size` times, or `group_size`, and give every turn its advantage.

        Raises:
            RunError: too much of the environment's code hangs; a rollout that breaks is a `Failure`.
            UsageError: the environment is not open.
        """
        size = self.config.group_size if size is None else size
        return self.credit(await self.compare(task, await self.rollout_group(task, size, watch=watch), watch))

    async def rollout_group(self, task: GroupTask, size: int, *, watch: Watch = unwatched) -> TrajectoryGroup:
        """`size` siblings side by side; those that break are failures, and the others go on.

        Siblings that the task has already count among them.
        """
        self.refuse_rollouts_before_setup()
        self.refuse_abandoned()
        item, identity = recorded_item(task.item), item_hash(task.item)
        boundary = Boundary(f"{self.name}, item {task.item_id}", self.met_kinds)
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

    async def rollout(self, task: GroupTask, sibling: int, turns: list[Turn], calls: HookCalls) -> Trajectory:
        """One rollout, scored before its state and its sandbox close. `turns` grows as they happen."""
        started = monotonic()
        async with (
            self.open_rollout(task, sibling, calls) as (ctx, hooks),
            self.mcp.for_rollout(self.toolset) as tools,
        ):
            scoring = self._new_scoring(task.item, ctx, calls.hook)
            loop = await self._loop(task, ctx, hooks, tools, calls)
            broken: AgentCaused | None = None
            try:
                async with aclosing(loop.turns()) as following:
                    async for turn in following:
                        self.weight_versions.meet(turn)
                        turns.append(turn)
                        turns[-1] = await hooks.observed(turn)
                        await scoring.on_turn(turns[-1])
                        turns[-1] = await hooks.marked(turns[-1])
                        ctx.files.turn = len(turns)
                ctx.files.turn = None
                if self.keep:
                    await ctx.keep(*self.keep)
            except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
                broken = caused_by_agent(error)
                turns += loop.broken_off(broken)
            ctx.is_over, ctx.files.turn = True, None
            scored_in_order = [turn.index for turn in turns]
            played = loop.played(turns, ctx.turn_scores)
            ctx.turn_scores = played.scores
            trajectory = Trajectory(
                item_id=task.item_id,
                sibling=sibling,
                seed=ctx.seed,
                prompt=played.prompt,
                turns=tuple(played.turns),
                rows=played.rows,
                tools=played.tools,
                stop_reason=played.stop_reason,
                end_reason=ctx.end_reason,
                agent_caused=broken,
                agent=played.agent,
                user_calls=tuple(ctx.user_model.calls),
                summariser_calls=tuple(ctx.summariser_model.calls),
                other_calls=played.other_calls,
                exact=played.exact,
                sandbox=record_of(ctx.sandbox),
                wall_s=monotonic() - started,
            )
            trajectory = await hooks.scored(scoring, trajectory)
            taken = ctx.files.artefacts(scored_in_order)
            return replace(trajectory, artefacts=taken, contents=ctx.files.contents)

    async def compare(
        self, task: GroupTask, group: TrajectoryGroup, watch: Watch, judge: NewJudge | None = None
    ) -> TrajectoryGroup:
        """The siblings that can be compared, with the part of their outcome that compares them."""
        group, incomparable = comparable(group, self._rules)
        if incomparable is not None:
            return not_compared(self, group, incomparable)
        group = await with_group_reward(self, task, group, watch, judge)
        if below := below_floor(group.trajectories, self.failed_score):
            _LOG.warning("%s: %s", self.name, below)
        return group

    def credit(self, group: TrajectoryGroup) -> CreditedGroup:
        """Advantages for every turn, unless too few siblings survived to compare."""
        return credited(
            group,
            self.estimator,
            policy=self.policy_name,
            preset=self.config.estimator_preset,
            params=self.estimator_params,
            rules=self._rules,
        )

    def withhold_stale(self, credited: CreditedGroup) -> CreditedGroup:
        """The group as it may be trained on by now: without credit for siblings older than `max_staleness`.

        For those who run groups, once one has ended: its age counts the weights that all rollouts met since.

        Raises:
            ConfigError: age is bounded, and no completion has ever named a version of the weights.
        """
        return self.weight_versions.withheld(credited)

    async def _sibling(
        self, task: GroupTask, sibling: int, watch: Watch, boundary: Boundary
    ) -> Trajectory | Failure:
        """One rollout in its slot; whatever breaks in it drops this sibling and nothing else."""
        turns: list[Turn] = []
        async with self._slots.one():
            in_flight = InFlight(item_id=task.item_id, epoch=task.epoch, sibling=sibling)
            with watch(in_flight), self.hook_calls(in_flight) as calls:
                try:
                    trajectory = await self.rollout(task.for_rollout(), sibling, turns, calls)
                    return replace(trajectory, profile=calls.profile)
                except BaseException as error:  # noqa: BLE001  # the one broad except: recorded, never scored
                    failure = boundary.failure_of(error, sibling, turns=len(turns), asked=calls.asked)
                    return replace(failure, profile=calls.profile)

    @asynccontextmanager
    async def open_rollout(
        self, task: GroupTask, sibling: int, calls: HookCalls
    ) -> AsyncGenerator[tuple[RolloutContext, RolloutHooks]]:
        """What a rollout begins with; its state and its sandbox close afterwards."""
        spec = await self.sandbox_spec(task.item, calls)
        async with AsyncExitStack() as opened:
            snapshot = await opened.enter_async_context(self.snapshot(spec, task.item, calls))
            open_own, open_fresh = self.sandbox_openers(spec, snapshot)
            own = calls.sandbox(open_own) if self.sandboxes.are_opened else open_own()
            sandbox = await opened.enter_async_context(own)
            ctx = RolloutContext(
                env=self.name,
                item_id=task.item_id,
                item=task.item,
                seed=task.seed(self.config.seed, sibling),
                group_seed=task.group_seed(self.config.seed),
                sandbox=sandbox,
                fresh_sandbox=open_fresh,
                verify_timeout_s=self.config.verify_timeout_s,
                artefacts_bytes=self.config.artefacts_mb << 20,
                judge_model=self.asked_model("judge", task, calls),
                user_model=self.asked_model("user", task, calls),
                summariser_model=self.asked_model("summariser", task, calls),
            )
            hooks = RolloutHooks(self, ctx, calls)
            async with hooks.prepared():
                yield ctx, hooks

    # What a rollout is made of.

    async def _loop(
        self, task: GroupTask, ctx: RolloutContext, hooks: RolloutHooks, tools: Toolset, calls: HookCalls
    ) -> Loop:
        """Who owns the loop of model and tools: we do, or an agent that is recorded."""
        policy, prompt = self.policy_for(task.item, calls.hook), await hooks.opening()
        budget, toolset = await hooks.budget(), await hooks.toolset(tools)
        if self.recording is not None:
            return self.recording.loop(self, task, ctx, policy, prompt, budget, hooks.anchor, calls)
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
            condensers=self.condensers,
            where=where_of(ctx),
            estimate=self.token_estimate,
            summariser=partial(model_summary, ctx.summariser_model, seed=ctx.seed),
        )

    def policy_for(self, item: Item, call: CallHook) -> Policy:
        """Who plays this rollout: the policy in use, or the scripted agent, which knows the item."""
        script = partial(call, "scripted_choices", self.scripted_choices, item)
        summary = partial(call, "scripted_summary", self.scripted_summary, item)
        skill = self.config.scripted_skill
        if self.policy is not None:
            return playing(self.policy, script, summary, skill)
        return ScriptedPolicy(script, skill=skill, renderer=self.renderer, summary=summary)

    # How it is made.

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
            UsageError: the class lacks something, or a setting cannot work.
        """
        own_config, own_servers = self.config_init()
        self.config = config = checked_config(own_config if config is None else config, type(self))
        missing = self.missing_outcome if config.missing_outcome is None else config.missing_outcome
        where = f"missing_outcome of {self.name!r}"
        self.missing_outcome = None if missing is None else missing_outcome_of(missing, where)
        self.failed_score = failed_score_of(self)
        self._rules = GroupRules(min_trajectories=config.min_group_size, missing_outcome=self.missing_outcome)
        self.estimator = config.estimator or self.default_estimator
        params = config.estimator_params
        describe(self.estimator).refuse_alone()
        self.estimator_params = read_params(self.estimator, config.estimator_preset, params)
        check_hooks(self)
        refuse_missing_parts(self, self.estimator)
        self._new_scoring = self.scoring()
        self.toolset = select_toolsets(self.tools, config.enabled_toolsets)
        refuse_other_states(self.toolset, self.prepare, self.name)
        self.condensers = env_condensers(config, self.condenser, env=self.name)
        self.renderer = ChatMLRenderer.load(config.tokenizer_name)
        self.token_estimate = TokenEstimate(self.renderer)
        known = server_configs(own_servers if servers is None else servers)
        self.servers, self.second_servers = split_servers(known)
        self.second_models = second_models(config, self.second_servers)
        refuse_no_summariser(self, self.condensers, self.second_models.roles)
        self._served = None if policy is not None else served_policy(config, self.servers, self.renderer)
        self.policy = self._served if policy is None else checked_policy(policy)
        self.recording = recording_of(self)
        pinned = pins_thread(self) + plays_on_thread(self)
        most = MOST_PINNED // pinned if pinned else config.max_concurrent_rollouts
        self._slots = Slots(min(most, config.max_concurrent_rollouts))
        super().__init__()

    @classmethod
    def config_init(cls) -> tuple[AgentEnvConfig, list[ModelServerConfig]]:
        """Class defaults. Without a `base_url` there is no model server, and the scripted agent plays."""
        return cls.env_config_cls(), [ServerConfig()]

    @property
    def policy_name(self) -> str:
        """The policy's name in the record."""
        return f"scripted:{self.config.scripted_skill:g}" if self.policy is None else self.policy.name

    @classmethod
    def cli(cls) -> NoReturn:
        """The command line of this one environment: `python my_env.py process --env.group_size 4`."""
        import_module("turnwise.cli.main").main_for(cls)
        raise AssertionError("main_for ends the process")
