"""Checks of a class before a run: hooks with wrong parameters, misspelled hooks, and missing parts."""

import inspect
import logging
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from difflib import get_close_matches
from inspect import Parameter, Signature, isfunction, signature
from types import SimpleNamespace
from typing import Any, cast, get_args, get_origin, get_type_hints

from environments.config import AgentEnvConfig
from environments.policy.second_models import ROLES
from environments.rollout.agents.command import Command, TrainThreads
from environments.rollout.hooks import Hooks, is_recorded, takes_context, writes
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.errors import ConfigError
from tools.extras import OWN_PACKAGES
from tools.registry import Toolset
from tools.signature import is_state, state_class, why_unreadable
from tools.toolsets import refuse_state

_LOG = logging.getLogger(__name__)
_PLACES = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_CLOSE = 0.7
"""Similarity that makes a name a misspelling: `prepares` of `prepare`, but not `preview`."""
_ELSEWHERE = {
    # verifiers
    "env_response": "respond (a chat), or a tool",
    "is_completed": "ctx.end() in respond or a tool",
    "setup_state": "prepare",
    "score_rollout": "compute_reward",
    "get_prompt_messages": "format_prompt",
    # Atropos
    "collect_trajectory": "respond or play",
    "collect_trajectories": "respond or play",
    "get_next_item": "load_items",
    # Gymnasium, OpenEnv, SkyRL-Gym, rLLM
    "reset": "prepare",
    "step": "respond (a chat), or a tool",
    "compute_final_reward": "compute_outcome",
    # NeMo Gym
    "seed_session": "prepare",
    "verify": "compute_reward",
}
"""Hooks of other libraries, which nothing here calls, and what does their work here."""
_ATTRIBUTES = tuple(
    name for name, given in vars(Hooks).items() if not name.startswith("_") and not callable(given)
)


def check_hooks(env: Hooks) -> None:
    """Refuse hooks that cannot be called, and warn of misspelled ones.

    Raises:
        ConfigError: if a hook is not a method, or has other parameters than expected; or if a setting is
            a class attribute, which has no effect.
    """
    hooks = {**_methods(TurnLevelRewardMixin), **_methods(Hooks)}
    for name, ours in hooks.items():
        own = getattr(type(env), name, ours)
        if own is not ours and own is not getattr(Hooks, name, None):
            _refuse_other_parameters(env, name, ours)
    cls = type(env)
    theirs = [each for each in cls.__mro__ if not _is_ours(each)]
    written = {name: given for each in reversed(theirs) for name, given in vars(each).items()}
    own = written.keys() - {name for each in cls.__mro__ if _is_ours(each) for name in dir(each)}
    settings = written.keys() & env.env_config_cls.model_fields.keys() - {*dir(Hooks)}
    ignored = sorted(name for name in settings if not callable(written[name]))
    if ignored:
        raise ConfigError(
            f"environment {env.name!r}: {ignored[0]} is a setting, which a class attribute does not set; "
            f"give it as --env.{ignored[0]}, or as a default in "
            f"`config_init`: `return cls.env_config_cls({ignored[0]}=…), [ServerConfig()]`"
        )
    for name in sorted(own & _ELSEWHERE.keys()):
        is_used = sum(name in vars(each) for each in theirs) > 1
        is_used = is_used or any(_mentions(each, name) for each in theirs)
        if isfunction(written[name]) and not is_used:
            raise ConfigError(
                f"environment {env.name!r}: {name} is no hook here and nothing in its module calls it; "
                f"write {_ELSEWHERE[name]} instead, or rename it"
            )
    for name in sorted(own):
        # `plays` or `player` are close to `play`, but rarely mean it.
        known = {*hooks, *_ATTRIBUTES} - {"play"} - written.keys()
        close = get_close_matches(name, known, n=1, cutoff=_CLOSE)
        if close and not name.startswith("_"):
            _LOG.warning(
                "%s.%s is not a hook; if it is meant to be %s, rename it", cls.__name__, name, close[0]
            )


