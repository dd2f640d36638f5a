"""What rollouts are made of, from the settings: the model servers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.config import EMBEDDED_TOKENIZER, AgentEnvConfig
from environments.inference.connection_limit import refuse_more_connections
from environments.inference.extra_body import shaping
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.second_models.served_models import SecondModels
from environments.server_config import ModelServerConfig, SecondModelConfig, ServerConfig
from tools.errors import ConfigError

if TYPE_CHECKING:
    from environments.inference.model_server import ModelServer
    from environments.policy.rendering.renderer import Renderer
    from environments.policy.server_policy import ServedPolicy, ServerPolicy
    from environments.second_models.text_model import TextModel


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
    from environments.second_models.text_model import TextModel  # noqa: PLC0415

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
    from environments.inference.model_server import ModelServer  # noqa: PLC0415

    return ModelServer(
        base_url=str(server.base_url),
        api_key=server.api_key or "none",
        request_timeout_s=config.request_timeout_s,
        tries=config.request_tries,
        max_concurrency=server.num_max_requests_at_once,
        proxy=server.proxy,
        ca_file=server.ca_file,
    )


def served_policy(
    config: AgentEnvConfig, servers: Sequence[ServerConfig], renderer: ChatMLRenderer
) -> "ServedPolicy | None":
    """The model servers that play; `None` without any.

    Raises:
        ConfigError: a `base_url` is no URL, a server is to get token ids that nobody can render, or more
            requests are asked for at once than connections are possible.
    """
    if not servers:
        return None
    _refuse_too_many_requests(config, servers)
    # The client of model servers loads slowly, and the scripted agent needs none.
    from environments.policy.server_policy import ServedPolicy  # noqa: PLC0415

    policies = [_server_policy(config, server, renderer) for server in servers]
    extra = {name: value for server in servers for name, value in shaping(server.extra_body).items()}
    return ServedPolicy(policies, sampling=config.sampling() | extra)


def _server_policy(config: AgentEnvConfig, server: ServerConfig, renderer: ChatMLRenderer) -> "ServerPolicy":
    from environments.policy.chat import ChatPolicy  # noqa: PLC0415
    from environments.policy.server_policy import ServerPolicy  # noqa: PLC0415

    own_renderer, no_renderer = _own_renderer(config, server)
    chat = ChatPolicy(
        server=_model_server(config, server),
        model=server.model_name,
        renderer=renderer,
        temperature=config.temperature,
        top_p=config.top_p,
        extra_body=server.extra_body,
        family=server.family,
    )
    return ServerPolicy(
        chat=chat,
        server_type=server.server_type,
        token_wire=server.token_wire,
        renderer=own_renderer,
        no_renderer=no_renderer,
        context_tokens=server.context_tokens,
    )


def _own_renderer(config: AgentEnvConfig, server: ServerConfig) -> "tuple[Renderer | None, str]":
    """The renderer of the model's own ids, or `None` and why there is none.

    Raises:
        ConfigError: the settings ask for ids, and there is none.
    """
    from environments.inference.token_wires import MESSAGE_FIELDS, WIRES  # noqa: PLC0415
    from environments.policy.rendering.families import checked_family, load_renderer  # noqa: PLC0415

    kind, wire = server.server_type, server.token_wire
    if server.family is not None:
        checked_family(server.family)
    if wire is not None and kind != "auto" and (kind, wire) not in WIRES:
        wires = [name for of, name in WIRES if of == kind]
        possible = f"it has {' and '.join(wires)}" if wires else "it is asked by messages"
        raise ConfigError(f"--openai.server_type {kind} has no --openai.token_wire {wire}; {possible}")
    if kind == "chat":
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
        if kind != "auto" or wire is not None:
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
