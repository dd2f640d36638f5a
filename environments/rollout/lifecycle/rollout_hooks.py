"""The hooks of an environment, called for one rollout or one group, with item, context and limits."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncContextDecorator, AsyncExitStack, ContextDecorator, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from inspect import isasyncgen, isgenerator
from math import floor
from typing import Any, cast

from environments.credit.crediting import ANY_GROUP, comparable
from environments.policy.base import Policy, find_scorer
from environments.policy.scripted import PlaysByScript, ScriptedPolicy
from environments.policy.second_models import SecondModel
from environments.policy.text_scorer import TextScorer, by_question
from environments.rewards.reward_checks import (
    check_metrics,
    check_reward,
    check_text,
    optional_reward,
    raw_parts,
    reward_list,
    turn_values,
    where_of,
)
from environments.rewards.reward_context import USER_VOTE, GroupContext, RolloutContext
from environments.rollout.agent_loop import AgentLoop, Loop, opening_messages, reply_messages
from environments.rollout.agents.command import HookPlayer
from environments.rollout.boundary import blame_agent, drop_tracebacks, failure_of, unwrap_user_error
from environments.rollout.branching import ReplayingPolicy, is_drawn, one_of_each_trunk, refuse_difference
from environments.rollout.condensing import model_summary
from environments.rollout.containment.hook_calls import END, HookCalls, InFlight, Watch
from environments.rollout.hooks import Hooks, hooks_of, takes_context, writes
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.lifecycle import Lifecycle
from environments.rollout.model_calls import Budget, ModelCalls, budget_of
from environments.trajectory import (
    ENFORCED,
    AgentCaused,
    Message,
    Rewards,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.errors import (
    AgentCausedError,
    ConfigError,
    NoModelError,
    RewardError,
    RolloutError,
    TimeLimitExceeded,
)
from tools.registry import Toolset
from tools.toolsets import refuse_state, select_tools
from tools.waiting import to_the_end

NewJudge = Callable[[HookCalls], SecondModel]

_LOG = logging.getLogger(__name__)
_AFTERWARDS_S = 10.0
"""Limit of the code after the `yield` of `prepare`."""
_LEAST_SECRET = 8
"""Characters. Shorter API keys are placeholders, and words that texts may contain."""
_PART = "group"
"""Name of `score_group`'s part of an outcome; named parts are `group.NAME`."""


@asynccontextmanager
async def open_rollout(
    life: Lifecycle, task: GroupTask, sibling: int, calls: HookCalls, trunk: Trajectory | None = None
) -> AsyncGenerator["RolloutHooks"]:
    """Open a rollout; a branch samples with a seed of its own, and shares its trunk's in all else."""
    config, sandboxes = life.config, life.sandboxes
    spec = await life.sandbox_spec(task.item, calls)
    async with AsyncExitStack() as opened:
        snapshot = await life.snapshot(spec, task.item, calls, opened)
        open_own, open_fresh = life.sandbox_openers(spec, snapshot)
        own = calls.sandbox(open_own) if sandboxes.are_opened else open_own()
        ctx = RolloutContext(
            env=life.env.name,
            item_id=task.item_id,
            item=task.item,
            seed=task.seed(config.seed, sibling if trunk is None else trunk.sibling),
            group_seed=task.group_seed(config.seed),
            sandbox=await opened.enter_async_context(own),
            fresh_sandbox=open_fresh,
            verify_timeout_s=config.verify_timeout_s,
            artefacts_bytes=config.artefacts_mb << 20,
            judge_model=life.second_model("judge", task, calls),
            user_model=life.second_model("user", task, calls),
            summariser_model=life.second_model("summariser", task, calls),
        )
        hooks = RolloutHooks(life, ctx, calls, seed=task.seed(config.seed, sibling))
        if trunk is not None:
            hooks.replay(trunk)
        await opened.enter_async_context(hooks.prepare())
        hooks.tools = await opened.enter_async_context(life.parts.mcp.for_rollout(life.toolset))
        yield hooks


