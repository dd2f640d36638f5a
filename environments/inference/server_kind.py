"""What a model server is, read from what it says of itself: no completion is bought."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import orjson

from environments.inference.http_client import NoAnswerError, StatusError
from environments.inference.model_server import ModelServer
from environments.inference.server_text import one_line

ServerKind = Literal["vllm", "sglang", "llama.cpp", "ollama", "openai", "mistral", "openrouter", "unknown"]
TEXT_ONLY: frozenset[ServerKind] = frozenset({"llama.cpp", "ollama", "openai", "mistral", "openrouter"})
"""These give no token ids, whatever they are asked."""
_BY_OWNER: Mapping[str, ServerKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "library": "ollama",
    "mistralai": "mistral",
    # Not `openai`, which is what gateways to anything say.
    "system": "openai",
    "openai-internal": "openai",
}
_HOSTED: frozenset[ServerKind] = frozenset({"openai", "mistral", "openrouter"})
_LOGPROBS_MODE = re.compile(rb"logprobs_mode\W{1,8}((?:raw|processed)_log(?:probs|its))")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says of itself."""

    kind: ServerKind = "unknown"
    version: str | None = None
    context_tokens: int | None = None
    """The model's window."""
    logprobs_mode: str | None = None
    """vLLM's setting of this name, which it shows in its development mode alone."""

    def __str__(self) -> str:
        """In a few words."""
        kind = "a server that does not say what it is" if self.kind == "unknown" else self.kind
        version = f" {self.version}" if self.version else ""
        window = f", window {self.context_tokens} tokens" if self.context_tokens else ""
        return f"{kind}{version}{window}"


async def look(server: ModelServer, model: str) -> ServerFacts:
    """Ask a server what it is; what it does not say stays unknown.

    Args:
        server: that is asked for its models, and then for the page that each kind of server has.
        model: the one in use.
    """
    entry = _entry_of(await _page(server, "/models"), model)
    facts = ServerFacts(kind=_kind_of(entry), context_tokens=_window_of(entry))
    if facts.kind in _HOSTED:
        return facts
    asked: list[tuple[ServerKind, str]] = [
        (kind, path) for kind, path in _PAGES if facts.kind in (kind, "unknown")
    ]
    pages = await asyncio.gather(*(_page(server, path, at_root=True) for _, path in asked))
    for (kind, _), page in zip(asked, pages, strict=True):
        if facts.kind in (kind, "unknown"):
            facts = _with_page(facts, kind, page)
    return facts


_PAGES: tuple[tuple[ServerKind, str], ...] = (
    ("sglang", "/server_info"),
    ("sglang", "/get_model_info"),
    ("vllm", "/version"),
    ("vllm", "/server_info"),
    ("llama.cpp", "/props"),
    ("ollama", "/api/version"),
)
"""Beside `/v1`."""
_SIGNS: Mapping[ServerKind, frozenset[str]] = {
    "sglang": frozenset({"model_path"}),
    "vllm": frozenset({"version"}),
    "llama.cpp": frozenset({"default_generation_settings"}),
    "ollama": frozenset({"version"}),
}
"""Fields without which a page is of another server."""


async def _page(server: ModelServer, path: str, *, at_root: bool = False) -> object:
    """What a page holds; `None` for none."""
    try:
        return orjson.loads(await server.ask_once(path, at_root=at_root))
    except (StatusError, NoAnswerError, ValueError):
        return None


def _entry_of(page: object, model: str) -> Mapping[str, Any]:
    """What `/models` says of the model in use, or of the first where it names no such one."""
    listed = _object(page).get("data", page)
    entries = [_object(each) for each in cast("list[object]", listed)] if isinstance(listed, list) else []
    named = [entry for entry in entries if _text(entry.get("id")).endswith(model)]
    return (named or entries or [_object(None)])[0]


def _kind_of(entry: Mapping[str, Any]) -> ServerKind:
    if "top_provider" in entry:
        return "openrouter"
    if "max_context_length" in entry and "capabilities" in entry:
        return "mistral"
    return _BY_OWNER.get(_text(entry.get("owned_by")), "unknown")


def _window_of(entry: Mapping[str, Any]) -> int | None:
    meta = _object(entry.get("meta"))
    provider = _object(entry.get("top_provider"))
    candidates = (
        entry.get("max_model_len"),
        entry.get("max_context_length"),
        provider.get("context_length"),
        entry.get("context_length"),
        meta.get("n_ctx"),
    )
    return next((each for each in candidates if _is_window(each)), None)


def _with_page(facts: ServerFacts, kind: ServerKind, page: object) -> ServerFacts:
    fields = _object(page)
    mode = _LOGPROBS_MODE.search(_json(page)) if facts.kind == kind == "vllm" else None
    if mode is not None:
        return replace(facts, logprobs_mode=mode[1].decode())
    if not _SIGNS[kind] <= fields.keys():
        return facts
    version = fields.get("version", fields.get("build_info"))
    slot = _object(fields.get("default_generation_settings")).get("n_ctx")
    return replace(
        facts,
        kind=kind,
        version=one_line(version)[:40] if isinstance(version, str) else facts.version,
        # What one slot of llama.cpp has is less than the window of the model that it lists.
        context_tokens=slot if _is_window(slot) else facts.context_tokens,
    )


def _object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # nested deeper than it writes
        return b""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_window(value: object) -> bool:
    return type(value) is int and value > 0
