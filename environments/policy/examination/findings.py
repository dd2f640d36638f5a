"""What is examined, and what was found: one value per question."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from environments.inference.model_server import ModelServer
from environments.policy.rendering.renderer import Renderer

Verdict = Literal["ok", "no", "not seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The server that is examined, and what the settings say of its model."""

    server: ModelServer
    model: str
    family: str | None = None
    renderer: Renderer | None = None
    """The model's own chat format and tokenizer; `None`: not named, or not to be had."""
    no_renderer: str = ""
    """Why it is not to be had."""
    tokenizer_name: str = "embedded"
    context_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question."""

    name: str
    verdict: Verdict
    """`not seen`: nothing that was asked showed it."""
    seen: str
    """What the server gave, in a few words."""
    advice: str = ""
    """What to do about it, in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All that was found about one server."""

    findings: tuple[Finding, ...]
    tokens: Literal["exact", "text", "none"]
    """What a run against it records: tokens as they were sampled, tokens made from text, or nothing."""
    conclusion: str
    """What that means, in a line."""
    flags: tuple[str, ...] = ()
    """The settings to use, as arguments of a command."""
