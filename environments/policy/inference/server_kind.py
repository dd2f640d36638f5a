"""Detection of a server's kind and capabilities from its own pages, without sampling."""

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import orjson
from tokenizers import Tokenizer

from environments.policy.inference.dialect import UNNAMED_MODEL, Dialect
from environments.policy.inference.http_client import (
    IncompleteError,
    NoAnswerError,
    StatusError,
    list_in,
    mapping,
    start_of,
)
from environments.policy.inference.model_server import ModelServer, is_transient
from tools.errors import ConfigError, ServerAway
from tools.json_input import JsonError, read_json
from tools.plain_text import one_line

ServerKind = Literal["vllm", "sglang", "llama.cpp", "ollama", "openai", "mistral", "openrouter", "unknown"]
TEXT_BY_MESSAGES: frozenset[ServerKind] = frozenset(
    {"llama.cpp", "ollama", "openai", "mistral", "openrouter"}
)
"""Servers that give no token ids when they are asked by messages."""
_BY_OWNER: Mapping[str, ServerKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "library": "ollama",
    "mistralai": "mistral",
    # Not `openai`, which gateways to any model claim.
    "system": "openai",
    "openai-internal": "openai",
}
_HOSTED: frozenset[ServerKind] = frozenset({"openai", "mistral", "openrouter"})
_LOGPROBS_MODE = re.compile(rb"logprobs_mode\W{1,8}((?:raw|processed)_log(?:probs|its))")
_PAGES: tuple[tuple[ServerKind, str], ...] = (
    ("sglang", "/server_info"),
    ("sglang", "/get_model_info"),
    ("vllm", "/version"),
    ("vllm", "/server_info"),
    ("llama.cpp", "/props"),
    ("ollama", "/api/version"),
)
_SIGNS: Mapping[ServerKind, frozenset[str]] = {
    "sglang": frozenset({"model_path"}),
    "vllm": frozenset({"version"}),
    "llama.cpp": frozenset({"default_generation_settings"}),
    "ollama": frozenset({"version"}),
}
_LOG = logging.getLogger(__name__)
_BROKEN = frozenset({500, 501})
"""Permanent answers for missing pages; proxies of a busy server answer 502 to 504."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    kind: ServerKind = "unknown"
    version: str | None = None
    context_tokens: int | None = None
    logprobs_mode: str | None = None

    def __str__(self) -> str:
        kind = "a server that does not say what it is" if self.kind == "unknown" else self.kind
        version = f" {self.version}" if self.version else ""
        window = f", window {self.context_tokens} tokens" if self.context_tokens else ""
        return f"{kind}{version}{window}"


async def examine_server(server: ModelServer, model: str) -> ServerFacts:
    """Ask a server for its kind, version and limits; facts that it does not give are unset.

    Raises:
        ServerAway: if a page failed after all tries.
    """
    page = await _page(server, "/models")
    entries = [mapping(each) for each in list_in(mapping(page).get("data", page))]
    named = [entry for entry in entries if str(entry.get("id")).endswith(model)]
    entry = next(iter(named or entries), mapping(None))
    kind: ServerKind = _BY_OWNER.get(str(entry.get("owned_by")), "unknown")
    if "top_provider" in entry:
        kind = "openrouter"
    elif "max_context_length" in entry and "capabilities" in entry:
        kind = "mistral"
    windows = (
        entry.get("max_model_len"),
        entry.get("max_context_length"),
        mapping(entry.get("top_provider")).get("context_length"),
        entry.get("context_length"),
        mapping(entry.get("meta")).get("n_ctx"),
    )
    facts = ServerFacts(kind=kind, context_tokens=next(filter(_is_window, windows), None))
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


@dataclass(kw_only=True, eq=False)
class ServedModel:
    server: ModelServer
    model: str
    temperature: float = 1.0
    top_p: float = 1.0
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    neutral: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that leave the distribution unchanged: sent unless the user sets them, never recorded."""

    @property
    def name(self) -> str:
        return self.model

    async def check(self) -> None:
        """Check the server, and choose its only model if none is named."""
        self.model = await check_server(self.server, self.model)

    async def aclose(self) -> None:
        await self.server.aclose()

    def body_fields(self, dialect: Dialect, *, seed: int, max_tokens: int) -> dict[str, Any]:
        sampling = {"temperature": self.temperature, "top_p": self.top_p}
        fields = dialect.fields(sampling, seed=seed, max_tokens=max_tokens)
        return {"model": self.model, **self.neutral, **fields, **self.extra_body}

    def describe_failure(self, error: StatusError | NoAnswerError) -> str:
        tried = f"tried {self.server.tries} times" if is_transient(error) else ""
        if isinstance(error, StatusError) and tried and error.retry_after_s:
            waited_s = self.server.wait_for(error.retry_after_s)
            tried += f", {waited_s:g} s apart where it asks for {error.retry_after_s:g} s"
        tried = f" ({tried})" if tried else ""
        if isinstance(error, NoAnswerError):
            return f"gave no answer{tried}: {error}"
        key = f"; {self.server.key_hint}" if error.status == 401 else ""
        return f"answered {error.status}{tried}: {error.reason}{key}"


