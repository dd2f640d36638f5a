"""The policy for one model server or several, by messages or by token ids as server and settings allow."""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from environments.policy.base import NO_SCORES, CompletionRequest
from environments.policy.chat import ChatPolicy
from environments.policy.inference.chat_reply import logprobs_warning
from environments.policy.inference.dialect import UNCUT
from environments.policy.inference.server_kind import (
    TEXT_BY_MESSAGES,
    ServerFacts,
    examine_server,
    refuse_other_tokenizer,
)
from environments.policy.inference.token_wires import WIRES, TokenWire
from environments.policy.rendering.chatml import EMBEDDED, Renderer, load_tokenizer
from environments.policy.rendering.families import detect_family
from environments.policy.token_policy import TokenPolicy
from environments.trajectory import Completion, TextScore
from tools.errors import ConfigError, PolicyError, ServerAway
from tools.plain_text import one_line

_LOG = logging.getLogger(__name__)
_STOP_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"include_stop_str_in_output": True},
    "sglang": {"no_stop_trim": True},
}
ServerType = Literal["auto", "chat", "vllm", "sglang", "llama.cpp"]


@dataclass(kw_only=True, eq=False)
class ServerPolicy:
    """Chooses once, on first use, between chat messages and token ids."""

    chat: ChatPolicy
    server_type: ServerType = "auto"
    token_wire: str | None = None
    renderer: Renderer | None = None
    no_renderer: str = ""
    tokenizer_name: str = EMBEDDED
    load_renderer: Callable[[str], tuple[Renderer | None, str]] | None = None
    """Returns renderer and `no_renderer` for a model's name; set if the model is known after the check."""
    context_tokens: int | None = None
    facts: ServerFacts = field(default=ServerFacts(), init=False)
    found: str | None = field(default=None, init=False)
    """One line about the server and its protocol, once known."""
    _has_one_model: bool = field(default=False, init=False, repr=False)
    _decided: ChatPolicy | TokenPolicy | None = field(default=None, init=False, repr=False)
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    @property
    def name(self) -> str:
        return self.chat.model

    @property
    def text_only(self) -> bool:
        return self._decided is self.chat and self.facts.kind in TEXT_BY_MESSAGES

    async def complete(self, request: CompletionRequest) -> Completion:
        policy = self._decided or await self._decide_in_a_rollout()
        return await policy.complete(request)

    async def prompt_tokens(self, request: CompletionRequest) -> int | None:
        policy = self._decided or await self._decide_in_a_rollout()
        return await policy.prompt_tokens(request) if isinstance(policy, TokenPolicy) else None

    async def score(self, request: CompletionRequest, text: str) -> TextScore:
        policy = self._decided or await self._decide_in_a_rollout()
        if not isinstance(policy, TokenPolicy):
            raise ConfigError(f"{self.chat.server.chat_url} {NO_SCORES}")
        return await policy.score(request, text)

    async def check(self) -> None:
        named = self.chat.model
        await self.chat.check()
        if self.chat.model != named:
            self._has_one_model = True
            self.chat.family = self.chat.family or detect_family(self.chat.model)
        await self._decide()

    async def aclose(self) -> None:
        await self.chat.aclose()

    async def _decide_in_a_rollout(self) -> ChatPolicy | TokenPolicy:
        try:
            return await self._decide()
        except ServerAway as error:
            raise PolicyError(str(error)) from error

    async def _decide(self) -> ChatPolicy | TokenPolicy:
        async with self._deciding:
            if self._decided is None:
                self._decided = await self._examine()
        return self._decided

    async def _examine(self) -> ChatPolicy | TokenPolicy:
        url = self.chat.server.base_url
        if self.load_renderer is not None:
            self.renderer, self.no_renderer = await asyncio.to_thread(self.load_renderer, self.chat.model)
        self.facts = await examine_server(self.chat.server, self.chat.model)
        if self.context_tokens is None:
            self.context_tokens = self.facts.context_tokens
        self.chat.context_tokens = self.context_tokens
        numbers = [int(each) for each in re.findall(r"\d+", self.facts.version or "")[:2]]
        if self.facts.kind == "vllm" and numbers >= [0, 33]:
            self.chat.extra_body = {**self.chat.extra_body, "return_weight_versions": True}
        if self.facts.kind == "llama.cpp":
            self.chat.neutral = UNCUT
        self.chat.stop_fields = _STOP_FIELDS.get(self.facts.kind, {})
        wire, how = self._way()
        asked = self.chat if wire is None else self.renderer
        if getattr(asked, "tools_in_prompt", False):
            how += ", tools in the prompt"
        model = f", its only model {one_line(self.name)}" if self._has_one_model else ""
        self.found = f"{url} is {self.facts}{model}; {how}"
        if wire is None and self.facts.kind in TEXT_BY_MESSAGES:
            self.chat.warn_text_only()
        elif (problem := logprobs_warning(self.chat.sampling, self.facts)) is not None:
            _LOG.warning("%s: %s", url, problem)
        if wire is None or self.renderer is None:
            return self.chat
        tokenizer = await asyncio.to_thread(load_tokenizer, self.tokenizer_name)
        await refuse_other_tokenizer(self.chat.server, self.chat.model, self.facts.kind, tokenizer)
        policy = TokenPolicy(
            server=self.chat.server,
            model=self.chat.model,
            renderer=self.renderer,
            wire=wire,
            temperature=self.chat.temperature,
            top_p=self.chat.top_p,
            extra_body=self.chat.extra_body,
            context_tokens=self.context_tokens,
            logprobs_mode=self.facts.logprobs_mode,
        )
        await policy.check_stop_ids()
        return policy

    def _way(self) -> tuple[TokenWire | None, str]:
        kind = self.facts.kind
        if self.server_type == "chat":
            return None, "it is asked by messages"
        if self.server_type != "auto" and kind not in (self.server_type, "unknown"):
            raise ConfigError(
                f"--openai.server_type {self.server_type}: {self.chat.server.base_url} says that it is {kind}"
            )
        server = kind if self.server_type == "auto" else self.server_type
        names = [wire for server_kind, wire in WIRES if server_kind == server]
        why = self.no_renderer if names else ""
        if names and not why and self.renderer is not None:
            name = self.token_wire or names[0]
            return WIRES[server, name], f"it gets token ids ({name}, chat format {self.renderer.name})"
        return None, f"it is asked by messages{why and f': {why}'}"


