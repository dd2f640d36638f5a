"""An environment's hooks, asked for one rollout: with its item and context, within their limits."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache, partial
from inspect import Parameter, isasyncgen, isgenerator, signature
from typing import Any, cast

from environments.containment.hook_calls import HookCalls
from environments.hooks import Hooks
from environments.reward_context import RolloutContext
from environments.rollout.prompt import opening_messages, reply_messages
from environments.trajectory import Message, Turn
from environments.turn_level_reward import checked_text
from tools.errors import ConfigError
from tools.registry import Toolset
from tools.state_tools import refuse_state
from tools.toolsets import narrowed

_AFTERWARDS_S = 10.0
"""For what follows the `yield` of `prepare`."""


class RolloutHooks:
    """The hooks that a rollout asks; those that an environment does not write cost nothing."""

    def __init__(self, env: Hooks, ctx: RolloutContext, calls: HookCalls) -> None:
        self._env, self._ctx, self._calls = env, ctx, calls
        self._anchor: str | None = None

    @asynccontextmanager
    async def prepared(self) -> AsyncGenerator[None]:
        """With the state that `prepare` gives, until the rewards are known."""
        ctx = self._ctx
        hook = partial(self._env.prepare, *self._with_context(self._env.prepare, ctx.item, ctx.sandbox))
        limit_s = self._env.config.hook_timeout_s
        given = await self._calls.run(hook, doing="prepare", limit_s=limit_s, setting="hook_timeout_s")
        if not isgenerator(given) and not isasyncgen(given):
            ctx.state = given
            yield
            return
        following = partial(anext if isasyncgen(given) else next, given, None)
        ctx.state = await self._calls.hook("prepare", following)
        try:
            yield
        finally:
            await self._calls.run(
                following, doing="prepare, after its yield", limit_s=_AFTERWARDS_S, setting="hook_timeout_s"
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
        prompt = await self._ask("format_prompt", env.format_prompt, self._ctx.item)
        opening = opening_messages(prompt, system=env.system_prompt, env=env.name)
        self._ctx.conversation += opening
        self._anchor = await self._state_after(None)
        return opening

    async def respond(self, turn: Turn) -> tuple[Message, ...]:
        """What the world says after a turn."""
        if not self._writes("respond"):
            return ()
        given = await self._calls.hook("respond", self._env.respond, self._ctx.item, turn, self._ctx)
        return reply_messages(given, env=self._env.name)

    async def anchored(self, turn: Turn) -> Turn:
        """The turn with the state that it began in."""
        before, self._anchor = self._anchor, await self._state_after(turn)
        return replace(turn, anchor=before)

    async def marked(self, turn: Turn) -> Turn:
        """The turn, marked when it is left out of training: by the environment, or as one that was cut."""
        is_cut = self._env.config.mask_truncated and turn.finish_reason == "length"
        if not self._writes("train_turn"):
            return replace(turn, trained=False) if is_cut else turn
        hook = self._env.train_turn
        given = await self._calls.hook("train_turn", hook, self._ctx.item, turn, self._ctx)
        if not _is_bool(given):
            raise ConfigError(
                f"environment {self._env.name!r}, item {self._ctx.item_id!r}, turn {turn.index}: train_turn "
                f"gave {given!r:.100}; give True or False"
            )
        return replace(turn, trained=bool(given) and not is_cut)

    async def _state_after(self, turn: Turn | None) -> str | None:
        if not self._writes("state_key"):
            return None
        anchor = await self._ask("state_key", self._env.state_key, self._ctx.item, turn)
        after = "before the first turn" if turn is None else f"turn {turn.index}"
        where = f"environment {self._env.name!r}, item {self._ctx.item_id!r}, {after}: what state_key gave"
        return None if anchor is None else checked_text(anchor, where)

    def _writes(self, hook: str) -> bool:
        return getattr(type(self._env), hook) is not getattr(Hooks, hook)

    async def _ask(self, name: str, hook: Callable[..., Any], *args: Any) -> Any:
        return await self._calls.hook(name, hook, *self._with_context(hook, *args))

    def _with_context(self, hook: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
        """The arguments of a hook that may take the context as its last one, or leave it out."""
        return (*args, self._ctx) if _takes(hook, len(args) + 1) else args


def _is_bool(value: object) -> bool:
    """Whether it is a bool, of Python's or of numpy's, which loads slowly."""
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


@lru_cache(maxsize=1024)
def _takes(function: Callable[..., Any], arguments: int) -> bool:
    """Whether it names so many positional parameters; what a wrapper's `*args` may take, nobody knows."""
    kinds = [parameter.kind for parameter in signature(function).parameters.values()]
    return (
        sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
        >= arguments
    )