async def check_server(server: ModelServer, model: str) -> str:
    """Check that the server is usable. Return the model's name, for an unnamed one that of the only model.

    Asks `GET /models`. If that is missing, broken or empty, the server is accepted when it properly refuses
    an empty `POST /chat/completions`; its model is not verified then.

    Raises:
        ConfigError: if it is not usable; one line that says what to change.
    """
    url = server.base_url
    try:
        page = await _json(server, "/models")
    except IncompleteError as error:
        raise _not_openai(url, str(error)) from error
    except StatusError as error:
        if error.status in (401, 403):
            raise _refusal(server, error) from error
        await _check_chat(server, None if error.status == 404 else _refusal(server, error))
        return model
    except NoAnswerError as error:
        raise _unreachable(url, error) from error
    models = _models_in(page)
    if models:
        # ollama adds `:latest`; OpenRouter accepts suffixes such as `:nitro`.
        wanted = {model, f"{model}:latest", model.rpartition(":")[0] or model}
        if any(name in wanted or name.endswith(f"/{model}") for name in models):
            return model
        if model == UNNAMED_MODEL and len(models) == 1:
            return models[0]
        more = f" and {len(models) - 10} more" if len(models) > 10 else ""
        listed = ", ".join(one_line(name) for name in sorted(models)[:10]) + more
        if model == UNNAMED_MODEL:
            raise ConfigError(f"{url} has {len(models)} models; set model_name to one of them: {listed}")
        raise ConfigError(f"{url} has no model {model!r}; it has {listed}")
    wrong = _not_openai(url, f"its /models is {start_of(orjson.dumps(page))}")
    await _check_chat(server, wrong if models is None else None)
    _LOG.info("%s does not list its models; whether it has %r shows with the first answer", url, model)
    return model


TEXTS = (
    "Hello, world!", "  two spaces, \t a tab\n\na new paragraph\n", "don't I'LL we've", "3.14159 1,000,000",
    "def f(x):\n    return x ** 2  # square", '{"name": "f", "arguments": {"x": [1, null]}}',
    "https://example.org/a?b=c&d=%20", "Straße, garçon, naïve", "e\u0301 is not \u00e9", "Привет, мир",
    "你好\uff0c世界", "こんにちは世界", "안녕하세요", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈", "∑ᵢ xᵢ² ≤ ∞", "\u00a0\u200b\u3000|", "AAAAAAAAAAAAAAAA aaaaaaaaaaaaaaaa",
)  # fmt: skip
"""Texts on which tokenizers differ: spaces, digits, code, scripts, joined signs."""


