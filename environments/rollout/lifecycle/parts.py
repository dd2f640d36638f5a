"""The parts of an environment, built from class and settings and checked before anything is opened."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from environments.config import (
    EMBEDDED_TOKENIZER,
    AgentEnvConfig,
    Constraints,
    ModelServerConfig,
    SecondModelConfig,
    ServerConfig,
    constraints_of,
    sampling_of,
    server_configs,
)
from environments.credit import GroupRules, describe, missing_outcome_of, read_params
from environments.policy.base import Policy, validate_policy
from environments.policy.inference.dialect import UNNAMED_MODEL, shaping_fields
from environments.policy.inference.http_client import refuse_more_connections
from environments.policy.inference.model_server import ModelServer
from environments.policy.rendering.chatml import ChatMLRenderer, Renderer, TokenizerError
from environments.policy.second_models import SecondModels, TextModel
from environments.rollout.agents.warm_starts import WarmStarts
from environments.rollout.branching import check_branches
from environments.rollout.containment.hook_threads import MOST_PINNED
from environments.rollout.context import Condenser, env_condensers, summarise
from environments.rollout.hooks import Hooks, is_recorded, pins_thread, plays_on_thread, writes
from environments.rollout.lifecycle.hook_checks import check_hooks, refuse_missing_parts, refuse_other_states
from environments.rollout.lifecycle.sandboxes import Sandboxes
from environments.rollout.prompt_tokens import TokenEstimate
from environments.trajectory import LARGEST_REWARD
from environments.turn_level_reward import NewScoring
from tools.errors import ConfigError
from tools.mcp.mcp_servers import MCPServers
from tools.registry import Toolset
from tools.toolsets import select_toolsets

if TYPE_CHECKING:
    from environments.policy.server_policy import ServedPolicy, ServerPolicy
    from environments.rollout.agents.endpoint import EndpointServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    rules: GroupRules
    failed_score: float
    estimator: str
    estimator_params: Mapping[str, Any]
    new_scoring: NewScoring
    toolset: Toolset
    """Without the tools of MCP servers, which are known once the servers run."""
    mcp: MCPServers
    sandboxes: Sandboxes
    condensers: tuple[Condenser, ...]
    renderer: ChatMLRenderer
    token_estimate: TokenEstimate
    servers: tuple[ServerConfig, ...]
    constraints: Constraints
    second_servers: tuple[SecondModelConfig, ...]
    second_models: SecondModels
    policy: Policy | None
    served: "ServedPolicy | None"
    """The policy, if we must close its connections."""
    reference: "ServedPolicy | None"
    endpoints: "EndpointServer | None"
    """Records agents that own their loop."""
    warm_starts: WarmStarts | None
    max_rollouts: int


def with_own_dataset(config: AgentEnvConfig, cls: type[Hooks]) -> AgentEnvConfig:
    """Return the config; if it names no dataset, with the class's own file of items, next to the class."""
    if config.has_dataset or cls.dataset_path is None:
        return config
    path: Any = cls.dataset_path
    if not isinstance(path, str):
        raise ConfigError(f"{cls.__name__}.dataset_path is {path!r:.100}; give a text")
    owner = next(each for each in cls.__mro__ if "dataset_path" in vars(each))
    file = getattr(sys.modules.get(owner.__module__), "__file__", None) or ""
    return config.model_copy(update={"dataset_path": str(Path(file).parent / path)})


