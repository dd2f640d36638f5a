"""What rollouts are made of, from the settings: model servers, second models and condensers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from environments.config import (
    EMBEDDED_TOKENIZER,
    AgentEnvConfig,
    ModelServerConfig,
    SecondModelConfig,
    ServerConfig,
    sampling_of,
)
from environments.policy.inference.dialect import shaping
from environments.policy.inference.http_client import refuse_more_connections
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.second_models import SecondModels
from environments.rollout.context import (
    Condenser,
    fit_context,
    keep_last_turns,
    name_of,
    summarise,
    trim_tool_output,
)
from environments.rollout.hooks import Hooks, is_recorded, writes
from environments.rollout.items.item_json import stable_text
from environments.trajectory import LARGEST_REWARD, Trajectory
from tools.errors import ConfigError

if TYPE_CHECKING:
    from environments.policy.inference.model_server import ModelServer
    from environments.policy.rendering.chatml import Renderer
    from environments.policy.second_models import TextModel
    from environments.policy.server_policy import ServedPolicy, ServerPolicy
    from environments.rollout.agents.recording import Recording


def recording_of(env: Hooks) -> "Recording | None":
    """What records its agent; `None`: the agent of our own loop plays."""
    if not is_recorded(env):
        return None
    # The server of the endpoint loads slowly.
    from environments.rollout.agents.recording import Recording  # noqa: PLC0415

    return Recording()


def failed_score_of(env: Hooks) -> float:
    """What a rollout that the agent broke is worth: as set, else as the class has it.

    Raises:
        ConfigError: it is no finite number.
    """
    given: Any = env.failed_score if env.config.failed_score is None else env.config.failed_score
    if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= LARGEST_REWARD:
        raise ConfigError(f"failed_score of {env.name!r} is {given!r:.100}; give a finite number")
    return float(given)


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


def split_servers(
    servers: Sequence[ModelServerConfig],
) -> tuple[tuple[ServerConfig, ...], tuple[SecondModelConfig, ...]]:
    """Those that play the policy, and the second models: as far as they have a `base_url`.

    Raises:
        ConfigError: several servers of one role.
    """
    given = [server for server in servers if server.base_url]
    seconds = tuple(server for server in given if isinstance(server, SecondModelConfig))
    roles = [server.section for server in seconds]
    if twice := next((role for role in roles if roles.count(role) > 1), None):
        raise ConfigError(f"{roles.count(twice)} model servers for the {twice}; one is possible")
    return tuple(server for server in given if isinstance(server, ServerConfig)), seconds


def second_models(config: AgentEnvConfig, servers: Sequence[SecondModelConfig]) -> SecondModels:
    """The judge's and the user's models.

    Raises:
        ConfigError: a `base_url` is no URL, or more requests are asked for at once than connections are
            possible.
    """
    for server in servers:
        if "num_max_requests_at_once" in server.model_fields_set:
            refuse_more_connections(
                server.num_max_requests_at_once, f"--{server.section}.num_max_requests_at_once"
            )
    return SecondModels({server.section: _text_model(config, server) for server in servers})


def _text_model(config: AgentEnvConfig, server: SecondModelConfig) -> "TextModel":
    # The client of model servers loads slowly, as below.
    from environments.policy.second_models import TextModel  # noqa: PLC0415

    try:
        model_server = _model_server(config, server)
    except ConfigError as error:
        raise ConfigError(f"the {server.section}'s model server: {error}") from error
    return TextModel(
        server=model_server,
        role=server.section,
        model=server.model_name,
        temperature=server.temperature,
        top_p=server.top_p,
        max_tokens=server.max_tokens,
        extra_body=server.extra_body,
    )


def _model_server(config: AgentEnvConfig, server: ModelServerConfig) -> "ModelServer":
    from environments.policy.inference.model_server import ModelServer  # noqa: PLC0415

    return ModelServer(
        base_url=str(server.base_url),
        api_key=server.api_key or "none",
        request_timeout_s=config.request_timeout_s,
        max_concurrency=server.num_max_requests_at_once,
        proxy=server.proxy,
    )


def served_policy(
    config: AgentEnvConfig, servers: Sequence[ServerConfig], renderer: ChatMLRenderer
) -> "ServedPolicy | None":
    """The model servers that play; `None` without any.

    Raises:
        ConfigError: a `base_url` is no URL, a server needs token ids that cannot be rendered, or more
            requests are asked for at once than connections are possible.
    """
    if not servers:
        return None
    _refuse_too_many_requests(config, servers)
    # The client of model servers loads slowly, and the scripted agent needs none.
    from environments.policy.server_policy import ServedPolicy  # noqa: PLC0415

    policies = [_server_policy(config, server, renderer) for server in servers]
    extra = {name: value for server in servers for name, value in shaping(server.extra_body).items()}
    return ServedPolicy(policies, sampling=sampling_of(servers) | extra)


def _server_policy(config: AgentEnvConfig, server: ServerConfig, renderer: ChatMLRenderer) -> "ServerPolicy":
    from environments.policy.chat import ChatPolicy  # noqa: PLC0415
    from environments.policy.server_policy import ServerPolicy  # noqa: PLC0415

    own_renderer, no_renderer = _own_renderer(config, server)
    kind, _, wire = server.server_type.partition("_")
    chat = ChatPolicy(
        server=_model_server(config, server),
        model=server.model_name,
        renderer=renderer,
        temperature=server.temperature,
        top_p=server.top_p,
        extra_body=server.extra_body,
        family=server.family,
    )
    return ServerPolicy(
        chat=chat,
        server_type=cast("Any", kind),
        token_wire=wire or None,
        renderer=own_renderer,
        no_renderer=no_renderer,
        context_tokens=server.context_tokens,
    )


def _own_renderer(config: AgentEnvConfig, server: ServerConfig) -> "tuple[Renderer | None, str]":
    """The renderer of the model's own ids, or `None` and the reason.

    Raises:
        ConfigError: the settings require ids, and no renderer is known.
    """
    from environments.policy.inference.token_wires import MESSAGE_FIELDS  # noqa: PLC0415
    from environments.policy.rendering.chatml import TokenizerError  # noqa: PLC0415
    from environments.policy.rendering.families import checked_family, load_renderer  # noqa: PLC0415

    if server.family is not None:
        checked_family(server.family)
    if server.server_type == "chat":
        return None, ""
    try:
        if on_messages := sorted(MESSAGE_FIELDS & server.extra_body.keys()):
            raise ConfigError(
                f"--openai.extra_body.{on_messages[0]} acts on messages, and where ids are sent there are "
                f"none; leave it out, or choose --openai.server_type chat"
            )
        if config.tokenizer_name == EMBEDDED_TOKENIZER:
            raise ConfigError(
                "token ids need the model's own tokenizer; name it with --env.tokenizer_name (a folder with "
                "its tokenizer.json, or a Hugging Face name)"
            )
        tokenizer = config.tokenizer_name
        return load_renderer(family=server.family, model_name=server.model_name, tokenizer_name=tokenizer), ""
    except ConfigError as error:
        if server.server_type != "auto" or isinstance(error, TokenizerError):
            raise
        return None, str(error)


def _refuse_too_many_requests(config: AgentEnvConfig, servers: Sequence[ServerConfig]) -> None:
    """A rollout has one request in flight: a default that no rollout uses up is not refused."""
    default = ServerConfig().num_max_requests_at_once
    asked = [server.num_max_requests_at_once for server in servers]
    chosen = sum(requests for requests in asked if requests != default)
    in_use = min(config.max_concurrent_rollouts, sum(asked))
    if chosen > in_use:
        refuse_more_connections(chosen, "--openai.num_max_requests_at_once")
    else:
        refuse_more_connections(in_use, "--env.max_concurrent_rollouts")


_LOG = logging.getLogger(__name__)
_KEPT_TURNS = 8
_NONE = "none"
_NAMED: Mapping[str, Callable[[AgentEnvConfig], Condenser]] = {
    "trim_tool_output": lambda config: trim_tool_output(config.condenser_tool_tokens),
    "keep_last_turns": lambda config: keep_last_turns(config.condenser_turns or _KEPT_TURNS),
    "fit_context": lambda config: fit_context(
        config.condenser_tokens or max(1, config.max_token_length - config.max_tokens_per_turn)
    ),
    "summarise": lambda config: summarise(
        every=config.condenser_turns,
        max_tokens=config.condenser_tokens or config.max_token_length * 3 // 4,
    ),
    "summarise_by_model": lambda config: summarise(
        every=config.condenser_turns,
        max_tokens=config.condenser_tokens or config.max_token_length * 3 // 4,
        by="model",
    ),
}
_READS: Mapping[str, Sequence[str]] = {
    "trim_tool_output": ("condenser_tool_tokens",),
    "keep_last_turns": ("condenser_turns",),
    "fit_context": ("condenser_tokens",),
    "summarise": ("condenser_turns", "condenser_tokens"),
    "summarise_by_model": ("condenser_turns", "condenser_tokens"),
}
"""The settings that each reads."""


def env_condensers(config: AgentEnvConfig, own: Any, *, env: str) -> tuple[Condenser, ...]:
    """Asked in order, before each completion.

    Args:
        config: the settings, which win.
        own: the class's: a condenser, several, or `None`.
        env: the environment's name.

    Raises:
        ConfigError: there is no condenser of that name, a setting leaves it no room or has nothing to set, or
            the class's is not a condenser.
    """
    if config.condenser is not None:
        return _named(config.condenser, config)
    for setting, readers in _unread(config, ()):
        raise ConfigError(f"{setting} sets nothing without --env.condenser; choose from {readers}")
    several = cast("Sequence[Any]", own if isinstance(own, list | tuple) else (own,))
    given = tuple(each for each in several if each is not None)
    for each in given:
        try:
            name_of(each)
        except ConfigError as error:
            raise ConfigError(f"environment {env!r}: {error}") from None
    return given


def refuse_no_summariser(env: Hooks, condensers: Sequence[Condenser], servers: Sequence[str]) -> None:
    """Raise NoModelError where a second model is to sum up, and neither a server nor a hook plays it."""
    asks = any(isinstance(each, summarise) and each.by == "model" for each in condensers)
    if asks and "summariser" not in servers and not writes(env, "scripted_summariser"):
        env.scripted_summariser(None, ())  # the default, which raises


def condenser_facts(condensers: Sequence[Condenser]) -> dict[str, str]:
    """What an experiment is known by of them; the code of those that a user wrote counts apart."""
    facts: dict[str, str] = {}
    for number, condenser in enumerate(condensers, 1):
        facts[f"condenser {number}"] = stable_text([type(condenser).__qualname__, name_of(condenser)])
        for name, value in _fields(condenser, ()).items():
            facts[f"condenser {number} {name}"] = stable_text(value)
    return facts


def _fields(condenser: Condenser, around: tuple[object, ...]) -> dict[str, Any]:
    """What a condenser is set to, those that it holds included; `around`: those that hold it."""
    slots = [name for cls in type(condenser).__mro__ for name in getattr(cls, "__slots__", ())]
    names = dict.fromkeys((*slots, *getattr(condenser, "__dict__", ())))
    within = (*around, condenser)
    return {name: _fact(getattr(condenser, name, None), within) for name in names if name != "name"}


def _fact(value: Any, around: tuple[object, ...]) -> Any:
    if isinstance(value, list | tuple):
        return [_fact(each, around) for each in cast("Sequence[Any]", value)]
    if isinstance(value, type) or not callable(getattr(value, "condense", None)):
        return value
    is_around = any(value is each for each in around)
    return [type(value).__qualname__, {} if is_around else _fields(value, around)]


def _named(names: Sequence[str], config: AgentEnvConfig) -> tuple[Condenser, ...]:
    for name in names:
        if name not in (*_NAMED, _NONE):
            raise ConfigError(f"no condenser {name!r:.100}; choose from {', '.join(_NAMED)}, {_NONE}")
        if names.count(name) > 1:
            raise ConfigError(f"--env.condenser names {name} {names.count(name)} times; once is enough")
    if not names:
        raise ConfigError(f"--env.condenser names nothing; choose from {', '.join(_NAMED)}, {_NONE}")
    if _NONE in names and len(names) > 1:
        raise ConfigError(
            f"--env.condenser names {_NONE} beside {len(names) - 1} others; choose one or the other"
        )
    if config.condenser_tokens is not None and config.condenser_tokens >= config.max_token_length:
        raise ConfigError(
            f"--env.condenser_tokens {config.condenser_tokens} leaves no room for a turn in a row of "
            f"--env.max_token_length {config.max_token_length}"
        )
    named = tuple(_NAMED[name](config) for name in names if name != _NONE)
    for setting, readers in _unread(config, names) if named else ():
        # No error: a settings file may keep settings for another condenser.
        _LOG.warning(
            "%s sets nothing with --env.condenser %s; it is for %s", setting, ",".join(names), readers
        )
    return named


def _unread(config: AgentEnvConfig, names: Sequence[str]) -> list[tuple[str, str]]:
    """Each given setting that none of these condensers reads, and the condensers that would."""
    read = {setting for name in names for setting in _READS[name]}
    given = {
        setting: f"--env.{setting} {getattr(config, setting)}"
        for settings in _READS.values()
        for setting in settings
        if getattr(config, setting) != type(config).model_fields[setting].default
    }
    return [
        (text, ", ".join(name for name, settings in _READS.items() if setting in settings))
        for setting, text in given.items()
        if setting not in read
    ]