class RolloutHooks:
    """The hooks of one rollout; those that a class does not write cost nothing."""

    def __init__(self, life: Lifecycle, ctx: RolloutContext, calls: HookCalls, *, seed: int) -> None:
        self.life, self._env, self._config = life, life.env, life.config
        self.ctx, self.calls, self._written = ctx, calls, hooks_of(life.env)
        self.tools = life.toolset
        self._seed = seed
        self.trunk: Trajectory | None = None
        self.replayed = 0
        """Number of turns that a branch replays."""
        self.branch_turn: int | None = None
        self.scoring = life.parts.new_scoring(ctx.item, ctx, calls.hook)
        self._anchor: str | None = None
        self._metrics: dict[str, float] = {}

    def replay(self, trunk: Trajectory) -> None:
        """Replay the turns before the trunk's branch turn first, with the answers that it got."""
        self.trunk, self.branch_turn, ctx = trunk, trunk.branch_turn, self.ctx
        self.replayed = trunk.branch_turn or 0
        for model, given in (
            (ctx.judge_model, trunk.judge_calls),
            (ctx.user_model, trunk.user_calls),
            (ctx.summariser_model, trunk.summariser_calls),
        ):
            for call in given:  # the trunk's record has their cost
                model.replayed.setdefault(call.messages, []).append(replace(call, usage={}))

    async def make_loop(self, task: GroupTask) -> Loop:
        """Return the loop that calls model and tools: our own, or one that records an agent's requests."""
        life, ctx, calls, env, parts = self.life, self.ctx, self.calls, self._env, self.life.parts
        policy, prompt = self._policy(), await self.opening()
        if self.trunk is not None and prompt != self.trunk.prompt:
            raise RolloutError("branch refused, since its replay gave another prompt")
        budget, toolset = await self._budget(), await self._toolset(self.tools)
        secrets = [each for each in self._config.secrets if len(each) >= _LEAST_SECRET]
        ctx.text_scorer = TextScorer(
            ask=lambda request, text: find_scorer(policy)(request, text),
            reference=None if parts.reference is None else parts.reference.score,
            tools=toolset.specs,
            seed=ctx.seed,
            hook=lambda: calls.hook_name,
            recorded=by_question(self.trunk.text_scores if self.trunk else ()),
        )
        if parts.endpoints is None:
            return AgentLoop(
                policy=policy if self.trunk is None else ReplayingPolicy(policy, self.trunk),
                toolset=toolset,
                sandbox=ctx.sandbox,
                messages=prompt,
                budget=budget,
                seed=self._seed,
                calls=calls,
                context=ctx,
                respond=self._respond if "respond" in self._written else None,
                before_act=partial(self._choose_branch, max_turns=budget.max_turns),
                condensers=parts.condensers,
                where=where_of(ctx),
                estimate=parts.token_estimate,
                summariser=partial(model_summary, ctx.summariser_model, seed=ctx.seed),
                hidden=secrets,
            )
        # The server of the endpoint loads slowly.
        from environments.rollout.agents.recorded_loop import RecordedLoop  # noqa: PLC0415

        keys = {each.api_key or "" for each in (*parts.servers, *parts.second_servers)}
        if env.agent is None:
            player = HookPlayer(partial(calls.beside, partial(env.play, ctx.item, ctx), doing="play"))
        else:
            text = "\n\n".join(message.content for message in prompt)
            player = env.agent.player(text, ctx.sandbox, parts.warm_starts)
        return RecordedLoop(
            player=player,
            server=parts.endpoints,
            calls=ModelCalls(
                policy=policy, tools=(), budget=budget, seed=ctx.seed, calls=calls, is_parallel=True
            ),
            context=ctx,
            anchor=lambda: self._anchor,
            prompt=prompt,
            others={name: life.second_model(role, task, calls) for name, role in env.other_models.items()},
            estimate=parts.token_estimate,
            hidden=sorted([*secrets, *(key for key in keys if len(key) >= _LEAST_SECRET)]),
            constraints=parts.constraints,
        )

    def _policy(self) -> Policy:
        env, item, parts, skill = self._env, self.ctx.item, self.life.parts, self._config.scripted_skill
        script = partial(self.calls.hook, "scripted_choices", env.scripted_choices, item)
        summary = partial(self.calls.hook, "scripted_summary", env.scripted_summary, item)
        if isinstance(parts.policy, PlaysByScript):
            return parts.policy.playing_by_script(script, summary, skill)
        if parts.policy is not None:
            return parts.policy
        return ScriptedPolicy(script, skill=skill, renderer=parts.renderer, summary=summary)

    async def play(self, loop: Loop, turns: list[Turn]) -> AgentCaused | None:
        """Add each turn of a loop to `turns` once it is scored. Return what the agent broke, if anything."""
        broken = None
        try:
            async with aclosing(loop.turns()) as sampled:
                async for turn in sampled:
                    if turn.weight_version is not None:
                        self.life.weight_versions.note(turn)
                    try:
                        turn = await self._note_state(turn)
                        await self.scoring.on_turn(turn)
                        turn = await self.mark(turn)
                        if self.trunk is not None:
                            refuse_difference(self._env, turn, self.ctx, self.trunk)
                    finally:  # the record includes a turn that broke
                        turns.append(turn)
                    self.ctx.files.turn = len(turns)
            self.ctx.files.turn = None
            if self._env.keep:
                await self.ctx.keep(*self._env.keep)
        except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
            broken = blame_agent(error)
            turns += loop.break_off(broken)
        finally:
            self.ctx.is_over, self.ctx.files.turn = True, None
        if len(turns) < self.replayed:
            raise RolloutError(f"branch refused, since its replay ended early: after turn {len(turns)}")
        return broken

    async def _choose_branch(self, act: int, *, max_turns: int) -> None:
        """Choose the next turn as the branch turn, from what precedes its request."""
        config, ctx, env = self._config, self.ctx, self._env
        if config.branches == 1 or self.branch_turn is not None or self.life.is_evaluation:
            return
        if config.branch_at == "hook":
            given = await self.calls.hook("branch_at", env.branch_at, ctx.item, ctx)
            is_chosen = _check_flag(given, f"{where_of(ctx)}, before turn {act}: branch_at")
        elif config.branch_at == "draw":
            is_chosen = is_drawn(act, ctx.seed, max_turns)
        else:
            is_chosen = act == config.branch_at
        self.branch_turn = ctx.files.turn if is_chosen else None

    @asynccontextmanager
    async def prepare(self) -> AsyncGenerator[None]:
        """Keep the state of the hook `prepare` open until the rewards are known."""
        if "prepare" not in self._written:
            yield
            return
        ctx = self.ctx
        hook = partial(self._env.prepare, *self._with_context(self._env.prepare, ctx.item, ctx.sandbox))
        limit_s = self._config.hook_timeout_s
        given = await self.calls.run(hook, doing="prepare", limit_s=limit_s, setting="hook_timeout_s")
        if isinstance(given, ContextDecorator | AsyncContextDecorator):
            raise ConfigError(
                f"environment {self._env.name!r}: prepare gave a context manager, which nobody enters; take "
                f"@contextmanager away, a generator with one `yield` is what prepare may be"
            )
        if not isgenerator(given) and not isasyncgen(given):
            ctx.state = given
            yield
            return
        following = self.calls.step_generator(cast("Any", given))
        try:
            ctx.state = await self.calls.hook("prepare", following)
        except (asyncio.CancelledError, TimeLimitExceeded):
            # A `def` still runs to its `yield`.
            await to_the_end(self._close_state(following))
            raise
        if ctx.state is END:
            raise self._not_once("ended without")
        try:
            yield
        finally:
            is_over = await to_the_end(self._close_state(following))
        if not is_over:
            raise self._not_once("goes on to another")

    async def _close_state(self, following: Callable[[], Any]) -> bool:
        """Run the code after the `yield`, and return whether the generator is finished.

        An error there is only logged: the rewards are known, and the agent may be its cause, so that a
        failure would bias the selection.
        """
        try:
            rest = await self.calls.run(following, doing="prepare, after its yield", limit_s=_AFTERWARDS_S)
        except Exception as error:  # noqa: BLE001  # by the environment's code; logged
            broken = failure_of(error, sibling=0, turns=0)
            where = f"{self._env.name}, item {self.ctx.item_id}: prepare, after its yield"
            _LOG.log(self.life.failure_kinds.level(broken.kind), "%s: %s", where, broken.error)
            drop_tracebacks(error)
            return True
        return rest is END

    def _not_once(self, wrong: str) -> ConfigError:
        return ConfigError(
            f"environment {self._env.name!r}: prepare {wrong} `yield`; a generator yields the state once"
        )

    async def _toolset(self, toolset: Toolset) -> Toolset:
        env, ctx = self._env, self.ctx
        if "tools_for" in self._written:
            names = await self._ask("tools_for", env.tools_for, ctx.item)
            where = f"environment {env.name!r}, item {ctx.item_id!r}: tools_for"
            toolset = select_tools(toolset, names, env.tools, where)
        refuse_state(toolset, cast("type[Any]", type(ctx.state)), "the state is of class")
        return toolset

    async def opening(self) -> tuple[Message, ...]:
        env, opening = self._env, tuple[Message, ...]()
        if "format_prompt" in self._written:
            prompt = await self._ask("format_prompt", env.format_prompt, self.ctx.item)
            opening = opening_messages(prompt, system=env.system_prompt, env=env.name)
            self.ctx.messages = opening
        self._anchor = await self._state_after(None)
        return opening

    async def _budget(self) -> Budget:
        if "limits_for" not in self._written:
            return budget_of(self._config)
        limits = await self.calls.hook("limits_for", self._env.limits_for, self.ctx.item)
        return budget_of(self._config, limits, env=self._env.name)

    async def _respond(self, turn: Turn) -> tuple[Message, ...]:
        given = await self.calls.hook("respond", self._env.respond, self.ctx.item, turn, self.ctx)
        return reply_messages(given, env=self._env.name)

    async def _note_state(self, turn: Turn) -> Turn:
        # A recorded agent's turn has the state at its request: other threads may have acted since.
        before = self._anchor if turn.anchor is None else turn.anchor
        if turn.kind != "act":  # the world has not changed
            return replace(turn, anchor=before)
        self._anchor = await self._state_after(turn)
        metrics = check_metrics(self.ctx)
        noted = {name: value for name, value in metrics.items() if self._metrics.get(name) != value}
        return replace(turn, anchor=before, noted=noted)

    async def mark(self, turn: Turn) -> Turn:
        """Return the scored turn, with `trained` unset if class or settings exclude it from training."""
        env = self._env
        is_masked = self._config.mask_truncated and turn.finish_reason == "length"
        threads = (env.train_threads, env.agent and env.agent.train_threads)
        is_masked = is_masked or turn.index < self.replayed
        is_masked = is_masked or (turn.without_tools and "with_tools" in threads) or ENFORCED in turn.sampling
        if "train_turn" in self._written:
            given = await self.calls.hook("train_turn", env.train_turn, self.ctx.item, turn, self.ctx)
            where = f"{where_of(self.ctx)}, turn {turn.index + 1}: train_turn"
            turn = replace(turn, trained=_check_flag(given, where))
        if turn.kind == "act":
            self.ctx.metrics.pop(USER_VOTE, None)  # it belongs to this turn alone
            self._metrics = dict(self.ctx.metrics)
        return replace(turn, trained=False) if is_masked else turn

    async def score(self, bare: Trajectory) -> Trajectory:
        """Return the trajectory with rewards and values, or with the floor if the agent broke it."""
        rewards: Rewards | None = None
        if bare.agent_caused is None:
            try:
                rewards = await self.scoring.finish(bare)
            except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
                if bare.stop_reason is not StopReason.AGENT_ERROR or bare.agent is None:
                    caused = blame_agent(error)
                else:  # the files and answers that hooks look for may be missing
                    drop_tracebacks(error)
                    caused = AgentCaused(cause="agent_error", error=bare.agent.error)
                bare = replace(bare, agent_caused=caused)
        if rewards is None:
            rewards = self.scoring.floor(bare, self.life.parts.failed_score)
        ctx = self.ctx
        if "values" in self._written:
            given = await self.calls.hook("values", self._env.values, ctx.item, bare)
            bare = turn_values(given, bare, f"{where_of(ctx)}: values")
        scored = replace(bare, text_scores=tuple(ctx.text_scorer.scores))
        return scored.with_rewards(rewards, check_metrics(ctx), tuple(ctx.judge_model.calls))

    async def _state_after(self, turn: Turn | None) -> str | None:
        if "state_key" not in self._written:
            return None
        anchor = await self._ask("state_key", self._env.state_key, self.ctx.item, turn)
        after = "before the first turn" if turn is None else f"turn {turn.index + 1}"
        where = f"environment {self._env.name!r}, item {self.ctx.item_id!r}, {after}: what state_key gave"
        return None if anchor is None else check_text(anchor, where)

    async def _ask(self, name: str, hook: Callable[..., Any], *args: Any) -> Any:
        return await self.calls.hook(name, hook, *self._with_context(hook, *args))

    def _with_context(self, hook: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        return (*args, self.ctx) if takes_context(hook, len(args)) else args


def _check_flag(given: Any, where: str) -> bool:
    # A bool of Python or numpy, which loads slowly.
    kind = cast("type[object]", type(given))
    if kind is not bool and (kind.__module__, kind.__name__.strip("_")) != ("numpy", "bool"):
        raise ConfigError(f"{where} gave {given!r:.100}; give True or False")
    return bool(given)


def has_group_reward(env: Hooks) -> bool:
    return writes(env, "score_group")


async def with_group_reward(
    life: Lifecycle, task: GroupTask, group: TrajectoryGroup, watch: Watch, judge: NewJudge | None = None
) -> TrajectoryGroup:
    """Return the group with the rewards of `score_group`, or with the error that it raised.

    The hook does not see trajectories that the agent broke. If an agent's text makes the judge's answer
    unusable, no trajectory gets a part. `judge` replaces the rollouts' judge. With branches the hook is
    called several times, each with one continuation of every trunk.
    """
    env = life.env
    rounds = one_of_each_trunk(group)
    whole = rounds[0] if rounds else ()
    if not has_group_reward(env) or not whole:
        return group
    task = task.for_rollout()
    in_flight = InFlight(item_id=task.item_id, sibling=whole[0].sibling)
    with watch(in_flight), life.hook_calls(in_flight) as calls:
        ctx = GroupContext(
            env=env.name,
            item_id=task.item_id,
            item=task.item,
            group_seed=task.group_seed(life.config.seed),
            judge_model=life.second_model("judge", task, calls) if judge is None else judge(calls),
        )
        where = f"environment {env.name!r}, item {task.item_id!r}: score_group"
        try:
            compared = group
            for shown in rounds:
                given = await calls.hook("score_group", env.score_group, ctx.item, shown, ctx)
                # Reading the result may run user code.
                compared = await calls.hook("score_group", _with_parts, compared, shown, given, where)
        except NoModelError:
            raise  # other groups could not be judged, either
        except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a number
            cause = unwrap_user_error(error)
            if isinstance(cause, AgentCausedError):  # no sibling may refuse the others
                _LOG.warning("%s gave no part: %s", where, cause)
                compared = group
            else:
                broken = failure_of(cause, sibling=0, turns=0)
                _LOG.log(life.failure_kinds.level(broken.kind), "%s broke\n%s", where, broken.traceback)
                compared = replace(group, error=f"score_group broke: {broken.error}")
        profile = group.profile or calls.profile  # a record has the profile of its rollouts
        return replace(compared, judge_calls=tuple(ctx.judge_model.calls), profile=profile)


def not_compared(env: Hooks, group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """Mark an incomparable group as failed, if only `score_group` could have compared it."""
    if not has_group_reward(env) or comparable(group, ANY_GROUP)[1] is None:
        return group
    return replace(group, error=f"{reason} (score_group was not asked)")


def _with_parts(
    group: TrajectoryGroup, shown: Sequence[Trajectory], given: Any, where: str
) -> TrajectoryGroup:
    if given is None:
        return group
    entries = reward_list(given, len(shown), where, each="sibling")
    parts = {id(each): entry for each, entry in zip(shown, entries, strict=True)}
    # A trajectory that has its part is another object than the one shown.
    trajectories = tuple(
        _with_part(each, parts[id(each)], f"{where}, sibling {each.sibling}") if id(each) in parts else each
        for each in group.trajectories
    )
    return replace(group, trajectories=trajectories)


def _with_part(trajectory: Trajectory, entry: Any, where: str) -> Trajectory:
    rewards = trajectory.rewards
    part, named = optional_reward(entry, where)
    if part is None or rewards is None:
        return trajectory
    parts = {f"{_PART}.{name}": value for name, value in named.items()} or {_PART: part}
    if taken := sorted(rewards.outcome_parts.keys() & parts.keys()):
        raise RewardError(f"{where}: the outcome has a part named {taken[0]!r} already; name it otherwise")
    rewards = replace(
        rewards,
        outcome=check_reward((rewards.outcome or 0.0) + part, f"{where}: the sum with the outcome"),
        score=check_reward((rewards.score or 0.0) + part, f"{where}: the sum with the score"),
        outcome_components={**rewards.outcome_parts, **parts},
        outcome_raw={**rewards.outcome_raw, **{f"{_PART}.{n}": v for n, v in raw_parts(entry).items()}},
        group=part,
    )
    return replace(trajectory, rewards=rewards)


def propose_floor(honest_score: float | None, failed_score: float) -> float | None:
    """Return a `failed_score` that is at most the least score of a rollout that no agent broke."""
    if honest_score is None or honest_score >= failed_score:
        return None
    return floor(honest_score * 1e6) / 1e6


def floor_advice(honest_score: float | None, failed_score: float) -> str:
    if (proposed := propose_floor(honest_score, failed_score)) is None:
        return ""
    return (
        f"a rollout that the agent breaks scores more (failed_score {failed_score:g}) than the least that it "
        f"got honestly: set failed_score = {proposed}"
    )