def _mentions(cls: type, method: str) -> bool:
    """Whether the source of the class's module uses the method's name, apart from `def` lines."""
    try:
        text = inspect.getsource(inspect.getmodule(cls) or cls)
    except (OSError, TypeError):
        return True  # unknown
    return bool(re.search(rf"(?<!def )\b{method}\b", text))


def _methods(cls: type) -> dict[str, Callable[..., Any]]:
    public = {name: given for name, given in vars(cls).items() if not name.startswith("_")}
    return {name: given for name, given in public.items() if isfunction(given) and name != "scoring"}


def _refuse_other_parameters(env: Hooks, name: str, ours: Callable[..., Any]) -> None:
    own: Any = getattr(env, name)
    if not callable(own):
        raise ConfigError(f"environment {env.name!r}: {name} is a hook, and so a method; got {own!r:.100}")
    declared = signature(ours).parameters.values()
    arguments = [each.name for each in declared if each.name != "self" and each.kind in _PLACES]
    is_context_optional = any(each.kind is Parameter.VAR_POSITIONAL for each in declared)
    try:
        written = signature(own)
    except ValueError:  # a C function without a signature
        return
    more = ["ctx"] if is_context_optional and takes_context(own, len(arguments)) else []
    if _takes(written, [*arguments, *more]):
        return
    wanted = ", ".join(["self", *arguments, *(["ctx"] if is_context_optional else [])])
    hint = " (ctx may be left out)" if is_context_optional else ""
    bare = [each.replace(annotation=Parameter.empty) for each in written.parameters.values()]
    shown = f"(self, {str(Signature(bare))[1:]}" if bare else "(self)"
    raise ConfigError(
        f"environment {env.name!r}: {name}{shown} has other parameters than it is called with; "
        f"write {name}({wanted}){hint}"
    )


def _takes(written: Signature, given: list[str]) -> bool:
    try:
        bound = written.bind(*given).arguments
    except TypeError:
        return False
    return all(name == argument for name, argument in bound.items() if name in {*given, "ctx"})


def _is_ours(cls: type) -> bool:
    return cls is object or cls.__module__.partition(".")[0] in OWN_PACKAGES


class SharedState:
    """Counts how often the attributes of an open environment change; a cache is filled once."""

    def __init__(self, env: Hooks) -> None:
        self._env, self._last, self._changes = env, {**vars(env)}, Counter[str]()

    def look(self) -> None:
        """Compare the attributes with those of the last look, as after each group."""
        now = {**vars(self._env)}
        self._changes.update(name for name, value in now.items() if self._last.get(name, _NEW) is not value)
        self._last = now

    def warning(self) -> str:
        """Return a line that names the attributes that rollouts set again and again, or ""."""
        names = [f"self.{name}" for name, times in self._changes.items() if times > 1]
        if not names or writes(self._env, "next_items"):  # which may keep a curriculum on self
            return ""
        return (
            f"rollouts set {', '.join(names[:_SHOWN])}, which all of them share; put what belongs to one "
            "into the state that prepare gives"
        )


_NEW = object()
_SHOWN = 5
_YIELDING = (Iterator, Iterable, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)


def refuse_other_states(toolset: Toolset, prepare: Callable[..., Any], env: str) -> None:
    """Raise ConfigError if a tool takes a state that `prepare` is not annotated to return."""
    wanted = next(((tool.name, state) for tool in toolset.tools for state in tool.states), None)
    if wanted is None:
        return
    function: Any = inspect.unwrap(prepare)
    # The other annotations may name what is imported for type checkers alone.
    only_return = SimpleNamespace(__annotations__={"return": inspect.get_annotations(function).get("return")})
    try:
        hint = get_type_hints(only_return, getattr(function, "__globals__", {}))["return"]
    except Exception as error:  # noqa: BLE001  # an annotation is any expression
        raise ConfigError(
            f"environment {env!r}: what prepare is annotated to give cannot be read: {why_unreadable(error)}"
        ) from None
    given = next(iter(get_args(hint)), None) if get_origin(hint) in _YIELDING else hint
    given = state_class(given) or given
    if not is_state(given):
        name, state = wanted[0], wanted[1].__name__
        raise ConfigError(
            f"environment {env!r}: tool {name!r} takes {state}, and prepare is annotated to give "
            + _type_name(given)
            + f"; write `def prepare(self, item, sandbox) -> {state}`, or `-> Iterator[{state}]` with a yield"
        )
    refuse_state(toolset, cast("Any", given), f"environment {env!r}: prepare is annotated to give")


