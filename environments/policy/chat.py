"""The policy for any OpenAI-compatible chat server; exact if the server returns the sampled tokens."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from environments.policy.base import CannotEnforceError, CompletionRequest
from environments.policy.inference.chat_reply import (
    ReplyError,
    SampledMessage,
    SampledTokens,
    call_id,
    read_long_reply,
    remove_row,
)
from environments.policy.inference.dialect import (
    Dialect,
    RefusedSettingError,
    is_context_overflow,
    json_format,
    sampling_of,
    with_stops,
)
from environments.policy.inference.http_client import NoAnswerError, StatusError, request_body
from environments.policy.inference.server_kind import ServedModel
from environments.policy.rendering.chatml import LONGEST_TOKEN, ChatMLRenderer, run_rendering
from environments.policy.rendering.families import HERMES, detect_family, read_text_calls
from environments.policy.rendering.tools_in_prompt import write_tools
from environments.policy.row_prompt import (
    ToolUse,
    min_prompt_tokens,
    new_messages,
    render_prompt,
    with_token_limit,
)
from environments.trajectory import Completion, Message
from tools.errors import ConfigError, ContextOverflow, PolicyError

_LOG = logging.getLogger(__name__)
_LONG_CHARS = 50_000
_PROBE_TOKENS = 16
_FIRM_REFUSALS = 2
"""Refusals after which ids are no longer requested: a single one may be a glitch."""


@dataclass(kw_only=True, eq=False)
class ChatPolicy(ServedModel):
    """Samples assistant turns from a model server by chat messages.

    A server that supports `return_token_ids` (vLLM, SGLang) gives exact completions. For any other, the token
    ids are encoded from the text, without logprobs, and the completion has `exact=False`.
    """

    renderer: ChatMLRenderer
    context_tokens: int | None = None
    family: str | None = None
    """The model's chat format, for tool calls in its text; None: derived from its name."""
    tools_in_prompt: bool = False
    """Write tools, calls and results as text; otherwise the server's chat template does."""
    stop_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields with which the server returns a stop text instead of removing it, so that text and ids agree."""
    sampling: dict[str, Any] = field(init=False, repr=False)
    _dialect: Dialect = field(init=False, repr=False, default_factory=Dialect)
    _gives_ids: bool = field(init=False, repr=False, default=False)
    _without_ids: int = field(init=False, repr=False, default=0)
    _warned: set[str] = field(init=False, repr=False, default_factory=set[str])
    _tool_use: ToolUse = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sampling = sampling_of(self.temperature, self.top_p, self.extra_body)
        self.family = HERMES if self.tools_in_prompt else self.family or detect_family(self.model)
        self._tool_use = ToolUse(self.server.chat_url)

    @property
    def refused(self) -> frozenset[str]:
        return self._dialect.refused

    async def complete(self, request: CompletionRequest) -> Completion:
        sampled = await self._sample(self._limit_tokens(request))
        if self._tool_use.note(request, sampled.message):
            self._tool_use.warn(request, dropped_from=await self._count_without_tools(request, sampled))
        tokens = sampled.tokens
        counts: Mapping[str, int] = sampled.usage if tokens is None else {}
        if tokens is None:
            tokens = await run_rendering(
                partial(self._encode, sampled, request),
                self.renderer,
                (*new_messages(request), sampled.message),
                max_tokens=request.max_row_tokens,
            )
        return Completion(
            message=sampled.message,
            finish_reason=sampled.finish_reason,
            prompt_ids=tokens.prompt_ids,
            extends_row=tokens.extends_row,
            fork=tokens.fork,
            token_ids=tokens.token_ids,
            logprobs=tokens.logprobs,
            exact=sampled.tokens is not None,
            prompt_tokens=counts.get("prompt_tokens"),
            sampled_tokens=counts.get("completion_tokens"),
            weight_version=sampled.weight_version,
            weight_spans=sampled.weight_spans if sampled.tokens is not None else (),
            sampling=with_stops(self.sampling, request.stops),
        )

    async def _count_without_tools(self, request: CompletionRequest, sampled: SampledMessage) -> int | None:
        """Return the server's count of a prompt if it is the same without tools, else None."""
        counted = sampled.usage.get("prompt_tokens")
        try:
            bare = replace(request, tools=(), constraint=None, row=None, max_tokens=_PROBE_TOKENS)
            without = await self._sample(bare)
        except (PolicyError, ContextOverflow):
            return None
        return counted if counted == without.usage.get("prompt_tokens") else None

    def _limit_tokens(self, request: CompletionRequest) -> CompletionRequest:
        # The context window is in the server's tokens: only its ids or counts are compared with it.
        longest = LONGEST_TOKEN if self._gives_ids else self.renderer.longest_token
        at_least = min_prompt_tokens(request, longest_token=longest)
        counted = request.prompt_tokens or 0
        if self._gives_ids:
            tokens = max(at_least, counted)
            return with_token_limit(request, prompt_tokens=tokens, context_tokens=self.context_tokens)
        with_token_limit(request, prompt_tokens=at_least, context_tokens=None)
        if not counted or self.context_tokens is None:
            return request
        fitted = with_token_limit(
            replace(request, max_row_tokens=None), prompt_tokens=counted, context_tokens=self.context_tokens
        )
        return replace(fitted, max_row_tokens=request.max_row_tokens)

    def warn_text_only(self) -> None:
        self._warn_once(
            "gives no token ids: they are made from its text, without logprobs (exact: false), and no "
            "trainer can learn from them; send ids to vLLM, SGLang or llama.cpp, see --openai.server_type"
        )

    async def _sample(self, request: CompletionRequest) -> SampledMessage:
        dialect, call_prefix = self._dialect, f"{request.seed}_{request.number}"

        async def read(content: bytes) -> SampledMessage:
            rest = None if request.row is None else remove_row(content, request.row.json())
            to_read = content if rest is None else rest
            sampled = await read_long_reply(to_read, call_prefix, max_tokens=request.max_tokens)
            if rest is None or sampled.tokens is None:
                return sampled
            return replace(sampled, tokens=replace(sampled.tokens, extends_row=True))

        while True:
            try:
                sampled = await self.server.chat(self._body(request, dialect), read)
                break
            except StatusError as error:
                dialect = self._after_refusal(error, dialect)
            except NoAnswerError as error:
                raise PolicyError(f"{self.server.chat_url} {self.describe_failure(error)}") from error
            except ReplyError as error:
                raise PolicyError(f"{self.server.chat_url}: {error}") from error
        self._learn(dialect, sampled)
        return await self._with_text_calls(sampled, request, call_prefix)

    async def _with_text_calls(
        self, sampled: SampledMessage, request: CompletionRequest, call_prefix: str
    ) -> SampledMessage:
        message = sampled.message
        if self.family is None or message.tool_calls or not request.tools or not message.content:
            return sampled
        read = partial(read_text_calls, message.content, self.family, request.tools)
        try:
            content, calls = read() if len(message.content) < _LONG_CHARS else await asyncio.to_thread(read)
        except ConfigError as error:
            self._warn_once(f"is not read for tool calls in its text: {error}")
            return sampled
        if not calls:
            return sampled
        named = tuple(replace(call, id=call_id(call_prefix, index)) for index, call in enumerate(calls))
        return replace(
            sampled,
            message=replace(message, content=content, tool_calls=named),
            finish_reason="length" if sampled.finish_reason == "length" else "tool_calls",
        )

    def _after_refusal(self, error: StatusError, dialect: Dialect) -> Dialect:
        url = self.server.chat_url
        if is_context_overflow(error):
            raise ContextOverflow(f"{url} {self.describe_failure(error)}") from error
        try:
            simpler = dialect.without_refused(error, self.sampling, gives_ids=self._gives_ids)
        except RefusedSettingError as refusal:
            raise RefusedSettingError(f"{url}: {refusal}") from error
        if simpler is None:
            raise PolicyError(f"{url} {self.describe_failure(error)}") from error
        what = ", ".join(sorted(simpler.refused - dialect.refused)) or "a part of the request"
        self._warn_once(f"refuses {what} ({error.reason}); asking without it")
        return simpler

    def _learn(self, dialect: Dialect, sampled: SampledMessage) -> None:
        """Record what a reply shows of the server; replies to older requests must not undo it."""
        self._gives_ids = self._gives_ids or sampled.tokens is not None
        learned = self._dialect.merge(replace(dialect, reasoning=sampled.reasoning_field))
        self._without_ids += not dialect.captures
        refused_twice = self._without_ids >= _FIRM_REFUSALS and not self._gives_ids
        self._dialect = learned if refused_twice else learned.with_capture()
        if sampled.tokens is None and self._gives_ids:
            raise PolicyError(
                f"{self.server.chat_url} gave no token ids this time, and has given them before"
            )
        if sampled.tokens is None:
            self.warn_text_only()
        elif sampled.tokens.logprobs is None:
            self._warn_once(
                "gives token ids without logprobs, which importance ratios need: start vLLM without "
                "--max-logprobs 0, or ask with --openai.server_type vllm or sglang"
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _LOG.warning("%s %s", self.server.chat_url, text)

    def _body(self, request: CompletionRequest, dialect: Dialect) -> bytes:
        in_prompt = self.tools_in_prompt
        messages = write_tools(request.messages, request.tools) if in_prompt else request.messages
        lists = {"messages": [_encode_message(each, dialect.reasoning_field) for each in messages]}
        if request.tools and not in_prompt:
            lists["tools"] = [tool.json() for tool in request.tools]
        fields = self.body_fields(dialect, seed=request.seed, max_tokens=request.max_tokens)
        fields |= self._constraint_fields(request)
        if request.stops and "stop" not in dialect.refused:
            fields |= {**with_stops(self.extra_body, request.stops), **self.stop_fields}
        return request_body(fields, lists)

    def _constraint_fields(self, request: CompletionRequest) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if (constraint := request.constraint) is None:
            return fields
        if constraint.schema is not None:
            fields["response_format"] = json_format(constraint.schema)
        if constraint.tool is not None:
            if self.tools_in_prompt:
                raise CannotEnforceError("a tool cannot be forced while tools are written into the prompt")
            named = {"type": "function", "function": {"name": constraint.tool}}
            fields["tool_choice"] = named if constraint.tool else "required"
        return fields

    def _encode(self, sampled: SampledMessage, request: CompletionRequest) -> SampledTokens:
        prompt, is_whole = render_prompt(request, self.renderer), sampled.finish_reason != "length"
        return SampledTokens(
            prompt_ids=prompt.prompt_ids,
            extends_row=prompt.extends_row,
            fork=prompt.fork,
            token_ids=self.renderer.completion_ids(sampled.message, stopped=is_whole),
            logprobs=None,
        )


def _encode_message(message: Message, reasoning: str | None) -> bytes:
    if message.reasoning is None or reasoning == "reasoning_content":
        return message.json()
    fields = message.to_openai()
    thoughts = fields.pop("reasoning_content")
    return orjson.dumps(fields if reasoning is None else {**fields, reasoning: thoughts})
