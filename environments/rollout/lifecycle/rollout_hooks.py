"""An environment's hooks, called for one rollout or one group: with item and context, within their limits."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncContextDecorator, AsyncExitStack, ContextDecorator, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from inspect import isasyncgen, isgenerator
from typing import Any, cast

from environments.credit.crediting import ANY_GROUP, comparable
from environments.policy.second_models import SecondModel
from environments.rewards.reward_checks import (
    bounded_reward,
    checked_metrics,
    checked_text,
    optional_reward,
    raw_parts,
    reward_list,
    turn_values,
    where_of,
)
from environments.rewards.reward_context import USER_VOTE, GroupContext, RolloutContext
from environments.rollout.agent_loop import Loop, opening_messages, reply_messages
from environments.rollout.boundary import caused_by_agent, failure_of, let_go, raised_by_user
from environments.rollout.containment.hook_calls import END, HookCalls, InFlight, Watch
from environments.rollout.hooks import Hooks, takes_context, writes, written_hooks
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.lifecycle import Lifecycle
from environments.rollout.model_calls import Budget, budget_of
from environments.trajectory import (
    AgentCaused,
    Message,
    Rewards,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.errors import AgentCausedError, ConfigError, NoModelError, RewardError, TimeLimitExceeded
from tools.registry import Toolset
from tools.toolsets import refuse_state, select_tools
from tools.waiting import to_the_end

NewJudge = Callable[[HookCalls], SecondModel]

_LOG = logging.getLogger(__name__)
_AFTERWARDS_S = 10.0
"""For what follows the `yield` of `prepare`."""
_PART = "group"
"""Its name among the parts of an outcome; named parts of its own are `group.NAME`."""


@asynccontextmanager
async def open_rollout(
    life: Lifecycle, task: GroupTask, sibling: int, calls: HookCalls
) -> AsyncGenerator[tuple["RolloutHooks", Toolset]]:
    """Open what a rollout begins with: sandbox, context and state, and the environment's tools."""
    config, sandboxes = life.config, life.sandboxes
    spec = await life.sandbox_spec(task.item, calls)
    async with AsyncExitStack() as opened:
        snapshot = await opened.enter_async_context(life.snapshot(spec, task.item, calls))
        open_own, open_fresh = life.sandbox_openers(spec, snapshot)
        own = calls.sandbox(open_own) if sandboxes.are_opened else open_own()
        ctx = RolloutContext(
            env=life.env.name,
            item_id=task.item_id,
            item=task.item,
            seed=task.seed(config.seed, sibling),
            group_seed=task.group_seed(config.seed),
            sandbox=await opened.enter_async_context(own),
            fresh_sandbox=open_fresh,
            verify_timeout_s=config.verify_timeout_s,
            artefacts_bytes=config.artefacts_mb << 20,
            judge_model=life.asked_model("judge", task, calls),
            user_model=life.asked_model("user", task, calls),
            summariser_model=life.asked_model("summariser", task, calls),
        )
        hooks = RolloutHooks(life, ctx, calls)
        await opened.enter_async_context(hooks.prepared())
        yield hooks, await opened.enter_async_context(life.parts.mcp.for_rollout(life.toolset))