def _type_name(annotation: Any) -> str:
    if annotation in (None, type(None)):
        return "nothing"
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


def refuse_missing_parts(env: Hooks, config: AgentEnvConfig, estimator: str) -> None:
    if not env.name:
        raise ConfigError(f"class {type(env).__name__} has no name; set the class attribute `name`")
    _refuse_other_kinds(env)
    _refuse_other_agent(env, config)
    needs_prompt = not is_recorded(env) or (env.agent is not None and env.agent.prompt != "none")
    if needs_prompt and not writes(env, "format_prompt"):
        raise ConfigError(f"environment {env.name!r} has no prompt; write format_prompt(self, item)")
    if estimator == "gigpo" and not writes(env, "state_key"):
        raise ConfigError(f"gigpo compares turns taken in equal states; write state_key in {env.name!r}")
    if config.eval_share and writes(env, "load_eval_items"):
        raise ConfigError(
            f"environment {env.name!r} writes load_eval_items: evaluate takes those, and nobody would "
            f"evaluate what --env.eval_share holds out; leave it out"
        )
    ordered = [name for name in ("shuffle", "weight_field") if getattr(config, name)]
    if ordered and writes(env, "next_items"):
        raise ConfigError(
            f"environment {env.name!r} writes next_items, which says what comes next; leave out "
            f"--env.{ordered[0]}"
        )


def _refuse_other_kinds(env: Hooks) -> None:
    for name in ("name", "system_prompt", "default_estimator"):
        if not isinstance(given := getattr(env, name), str | None):
            raise ConfigError(f"environment {env.name!r}: {name} is {given!r:.100}; give a text")
    for name in ("required_fields", "keep", "data", "packages"):
        given: Any = getattr(env, name)
        if isinstance(given, str):
            raise ConfigError(
                f"environment {env.name!r}: {name} is the text {given!r}; give a tuple of names, ({given!r},)"
            )
        texts = cast("tuple[Any, ...]", given) if isinstance(given, tuple | list) else (None,)
        if not all(isinstance(each, str) for each in texts):
            raise ConfigError(f"environment {env.name!r}: {name} is {given!r:.100}; give a tuple of texts")


def _refuse_other_agent(env: Hooks, config: AgentEnvConfig) -> None:
    agent: Any = env.agent
    if agent is not None and not isinstance(agent, Command):
        raise ConfigError(f"environment {env.name!r}: agent is {agent!r:.100}; give turnwise.Command([...])")
    if agent is not None and writes(env, "play"):
        raise ConfigError(f"environment {env.name!r} has an agent and writes play; choose one of them")
    if agent is not None:
        agent.refuse_missing(env.name)
    if env.train_threads not in get_args(TrainThreads):
        raise ConfigError(
            f"environment {env.name!r}: train_threads is {env.train_threads!r:.100}; choose one of "
            f"{', '.join(map(repr, get_args(TrainThreads)))}"
        )
    others: Any = env.other_models
    if not isinstance(others, Mapping):
        raise ConfigError(
            f'environment {env.name!r}: other_models is {others!r:.100}; give {{"name": "judge"}}'
        )
    unknown = [role for role in env.other_models.values() if role not in ROLES]
    if unknown:
        raise ConfigError(
            f"environment {env.name!r}: other_models names {unknown[0]!r}; choose from {', '.join(ROLES)}"
        )
    if is_recorded(env) and config.condenser:
        raise ConfigError("--env.condenser: a recorded agent keeps its own history; leave it out")


def refuse_no_reward(env: Hooks) -> None:
    if not writes(env, "compute_reward"):
        raise ConfigError(
            f"environment {env.name!r} has no reward; write compute_reward, or list "
            f"TurnLevelRewardMixin before AgentEnv and write score_turn, compute_turn_rewards or "
            f"compute_outcome"
        )
