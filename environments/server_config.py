"""Settings of model servers: what all of them have, and those of the models beside the policy."""

from typing import Any, ClassVar

from pydantic import Field, field_validator

from environments.config_section import Section
from environments.inference.extra_body import checked_extra_body


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