def build(
    env: Hooks,
    scoring: Callable[[], NewScoring],
    config: AgentEnvConfig,
    servers: Sequence[ModelServerConfig] | None,
    policy: Policy | None,
) -> Parts:
    """Build the parts; without servers those of the class play, without a policy the scripted agent.

    Raises:
        UsageError: if the class lacks something, or a setting cannot work.
    """
    missing = env.missing_outcome if config.missing_outcome is None else config.missing_outcome
    if missing is not None:
        missing = missing_outcome_of(missing, f"missing_outcome of {env.name!r}")
    floor: Any = env.failed_score if config.failed_score is None else config.failed_score
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not abs(floor) <= LARGEST_REWARD:
        raise ConfigError(f"failed_score of {env.name!r} is {floor!r:.100}; give a finite number")
    estimator = config.estimator or env.default_estimator
    describe(estimator).refuse_alone()
    params = read_params(estimator, config.estimator_preset, config.estimator_params)
    check_hooks(env)
    refuse_missing_parts(env, config, estimator)
    new_scoring = scoring()
    toolset = select_toolsets(env.tools, config.enabled_toolsets)
    refuse_other_states(toolset, env.prepare, env.name)
    condensers = env_condensers(config, env.condenser, env=env.name)
    renderer = ChatMLRenderer.load(config.tokenizer_name)
    given = server_configs(env.config_init()[1] if servers is None else servers)
    named = [server for server in given if server.base_url]
    players = tuple(server for server in named if isinstance(server, ServerConfig))
    seconds = tuple(server for server in named if isinstance(server, SecondModelConfig))
    roles = [server.section for server in seconds]
    if twice := next((role for role in roles if roles.count(role) > 1), None):
        raise ConfigError(f"{roles.count(twice)} model servers for the {twice}; one is possible")
    models = _second_models(config, seconds)
    sums_up = any(isinstance(each, summarise) and each.by == "model" for each in condensers)
    if sums_up and "summariser" not in models.roles and not writes(env, "scripted_summariser"):
        env.scripted_summariser(None, ())  # the default, which raises
    served = None if policy is not None else make_served_policy(config, players, renderer)
    family = players[0].family if players else None
    references = [
        ServerConfig(family=family, **{name: getattr(each, name) for name in ModelServerConfig.model_fields})
        for each in seconds
        if each.section == "reference"
    ]
    lent = () if env.agent is None else env.agent.lent
    sandboxes = Sandboxes(config, env.sandbox, type(env), lent, env.packages)
    sandboxes.refuse_tools_in(toolset)
    if env.keep and not sandboxes.are_opened:
        raise ConfigError(f"environment {env.name!r} keeps {env.keep[0]!r} of a sandbox, and has none")
    mcp = MCPServers.from_tools(env.tools, config.enabled_toolsets)
    check_branches(env, config, estimator, params, mcp)
    endpoints = None
    if is_recorded(env):
        # The server of the endpoint loads slowly.
        from environments.rollout.agents.endpoint import EndpointServer  # noqa: PLC0415

        endpoints = EndpointServer()
    pinned = pins_thread(env) + plays_on_thread(env)
    most = MOST_PINNED // pinned if pinned else config.max_concurrent_rollouts
    return Parts(
        rules=GroupRules(min_trajectories=config.min_group_size, missing_outcome=missing),
        failed_score=float(floor),
        estimator=estimator,
        estimator_params=params,
        new_scoring=new_scoring,
        toolset=toolset,
        mcp=mcp,
        sandboxes=sandboxes,
        condensers=condensers,
        renderer=renderer,
        token_estimate=TokenEstimate(renderer),
        servers=players,
        constraints=constraints_of(given),
        second_servers=seconds,
        second_models=models,
        policy=served if policy is None else validate_policy(policy),
        served=served,
        reference=make_served_policy(config, references, renderer),
        endpoints=endpoints,
        warm_starts=None if env.agent is None else env.agent.warm_starts(),
        max_rollouts=min(most, config.max_concurrent_rollouts),
    )


def _second_models(config: AgentEnvConfig, servers: Sequence[SecondModelConfig]) -> SecondModels:
    models: dict[str, TextModel] = {}
    for server in servers:
        role, requests = server.section, server.num_max_requests_at_once
        if "num_max_requests_at_once" in server.model_fields_set:
            refuse_more_connections(requests, f"--{role}.num_max_requests_at_once")
        try:
            model_server = _model_server(config, server)
        except ConfigError as error:
            raise ConfigError(f"the {role}'s model server: {error}") from error
        models[role] = TextModel(
            server=model_server,
            role=role,
            model=server.model_name,
            temperature=server.temperature,
            top_p=server.top_p,
            max_tokens=server.max_tokens,
            extra_body=server.extra_body,
        )
    return SecondModels(models)


