"""What rollouts are made of, from the settings: their budget, their sandboxes and the model servers."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from pydantic import ConfigDict, ValidationError, create_model

from environments.config import EMBEDDED_TOKENIZER, AgentEnvConfig, ServerConfig
from environments.inference.connection_limit import refuse_more_connections
from environments.inference.extra_body import shaping
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.agent_loop import Budget
from tools.errors import ConfigError
from tools.sandbox import lent_folder, open_sandbox
from tools.sandbox.base import Sandbox, SandboxLimits

if TYPE_CHECKING:
    from environments.policy.rendering.renderer import Renderer
    from environments.policy.served import ServedPolicy
    from environments.policy.server_policy import ServerPolicy

_LOG = logging.getLogger(__name__)


_BUDGET = (
    "max_turns", "max_tokens_per_turn", "token_budget", "rollout_timeout_s", "tool_timeout_s",
    "tool_output_chars", "max_token_length",
)  # fmt: skip
"""The settings that an item may have smaller."""
_Limits = create_model(
    "Limits",
    __config__=ConfigDict(strict=True, allow_inf_nan=False),
    **cast("Any", {
        name: (field.annotation, field)
        for name, field in AgentEnvConfig.model_fields.items()
        if name in _BUDGET
    }),
)  # fmt: skip


def budget_of(config: AgentEnvConfig, limits: Any = MappingProxyType({}), *, env: str = "") -> Budget:
    """What one rollout may spend: of setting and limit the smaller one.

    Args:
        config: the settings.
        limits: those of its item, by the settings' names, as the environment gave them.
        env: the environment's name.

    Raises:
        ConfigError: the limits are no mapping, or have a name or a value that is none.
    """
    spent = {name: min(getattr(config, name), limit) for name, limit in _checked_limits(limits, env).items()}
    smaller = config.model_copy(update=spent)
    return Budget(
        max_turns=smaller.max_turns,
        max_tokens_per_turn=smaller.max_tokens_per_turn,
        token_budget=smaller.token_budget,
        max_row_tokens=smaller.max_token_length,
        timeout_s=smaller.rollout_timeout_s,
        tool_timeout_s=smaller.tool_timeout_s,
        tool_output_chars=smaller.tool_output_chars,
    )


def _checked_limits(limits: Any, env: str) -> Mapping[str, float]:
    where = f"environment {env!r}: limits_for gave"
    if not isinstance(limits, Mapping):
        raise ConfigError(f'{where} {limits!r:.100}; give a mapping such as {{"max_turns": 6}}')
    given = dict(cast("Mapping[Any, Any]", limits))
    if unknown := [name for name in given if name not in _BUDGET]:
        raise ConfigError(f"{where} a limit {unknown[0]!r:.100}; choose from {', '.join(_BUDGET)}")
    try:
        checked = _Limits.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = wrong["loc"][0]
        raise ConfigError(f"{where} {name} {given[name]!r:.100}: {wrong['msg']}") from None
    return {name: getattr(checked, name) for name in given}


def sandbox_of(config: AgentEnvConfig) -> AbstractAsyncContextManager[Sandbox]:
    """A fresh sandbox."""
    return open_sandbox(
        config.sandbox,
        limits=SandboxLimits(
            memory_mb=config.sandbox_memory_mb,
            pids=config.sandbox_pids,
            disk_mb=config.sandbox_disk_mb,
            network=config.sandbox_network,
        ),
        allow_unsafe=config.allow_unsafe_sandbox,
        image=config.sandbox_image,
    )


def warn_of_lent_files(config: AgentEnvConfig, env: type) -> None:
    """Say which files of an environment every agent can read: its hidden tests may be in them."""
    # A class that was typed in has no file.
    module = getattr(sys.modules.get(env.__module__), "__file__", None)
    for what, path in (("code", module), ("dataset", config.dataset_path)):
        if path is not None and (folder := lent_folder(config.sandbox, Path(path))):
            _LOG.warning(
                "the environment's %s lies below %s, which every sandbox can read, %s: agents can find their "
                "hidden tests there; move it",
                what, folder, path,
            )  # fmt: skip


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
    from environments.policy.served import ServedPolicy  # noqa: PLC0415

    policies = [_server_policy(config, server, renderer) for server in servers]
    extra = {name: value for server in servers for name, value in shaping(server.extra_body).items()}
    return ServedPolicy(policies, sampling=config.sampling() | extra)


def _server_policy(config: AgentEnvConfig, server: ServerConfig, renderer: ChatMLRenderer) -> "ServerPolicy":
    from environments.inference.model_server import ModelServer  # noqa: PLC0415
    from environments.policy.chat import ChatPolicy  # noqa: PLC0415
    from environments.policy.server_policy import ServerPolicy  # noqa: PLC0415

    own_renderer, no_renderer = _own_renderer(config, server)
    chat = ChatPolicy(
        server=ModelServer(
            base_url=str(server.base_url),
            api_key=server.api_key or "none",
            request_timeout_s=config.request_timeout_s,
            tries=config.request_tries,
            max_concurrency=server.num_max_requests_at_once,
            proxy=server.proxy,
            ca_file=server.ca_file,
        ),
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