async def refuse_other_tokenizer(
    server: ModelServer, model: str, kind: ServerKind, tokenizer: Tokenizer
) -> bool:
    """Raise ConfigError if server and tokenizer give a text other ids; return False without a `/tokenize`."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in TEXTS:
        fields = {"content": text} if kind == "llama.cpp" else {"model": model, "prompt": text}
        body = orjson.dumps({**fields, "add_special": False, "add_special_tokens": False})
        theirs = list_in(mapping(await _page(server, "/tokenize", body, at_root=True)).get("tokens"))
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        if not theirs:
            return False
        if theirs != ours:
            pairs = enumerate(zip(theirs, ours, strict=False))
            at = next((index for index, (one, other) in pairs if one != other), min(len(theirs), len(ours)))
            raise ConfigError(
                f"--env.tokenizer_name is not the tokenizer of {server.base_url}: {text!r} has from token "
                f"{at} on the ids {one_line(str(theirs[at:]))[:100]} there, {str(ours[at:])[:100]} here"
            )
    return True


async def _json(
    server: ModelServer, path: str, body: bytes | None = None, *, at_root: bool = False
) -> object:
    async def read(content: bytes) -> object:
        try:
            return read_json(content)
        except JsonError as error:
            raise IncompleteError(f"its {path} is {start_of(content)}") from error

    return await server.ask(path, body, read, at_root=at_root)


async def _page(
    server: ModelServer, path: str, body: bytes | None = None, *, at_root: bool = False
) -> object:
    try:
        return await _json(server, path, body, at_root=at_root)
    except IncompleteError:
        return None
    except (StatusError, NoAnswerError) as error:
        if not is_transient(error) or (isinstance(error, StatusError) and error.status in _BROKEN):
            return None
        raise ServerAway(
            f"{server.base_url} could not be examined: its {path}: {error}; is it busy?"
        ) from error


def _with_page(facts: ServerFacts, kind: ServerKind, page: object) -> ServerFacts:
    fields = mapping(page)
    mode = _LOGPROBS_MODE.search(orjson.dumps(page)) if facts.kind == kind == "vllm" else None
    if mode is not None:
        return replace(facts, logprobs_mode=mode[1].decode())
    if not _SIGNS[kind] <= fields.keys():
        return facts
    version = fields.get("version", fields.get("build_info"))
    slot = mapping(fields.get("default_generation_settings")).get("n_ctx")
    return replace(
        facts,
        kind=kind,
        version=one_line(version)[:40] if isinstance(version, str) else facts.version,
        # One slot of llama.cpp has less than the listed window.
        context_tokens=slot if _is_window(slot) else facts.context_tokens,
    )


def _is_window(value: object) -> bool:
    return type(value) is int and value > 0


def _models_in(answer: object) -> list[str] | None:
    """Return model names in OpenAI's, Together's (a bare list) or ollama's format, or None."""
    if isinstance(answer, dict):
        fields = cast("dict[str, object]", answer)
        if not fields.keys() & {"data", "models"}:
            return None
        answer = fields.get("data") or fields.get("models") or []
    if not isinstance(answer, list):
        return None
    entries = cast("list[object]", answer)
    possible = [[entry, *(mapping(entry).get(name) for name in ("id", "name", "model"))] for entry in entries]
    names = [next((name for name in each if isinstance(name, str)), None) for each in possible]
    return None if None in names else cast("list[str]", names)


async def _check_chat(server: ModelServer, problem: ConfigError | None) -> None:
    """Accept a server that refuses an empty chat request properly; else raise the earlier problem."""
    url = server.base_url
    # transformers serve breaks on `{}` but refuses a list.
    for body in (b"{}", b"[]"):
        try:
            content = await server.ask_once("/chat/completions", body)
        except StatusError as error:
            if error.status in (404, 405):
                raise problem or ConfigError(
                    f"{url} has neither /models nor /chat/completions{_hint(url)}"
                ) from error
            if error.status in (400, 422):
                return
            if error.status < 500:
                raise _refusal(server, error) from error
            problem = problem or _refusal(server, error)
        except NoAnswerError as error:
            raise problem or _unreachable(url, error) from error
        else:
            with suppress(JsonError):
                if "choices" in mapping(read_json(content)):
                    return
            problem = problem or _not_openai(url, f"it answers a chat with {start_of(content)}")
    assert problem is not None
    raise problem


def _not_openai(url: str, what: str) -> ConfigError:
    return ConfigError(f"{url} does not speak the OpenAI API{_hint(url)}; {what}")


def _refusal(server: ModelServer, error: StatusError) -> ConfigError:
    url = server.base_url
    if error.status in (401, 403):
        return ConfigError(f"{url} refuses the API key ({error.status}): {error.reason}; {server.key_hint}")
    return (ServerAway if is_transient(error) else ConfigError)(
        f"{url} answered {error.status}: {error.reason}"
    )


def _unreachable(url: str, error: NoAnswerError) -> ConfigError:
    return (ServerAway if is_transient(error) else ConfigError)(f"no model server answers at {url}: {error}")


def _hint(url: str) -> str:
    return "" if url.endswith("/v1") else f" (did you mean {url}/v1?)"