class ServedPolicy:
    """Picks a server by the rollout's seed, so that all turns of a rollout come from one server."""

    def __init__(self, servers: Sequence[ServerPolicy], *, sampling: Mapping[str, Any]) -> None:
        self._servers = tuple(servers)
        self._sampling = dict(sampling)

    @property
    def name(self) -> str:
        names = "+".join(dict.fromkeys(server.name for server in self._servers))
        shown = {
            name: f"{value:g}"
            if isinstance(value, int | float) and not isinstance(value, bool)
            else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
            for name, value in self._sampling.items()
        }
        return " ".join([names, *(f"{name}={value}" for name, value in shown.items())])

    async def complete(self, request: CompletionRequest) -> Completion:
        return await self._server_of(request).complete(request)

    async def prompt_tokens(self, request: CompletionRequest) -> int | None:
        return await self._server_of(request).prompt_tokens(request)

    async def score(self, request: CompletionRequest, text: str) -> TextScore:
        return await self._server_of(request).score(request, text)

    @property
    def context_tokens(self) -> int | None:
        return min((each.context_tokens for each in self._servers if each.context_tokens), default=None)

    async def check(self) -> None:
        for server in self._servers:
            await server.check()

    @property
    def found(self) -> tuple[str, ...]:
        return tuple(server.found for server in self._servers if server.found is not None)

    @property
    def text_only(self) -> tuple[str, ...]:
        return tuple(server.found or "" for server in self._servers if server.text_only)

    async def aclose(self) -> None:
        for server in self._servers:
            await server.aclose()

    def _server_of(self, request: CompletionRequest) -> ServerPolicy:
        return self._servers[request.seed % len(self._servers)]
