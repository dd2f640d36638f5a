"""Settings of model servers: of those that play the policy, and of the models beside it."""

import logging
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, Field, field_validator

from environments.config_section import Section, WithoutEffect
from environments.inference.extra_body import checked_extra_body
from tools.errors import ConfigError

logger = logging.getLogger(__name__)


class ModelServerConfig(Section):
    """Where an OpenAI-compatible model server is, and what each request to it has."""

    by_entry: ClassVar[frozenset[str]] = frozenset({"extra_body"})
    json_entries: ClassVar[frozenset[str]] = frozenset({"extra_body"})

    base_url: str | None = Field(
        default="",
        repr=False,
        description="Base URL of an OpenAI-compatible server, for example http://localhost:8000/v1.",
    )
    model_name: str = Field(default="default", description="The model to ask for.")
    api_key: str | None = Field(default="none", repr=False, description="API key of the server.")
    num_max_requests_at_once: int = Field(
        default=512,
        ge=1,
        le=25_000,
        description="Requests in flight at once, each over a connection of its own; more than this process "
        "may open files is refused.",
    )
    extra_body: dict[str, Any] = Field(
        default={},
        description="More fields of each request, NAME VALUE (JSON) each: top_k, stop, tool_choice, "
        "chat_template_kwargs, …",
    )
    proxy: str | None = Field(
        default=None,
        repr=False,
        description="Proxy for requests to it; unset on the command line: what http_proxy, https_proxy, "
        "all_proxy and no_proxy say; `none`: none.",
    )
    ca_file: str | None = Field(
        default=None,
        description="File of the certificates that an https server is checked with, and no others.",
    )

    @field_validator("extra_body")
    @classmethod
    def _ours_stay_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(value.keys() & cls.model_fields.keys()):
            raise ValueError(f"cannot set {own[0]}: set --{cls.section}.{own[0]}")
        return dict(checked_extra_body(value))


class SecondModelConfig(ModelServerConfig):
    """A model beside the policy, asked by messages for text that nobody trains on."""

    num_max_requests_at_once: int = Field(
        default=64, ge=1, le=25_000, description="Requests in flight at once; others wait."
    )
    temperature: float = Field(default=1.0, ge=0, le=2, description="Sampling temperature.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    max_tokens: int = Field(default=1024, ge=1, description="Tokens of one answer, reasoning included.")


class JudgeConfig(SecondModelConfig):
    """The server of the judge (`ctx.judge`); without a `base_url`, `scripted_judge` answers."""

    section = "judge"

    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature.")


class UserConfig(SecondModelConfig):
    """The server of the simulated user; without a `base_url`, `scripted_user` answers."""

    section = "user"


class SummariserConfig(SecondModelConfig):
    """The server of the summariser; without a `base_url`, `scripted_summariser` answers."""

    section = "summariser"


class ServerConfig(ModelServerConfig):
    """One OpenAI-compatible model server; without a `base_url` the scripted agent plays."""

    section = "openai"
    without_effect: ClassVar[WithoutEffect] = {
        "timeout": ((1200,), "--env.request_timeout_s is the wall clock of one request"),
        "num_requests_for_eval": ((64,), "--env.max_concurrent_rollouts bounds an evaluation"),
        "rolling_buffer_length": ((1000,), "wandb gets every group"),
        "tokenizer_name": (("none",), "--env.tokenizer_name is that of the model"),
        "n_kwarg_is_ignored": ((False,), "each completion is a request of its own"),
        "health_check": ((True, False), "a server is asked once before a run, and when calls to it fail"),
    }

    server_type: Literal["auto", "chat", "vllm", "sglang"] = Field(
        default="auto",
        description="How it is asked. chat: messages, over /chat/completions. vllm, sglang: token ids, which "
        "needs the model's own --env.tokenizer_name. auto: asks the server what it is, and says so.",
    )
    token_wire: Literal["completions", "generate", "chat"] | None = Field(
        default=None,
        description="Where a server gets token ids. completions: /v1/completions. generate: vLLM's "
        "/inference/v1/generate, SGLang's /generate. chat: SGLang's /v1/chat/completions with input_ids. "
        "Unset: completions for vllm, generate for sglang.",
    )
    family: str | None = Field(
        default=None,
        description="The model's chat format, for its token ids and for tool calls that it writes as text: "
        "chatml, or a name of `turnwise check-model --families`. Unset: by the model's name.",
    )
    context_tokens: int | None = Field(
        default=None, ge=16, description="The model's context window; unset: as the server says, if it does."
    )

    @field_validator("server_type", mode="before")
    @classmethod
    def _in_atropos_words(cls, value: object) -> object:
        return "chat" if value in ("openai", "trl") else value


def server_configs(configured: Any) -> list[ModelServerConfig]:
    """The servers that `config_init` names, one or a list, in our words or in Atropos'.

    What Atropos' words set and has no effect here is logged as a warning.

    Raises:
        ConfigError: one of them is no server config.
    """
    servers = cast("list[Any]", configured) if isinstance(configured, list | tuple) else [configured]
    for server in servers:
        if not isinstance(server, BaseModel):
            raise ConfigError(f"a model server is a ServerConfig, got {type(server).__name__}")
    # Atropos' ServerBaseline stands for "no server": it has no base_url.
    return [
        server if isinstance(server, ModelServerConfig) else _in_our_words(server)
        for server in servers
        if hasattr(server, "base_url")
    ]


def _in_our_words(server: BaseModel) -> ServerConfig:
    for name, (_, instead) in ServerConfig.without_effect.items():
        if name in server.model_fields_set and name != "health_check":
            logger.warning("config_init sets %s, which has no effect in Turnwise: %s", name, instead)
    known = {name: getattr(server, name) for name in ServerConfig.model_fields if hasattr(server, name)}
    if "server_type" not in server.model_fields_set:
        known.pop("server_type", None)  # `openai` is Atropos' default, and says nothing
    return ServerConfig(**known)
