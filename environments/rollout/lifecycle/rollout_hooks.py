"""An environment's hooks, asked for one rollout: with its item and context, within their limits."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncContextDecorator, ContextDecorator, asynccontextmanager
from dataclasses import replace
from functools import partial
from inspect import isasyncgen, isgenerator
from typing import Any, cast

from environments.rewards.reward_context import USER_VOTE, RolloutContext
from environments.rollout.agent_loop import opening_messages, reply_messages
from environments.rollout.boundary import caused_by_agent, failure_of, let_go
from environments.rollout.containment.hook_calls import END, HookCalls
from environments.rollout.hooks import writes
from environments.rollout.lifecycle.env_lifecycle import Lifecycle
from environments.rollout.lifecycle.hook_signatures import takes_context
from environments.rollout.model_calls import Budget, budget_of
from environments.trajectory import AgentCaused, Message, Rewards, StopReason, Trajectory, Turn
from environments.turn_level_reward import Scoring, checked_metrics, checked_text, turn_values, where_of
from tools.errors import ConfigError, TimeLimitExceeded
from tools.registry import Toolset
from tools.toolsets import narrowed, refuse_state
from tools.waiting import to_the_end

_LOG = logging.getLogger(__name__)
_AFTERWARDS_S = 10.0
"""For what follows the `yield` of `prepare`."""


class RolloutHooks:
    """The hooks that a rollout asks; those that an environment does not write cost nothing."""

    def __init__(self, env: Lifecycle, ctx: RolloutContext, calls: HookCalls) -> None:
        self._env, self._ctx, self._calls = env, ctx, calls
        self._anchor: str | None = None
        self._metrics: dict[str, float] = {}

    @asynccontextmanager
    async def prepared(self) -> AsyncGenerator[None]:
        """With the state that `prepare` gives, until the rewards are known.

        Raises:
            ConfigError: it is a generator that yields never, or twice.
        """
        if not self._writes("prepare"):
            yield
            return
        ctx = self._ctx
        hook = partial(self._env.prepare, *self._with_context(self._env.prepare, ctx.item, ctx.sandbox))
        limit_s = self._env.config.hook_timeout_s
        given = await self._calls.run(hook, doing="prepare", limit_s=limit_s, setting="hook_timeout_s")
        if isinstance(given, ContextDecorator | AsyncContextDecorator):
            raise ConfigError(
                f"environment {self._env.name!r}: prepare gave a context manager, which nobody enters; take "
                f"@contextmanager away, a generator with one `yield` is what prepare may be"
            )
        if not isgenerator(given) and not isasyncgen(given):
            ctx.state = given
            yield
            return
        following = self._calls.owned(cast("Any", given))
        try:
            ctx.state = await self._calls.hook("prepare", following)
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
            rest = await self._calls.run(following, doing="prepare, after its yield", limit_s=_AFTERWARDS_S)
        except Exception as error:  # noqa: BLE001  # of the environment's code, and logged
            broken = failure_of(error, sibling=0, turns=0)
            where = f"{self._env.name}, item {self._ctx.item_id}: prepare, after its yield"
            _LOG.log(self._env.met_kinds.level(broken.kind), "%s: %s", where, broken.error)
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
        env, ctx = self._env, self._ctx
        if self._writes("tools_for"):
            names = await self._ask("tools_for", env.tools_for, ctx.item)
            where = f"environment {env.name!r}, item {ctx.item_id!r}: tools_for"
            toolset = narrowed(toolset, names, env.tools, where)
        refuse_state(toolset, cast("type[Any]", type(ctx.state)), "the state is of class")
        return toolset

    async def opening(self) -> tuple[Message, ...]:
        """The conversation before the first turn."""
        env = self._env
        if not self._writes("format_prompt"):  # of an agent that asks what it likes
            self._anchor = await self._state_after(None)
            return ()
        prompt = await self._ask("format_prompt", env.format_prompt, self._ctx.item)
        opening = opening_messages(prompt, system=env.system_prompt, env=env.name)
        self._ctx.see(opening)
        self._anchor = await self._state_after(None)
        return opening

    def anchor(self) -> str | None:
        """The state that the next turn is taken in, as `state_key` names it."""
        return self._anchor

    async def budget(self) -> Budget:
        """What the rollout may spend."""
        if not self._writes("limits_for"):
            return budget_of(self._env.config)
        limits = await self._calls.hook("limits_for", self._env.limits_for, self._ctx.item)
        return budget_of(self._env.config, limits, env=self._env.name)

    async def respond(self, turn: Turn) -> tuple[Message, ...]:
        """The world's reply after a turn."""
        if not self._writes("respond"):
            return ()
        given = await self._calls.hook("respond", self._env.respond, self._ctx.item, turn, self._ctx)
        return reply_messages(given, env=self._env.name)

    async def observed(self, turn: Turn) -> Turn:
        """The turn with the state that it began in, and with what was noted until its reward is asked for."""
        # A turn of a recorded agent has the state of its request: other threads have acted since.
        before = self._anchor if turn.anchor is None else turn.anchor
        if turn.kind != "act":  # the world has not changed
            return replace(turn, anchor=before)
        self._anchor = await self._state_after(turn)
        metrics = checked_metrics(self._ctx)
        noted = {name: value for name, value in metrics.items() if self._metrics.get(name) != value}
        return replace(turn, anchor=before, noted=noted)

    async def marked(self, turn: Turn) -> Turn:
        """The scored turn, marked when the environment leaves it out of training, or when it was cut."""
        turn = await self._marked(turn)
        if turn.kind == "act":
            self._ctx.metrics.pop(USER_VOTE, None)  # of this turn alone, which has noted it
            self._metrics = dict(self._ctx.metrics)
        return turn

    async def scored(self, scoring: Scoring, bare: Trajectory) -> Trajectory:
        """The trajectory with rewards and values: the floor, and no reward hook, where the agent broke it.

        Raises:
            RewardError: what the environment returned breaks the contract.
        """
        rewards: Rewards | None = None
        if bare.agent_caused is None:
            try:
                rewards = await scoring.finish(bare)
            except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
                if bare.stop_reason is not StopReason.AGENT_ERROR or bare.agent is None:
                    bare = replace(bare, agent_caused=caused_by_agent(error))
                else:  # what hooks look for is not there
                    let_go(error)
                    caused = AgentCaused(cause="agent_error", error=bare.agent.error)
                    bare = replace(bare, agent_caused=caused)
        if rewards is None:
            rewards = scoring.floor(bare, self._env.failed_score)
        ctx = self._ctx
        if self._writes("values"):
            given = await self._calls.hook("values", self._env.values, ctx.item, bare)
            bare = turn_values(given, bare, f"{where_of(ctx)}: values")
        return bare.with_rewards(rewards, checked_metrics(ctx), tuple(ctx.judge_model.calls))

    async def _marked(self, turn: Turn) -> Turn:
        env = self._env
        is_masked = env.config.mask_truncated and turn.finish_reason == "length"
        threads = (env.train_threads, env.agent and env.agent.train_threads)
        is_masked = is_masked or (turn.without_tools and "with_tools" in threads)
        if not self._writes("train_turn"):
            return replace(turn, trained=False) if is_masked else turn
        given = await self._calls.hook("train_turn", env.train_turn, self._ctx.item, turn, self._ctx)
        if not _is_bool(given):
            raise ConfigError(
                f"environment {env.name!r}, item {self._ctx.item_id!r}, turn {turn.index + 1}: "
                f"train_turn gave {given!r:.100}; give True or False"
            )
        return replace(turn, trained=bool(given) and not is_masked)

    async def _state_after(self, turn: Turn | None) -> str | None:
        if not self._writes("state_key"):
            return None
        anchor = await self._ask("state_key", self._env.state_key, self._ctx.item, turn)
        after = "before the first turn" if turn is None else f"turn {turn.index + 1}"
        where = f"environment {self._env.name!r}, item {self._ctx.item_id!r}, {after}: what state_key gave"
        return None if anchor is None else checked_text(anchor, where)

    def _writes(self, hook: str) -> bool:
        return writes(self._env, hook)

    async def _ask(self, name: str, hook: Callable[..., Any], *args: Any) -> Any:
        return await self._calls.hook(name, hook, *self._with_context(hook, *args))

    def _with_context(self, hook: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        """The arguments of a hook that may take the context as its last one, or leave it out."""
        return (*args, self._ctx) if takes_context(hook, len(args)) else args


def _is_bool(value: object) -> bool:
    """Whether it is a bool, of Python's or of numpy's, which loads slowly."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))
