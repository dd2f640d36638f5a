"""An environment one of whose hooks, its tool, policy or condenser misbehaves, when first called."""

import inspect
from contextlib import asynccontextmanager
from itertools import count

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, call, say
from environments.rollout.items.tasks import GroupTask
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import State
from tools.registry import tool
from tools.sandbox.base import Sandbox, SandboxLimits, SandboxRecord


class NoSandbox:
    """These attacks are on the host's side: they need no machine."""

    record = SandboxRecord(backend="none", tier="-", limits=SandboxLimits(), enforced=())
    workdir = "/"


def script(item, messages, tools, skill):
    said = messages[-1].role == "tool"
    return [Choice(probability=1.0, message=say("done") if said else call("act", {}))]


class Scripted:
    """A policy that the user brings."""

    name = "scripted"

    def __init__(self):
        self._policy = ScriptedPolicy(
            lambda *args: script(None, *args), skill=1.0, renderer=ChatMLRenderer.embedded()
        )

    async def complete(self, request):
        return await self._policy.complete(request)


ORDINARY = {
    "prepare": lambda item, sandbox: None,
    "tools_for": lambda item: ["act"],
    "format_prompt": lambda item: "act",
    "limits_for": lambda item: {},
    "respond": lambda item, turn, ctx: None,
    "state_key": lambda item, turn: "state",
    "train_turn": lambda item, turn, ctx: True,
    "score_turn": lambda item, turn, ctx: 1.0,
    "compute_turn_rewards": lambda item, trajectory, ctx: [1.0] * len(trajectory.turns),
    "compute_outcome": lambda item, trajectory, ctx: 1.0,
    "scripted_choices": script,
    "tool": lambda sandbox: "ok",
    "method": lambda world: "ok",
    "condenser": lambda history, asking: history,
    "policy": None,
}
"""Where to misbehave, and what stands there otherwise."""
NO_HOOKS = {"tool", "method", "policy", "condenser"}


class Own:
    """A condenser of the user's: one function."""

    def __init__(self, condense, name="own"):
        self.condense, self.name = condense, name


AROUND_A_YIELD = ("before the yield", "after the yield")
"""Of a `prepare` that is a generator."""


def first(kind, ordinary, skipped=1):
    """A function that does `kind` once and `ordinary` from then on, `async def` where `kind` is."""
    calls = count()
    if inspect.iscoroutinefunction(kind):

        async def asynchronous(*args):
            given = kind(*args) if next(calls) == 0 else ordinary(*args[skipped:])
            return await given if inspect.isawaitable(given) else given

        return asynchronous

    def plain(*args):
        return kind(*args) if next(calls) == 0 else ordinary(*args[skipped:])

    return plain


def around_a_yield(before, after):
    """A `prepare` that yields a state between the two, `async def` where one of them gives an awaitable."""

    async def asynchronous(self, item, sandbox):
        given = before(self, item, sandbox)
        yield await given if inspect.isawaitable(given) else given
        given = after(self, item, sandbox)
        _ = await given if inspect.isawaitable(given) else given

    def plain(self, item, sandbox):
        yield before(self, item, sandbox)
        after(self, item, sandbox)

    return asynchronous if any(map(gives_awaitable, (before, after))) else plain


def gives_awaitable(function):
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def misbehaving(spot, kind, **settings):
    """An environment whose `spot` does `kind` in one rollout."""
    if spot in AROUND_A_YIELD:
        env = misbehaving("none", None, **settings)
        once, fine = first(kind, ORDINARY["prepare"]), staticmethod_of(ORDINARY["prepare"])
        if gives_awaitable(kind) and not inspect.iscoroutinefunction(kind):
            once = awaiting(once)
        pair = (once, fine) if spot == "before the yield" else (fine, once)
        type(env).prepare = around_a_yield(*pair)
        return env
    hooks = {
        name: staticmethod_of(ordinary)
        for name, ordinary in ORDINARY.items()
        if name not in {spot, *NO_HOOKS}
    }
    if spot in ORDINARY and spot not in NO_HOOKS:
        hooks[spot] = first(kind, ORDINARY[spot])
    act = first(kind if spot in {"tool", "method"} else ORDINARY["tool"], ORDINARY["tool"], skipped=0)
    if spot == "method":
        hooks |= state_with(act)
    else:
        hooks["tools"] = (tool(name="act")(described(act)),)
    if spot == "condenser":
        hooks["condenser"] = Own(first(kind, ORDINARY[spot], skipped=0))
    policy = None
    if spot == "policy":
        policy = Scripted()
        policy.complete = first(kind, policy.complete, skipped=0)

    async def load_items(self):
        return [{"id": "bad"}, {"id": "good"}]

    def open_sandbox(self):
        return no_sandbox()

    cls = type(
        "Misbehaving",
        (TurnLevelRewardMixin, AgentEnv),
        hooks | {"name": "misbehaving", "load_items": load_items, "open_sandbox": open_sandbox},
    )
    return cls(AgentEnvConfig(**{"group_size": 3, "min_group_size": 1} | settings), (), policy=policy)


def awaiting(function):
    """The same as `async def`."""

    async def awaited(*args):
        given = function(*args)
        return await given if inspect.isawaitable(given) else given

    return awaited


def state_with(function):
    """What an environment whose tool is a method of its state has for itself."""
    if inspect.iscoroutinefunction(function):

        class World(State):
            @tool
            async def act(self) -> str:
                """Act."""
                return await function(self)
    else:

        class World(State):
            @tool
            def act(self) -> str:
                """Act."""
                return function(self)

    def prepare(self, item, sandbox) -> World:
        return World()

    return {"prepare": prepare, "tools": (World,)}


def staticmethod_of(ordinary):
    return lambda self, *args: ordinary(*args)


def described(function):
    """The function as a tool wants it."""
    if inspect.iscoroutinefunction(function):

        async def act(sandbox: Sandbox) -> str:
            """Act."""
            return await function(sandbox)
    else:

        def act(sandbox: Sandbox) -> str:
            """Act."""
            return function(sandbox)

    return act


@asynccontextmanager
async def no_sandbox():
    yield NoSandbox()


TASK = GroupTask(item={"id": "bad"}, item_id="bad")