def _model_server(config: AgentEnvConfig, server: ModelServerConfig) -> ModelServer:
    if server.api_key_env is not None and not server.has_key:
        raise ConfigError(
            f"api_key_env={server.api_key_env!r} is read by commands; in a program give "
            f"api_key=os.environ[{server.api_key_env!r}]"
        )
    return ModelServer(
        base_url=str(server.base_url),
        api_key=server.api_key or "none",
        request_timeout_s=config.request_timeout_s,
        max_concurrency=server.num_max_requests_at_once,
        proxy=server.proxy,
        key_name=server.api_key_env or "",
    )


def make_served_policy(
    config: AgentEnvConfig, servers: Sequence[ServerConfig], renderer: ChatMLRenderer
) -> "ServedPolicy | None":
    if not servers:
        return None
    _refuse_too_many_requests(config, servers)
    # The client of model servers loads slowly, and the scripted agent needs none.
    from environments.policy.server_policy import ServedPolicy  # noqa: PLC0415

    policies = [_server_policy(config, server, renderer) for server in servers]
    extra = {name: value for server in servers for name, value in shaping_fields(server.extra_body).items()}
    return ServedPolicy(policies, sampling=sampling_of(servers) | extra)


def _server_policy(config: AgentEnvConfig, server: ServerConfig, renderer: ChatMLRenderer) -> "ServerPolicy":
    from environments.policy.chat import ChatPolicy  # noqa: PLC0415
    from environments.policy.server_policy import ServerPolicy  # noqa: PLC0415

    load = partial(_own_renderer, config, server)
    is_named = server.model_name != UNNAMED_MODEL or server.family is not None
    own_renderer, no_renderer = load(server.model_name) if is_named else (None, "")
    kind, _, wire = server.server_type.partition("_")
    chat = ChatPolicy(
        server=_model_server(config, server),
        model=server.model_name,
        renderer=renderer,
        temperature=server.temperature,
        top_p=server.top_p,
        extra_body=server.extra_body,
        family=server.family,
        tools_in_prompt=server.tools == "prompt",
    )
    return ServerPolicy(
        chat=chat,
        server_type=cast("Any", kind),
        token_wire=wire or None,
        renderer=own_renderer,
        no_renderer=no_renderer,
        tokenizer_name=config.tokenizer_name,
        load_renderer=None if is_named else load,
        context_tokens=server.context_tokens,
    )


def _own_renderer(config: AgentEnvConfig, server: ServerConfig, model: str) -> tuple[Renderer | None, str]:
    """Return the renderer of the model's own ids, or None and why; ConfigError if ids are required."""
    from environments.policy.inference.token_wires import MESSAGE_FIELDS  # noqa: PLC0415
    from environments.policy.rendering.families import load_renderer, validate_family  # noqa: PLC0415

    if server.family is not None:
        validate_family(server.family)
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
        renderer = load_renderer(
            family=server.family, model_name=model, tokenizer_name=tokenizer, tools=server.tools
        )
        return renderer, ""
    except ConfigError as error:
        if server.server_type != "auto" or isinstance(error, TokenizerError):
            raise
        return None, str(error)


def _refuse_too_many_requests(config: AgentEnvConfig, servers: Sequence[ServerConfig]) -> None:
    """Refuse more requests than connections. A default that no run reaches is not refused."""
    default = ServerConfig().num_max_requests_at_once
    asked = [server.num_max_requests_at_once for server in servers]
    chosen = sum(requests for requests in asked if requests != default)
    in_use = min(config.max_concurrent_rollouts, sum(asked))
    if chosen > in_use:
        refuse_more_connections(chosen, "--openai.num_max_requests_at_once")
    else:
        refuse_more_connections(in_use, "--env.max_concurrent_rollouts")