class RolloutHooks:
    """The hooks that a rollout calls; those that an environment does not write cost nothing."""

    def __init__(self, life: Lifecycle, ctx: RolloutContext, calls: HookCalls) -> None:
        self.life, self._env, self._config = life, life.env, life.config
        self.ctx, self.calls, self._written = ctx, calls, written_hooks(life.env)
        self.scoring = life.parts.new_scoring(ctx.item, ctx, calls.hook)
        self._anchor: str | None = None
        self._metrics: dict[str, float] = {}

    async def play(self, loop: Loop, turns: list[Turn]) -> AgentCaused | None:
        """Score each turn of a loop, and add it to `turns`. Return what the agent broke, if it did."""
        try:
            async with aclosing(loop.turns()) as following:
                async for turn in following:
                    self.life.weight_versions.meet(turn)
                    await self._score_turn(turn, turns)
            self.ctx.files.turn = None
            if self._env.keep:
                await self.ctx.keep(*self._env.keep)
        except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
            broken = caused_by_agent(error)
            turns += loop.broken_off(broken)
            return broken
        finally:
            self.ctx.is_over, self.ctx.files.turn = True, None
        return None

    async def _score_turn(self, turn: Turn, turns: list[Turn]) -> None:
        try:
            turn = await self._observed(turn)
            await self.scoring.on_turn(turn)
            turn = await self.marked(turn)
        finally:  # a turn that broke is in the record, too
            turns.append(turn)
        self.ctx.files.turn = len(turns)

    @asynccontextmanager
    async def prepared(self) -> AsyncGenerator[None]:
        """With the state that `prepare` gives, until the rewards are known.

        Raises:
            ConfigError: it is a generator that yields never, or twice.
        """
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
        following = self.calls.owned(cast("Any", given))
        try:
            ctx.state = await self.calls.hook("prepare", following)
        except (asyncio.CancelledError, TimeLimitExceeded):
            # A `def` goes on to its `yield` all the same.
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
        """Run what follows the `yield`; whether the generator is over then.

        An error there is logged: the rewards are known, and whether a state could be closed may
        depend on what the agent did, which is nothing to select by.
        """
        try:
            rest = await self.calls.run(following, doing="prepare, after its yield", limit_s=_AFTERWARDS_S)
        except Exception as error:  # noqa: BLE001  # of the environment's code, and logged
            broken = failure_of(error, sibling=0, turns=0)
            where = f"{self._env.name}, item {self.ctx.item_id}: prepare, after its yield"
            _LOG.log(self.life.failure_kinds.level(broken.kind), "%s: %s", where, broken.error)
            let_go(error)
            return True
        return rest is END

    def _not_once(self, wrong: str) -> ConfigError:
        return ConfigError(
            f"environment {self._env.name!r}: prepare {wrong} `yield`; a generator yields the state once"
        )

    async def toolset(self, toolset: Toolset) -> Toolset:
        """The tools of this rollout, among those of its environment.

        Raises:
            ConfigError: `tools_for` gave no names of tools, or a tool takes another state than there is.
        """
        env, ctx = self._env, self.ctx
        if "tools_for" in self._written:
            names = await self._ask("tools_for", env.tools_for, ctx.item)
            where = f"environment {env.name!r}, item {ctx.item_id!r}: tools_for"
            toolset = select_tools(toolset, names, env.tools, where)
        refuse_state(toolset, cast("type[Any]", type(ctx.state)), "the state is of class")
        return toolset

    async def opening(self) -> tuple[Message, ...]:
        """The conversation before the first turn."""
        env = self._env
        if "format_prompt" not in self._written:  # of an agent that asks what it likes
            self._anchor = await self._state_after(None)
            return ()
        prompt = await self._ask("format_prompt", env.format_prompt, self.ctx.item)
        opening = opening_messages(prompt, system=env.system_prompt, env=env.name)
        self.ctx.see(opening)
        self._anchor = await self._state_after(None)
        return opening

    def anchor(self) -> str | None:
        """The state that the next turn is taken in, as `state_key` names it."""
        return self._anchor

    async def budget(self) -> Budget:
        """What the rollout may spend."""
        if "limits_for" not in self._written:
            return budget_of(self._config)
        limits = await self.calls.hook("limits_for", self._env.limits_for, self.ctx.item)
        return budget_of(self._config, limits, env=self._env.name)

    async def respond(self, turn: Turn) -> tuple[Message, ...]:
        """The world's reply after a turn."""
        if "respond" not in self._written:
            return ()
        given = await self.calls.hook("respond", self._env.respond, self.ctx.item, turn, self.ctx)
        return reply_messages(given, env=self._env.name)

    async def _observed(self, turn: Turn) -> Turn:
        """The turn with the state that it began in, and with what was noted until its reward is asked for."""
        # A turn of a recorded agent has the state of its request: other threads have acted since.
        before = self._anchor if turn.anchor is None else turn.anchor
        if turn.kind != "act":  # the world has not changed
            return replace(turn, anchor=before)
        self._anchor = await self._state_after(turn)
        metrics = checked_metrics(self.ctx)
        noted = {name: value for name, value in metrics.items() if self._metrics.get(name) != value}
        return replace(turn, anchor=before, noted=noted)

    async def marked(self, turn: Turn) -> Turn:
        """The scored turn, marked when the environment leaves it out of training, or when it was cut."""
        turn = await self._marked(turn)
        if turn.kind == "act":
            self.ctx.metrics.pop(USER_VOTE, None)  # of this turn alone, which has noted it
            self._metrics = dict(self.ctx.metrics)
        return turn

    async def score(self, bare: Trajectory) -> Trajectory:
        """The trajectory with rewards and values: the floor, and no reward hook, where the agent broke it.

        Raises:
            RewardError: what the environment returned breaks the contract.
        """
        rewards: Rewards | None = None
        if bare.agent_caused is None:
            try:
                rewards = await self.scoring.finish(bare)
            except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
                if bare.stop_reason is not StopReason.AGENT_ERROR or bare.agent is None:
                    bare = replace(bare, agent_caused=caused_by_agent(error))
                else:  # what hooks look for is not there
                    let_go(error)
                    caused = AgentCaused(cause="agent_error", error=bare.agent.error)
                    bare = replace(bare, agent_caused=caused)
        if rewards is None:
            rewards = self.scoring.floor(bare, self.life.parts.failed_score)
        ctx = self.ctx
        if "values" in self._written:
            given = await self.calls.hook("values", self._env.values, ctx.item, bare)
            bare = turn_values(given, bare, f"{where_of(ctx)}: values")
        return bare.with_rewards(rewards, checked_metrics(ctx), tuple(ctx.judge_model.calls))

    async def _marked(self, turn: Turn) -> Turn:
        env = self._env
        is_masked = self._config.mask_truncated and turn.finish_reason == "length"
        threads = (env.train_threads, env.agent and env.agent.train_threads)
        is_masked = is_masked or (turn.without_tools and "with_tools" in threads)
        if "train_turn" not in self._written:
            return replace(turn, trained=False) if is_masked else turn
        given = await self.calls.hook("train_turn", env.train_turn, self.ctx.item, turn, self.ctx)
        if not _is_bool(given):
            raise ConfigError(
                f"environment {env.name!r}, item {self.ctx.item_id!r}, turn {turn.index + 1}: "
                f"train_turn gave {given!r:.100}; give True or False"
            )
        return replace(turn, trained=bool(given) and not is_masked)

    async def _state_after(self, turn: Turn | None) -> str | None:
        if "state_key" not in self._written:
            return None
        anchor = await self._ask("state_key", self._env.state_key, self.ctx.item, turn)
        after = "before the first turn" if turn is None else f"turn {turn.index + 1}"
        where = f"environment {self._env.name!r}, item {self.ctx.item_id!r}, {after}: what state_key gave"
        return None if anchor is None else checked_text(anchor, where)

    async def _ask(self, name: str, hook: Callable[..., Any], *args: Any) -> Any:
        return await self.calls.hook(name, hook, *self._with_context(hook, *args))

    def _with_context(self, hook: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        """The arguments of a hook that may take the context as its last one, or leave it out."""
        return (*args, self.ctx) if takes_context(hook, len(args)) else args


def _is_bool(value: object) -> bool:
    """Whether it is a bool, of Python's or of numpy's, which loads slowly."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def has_group_reward(env: Hooks) -> bool:
    """Whether the environment writes `score_group`."""
    return writes(env, "score_group")


async def with_group_reward(
    life: Lifecycle, task: GroupTask, group: TrajectoryGroup, watch: Watch, judge: NewJudge | None = None
) -> TrajectoryGroup:
    """The group with what `score_group` gives its trajectories; where that breaks, with the error alone.

    It is not asked about those that the agent broke; none has a part where a text of the agent's makes the
    judge's answer unusable.

    `judge` is the model to ask; `None`: the rollouts' judge.

    Raises:
        NoModelError: it asks a judge that has neither server nor script.
    """
    env = life.env
    whole = [each for each in group.trajectories if each.agent_caused is None]
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
            judge_model=life.asked_model("judge", task, calls) if judge is None else judge(calls),
        )
        where = f"environment {env.name!r}, item {task.item_id!r}: score_group"
        try:
            given = await calls.hook("score_group", env.score_group, ctx.item, tuple(whole), ctx)
            # Reading it runs code of theirs, too.
            compared = await calls.hook("score_group", _with_parts, group, given, where)
        except NoModelError:
            raise  # no other group would be judged either
        except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a number
            cause = raised_by_user(error)
            if isinstance(cause, AgentCausedError):  # no sibling may refuse the others
                _LOG.warning("%s gave no part: %s", where, cause)
                compared = group
            else:
                broken = failure_of(cause, sibling=0, turns=0)
                _LOG.log(life.failure_kinds.level(broken.kind), "%s broke\n%s", where, broken.traceback)
                compared = replace(group, error=f"score_group broke: {broken.error}")
        profile = group.profile or calls.profile  # that of a record is of the run that rolled out
        return replace(compared, judge_calls=tuple(ctx.judge_model.calls), profile=profile)


def not_compared(env: Hooks, group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """A group that fails before it is compared; `credit`, which asks no hook, cannot settle that either."""
    if not has_group_reward(env) or comparable(group, ANY_GROUP)[1] is None:
        return group
    return replace(group, error=f"{reason} (score_group was not asked)")


def _with_parts(group: TrajectoryGroup, given: Any, where: str) -> TrajectoryGroup:
    if given is None:
        return group
    whole = [each for each in group.trajectories if each.agent_caused is None]
    entries = iter(reward_list(given, len(whole), where, each="sibling"))
    trajectories = tuple(
        each if each.agent_caused else _with_part(each, next(entries), f"{where}, sibling {each.sibling}")
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
        outcome=bounded_reward((rewards.outcome or 0.0) + part, f"{where}: the sum with the outcome"),
        score=bounded_reward((rewards.score or 0.0) + part, f"{where}: the sum with the score"),
        outcome_components={**rewards.outcome_parts, **parts},
        outcome_raw={**rewards.outcome_raw, **{f"{_PART}.{n}": v for n, v in raw_parts(entry).items()}},
        group=part,
    )
    return replace(trajectory, rewards=rewards)


def below_floor(trajectories: Sequence[Trajectory], failed_score: float) -> str:
    """Names the rollouts that scored less than one gets that its agent broke; empty where none did."""
    below = [
        f"{each.item_id}, sibling {each.sibling}: {each.score:.3g}"
        for each in trajectories
        if each.agent_caused is None and each.score is not None and each.score < failed_score
    ]
    if not below:
        return ""
    return (
        f"to break a rollout is worth more (failed_score {failed_score:g}) than to lose it honestly: "
        f"{'; '.join(below)}; set failed_score to the least that an honest rollout gets"
    )
