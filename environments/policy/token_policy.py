"""The policy that sends and receives token ids: a row continues from the sampled ids, bit for bit."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import orjson

from environments.policy.base import NO_SCORES, CannotEnforceError, CompletionRequest
from environments.policy.inference.chat_reply import ReplyError
from environments.policy.inference.dialect import is_context_overflow, sampling_of, shaping_fields, with_stops
from environments.policy.inference.http_client import NoAnswerError, StatusError
from environments.policy.inference.model_server import is_transient
from environments.policy.inference.server_kind import ServedModel
from environments.policy.inference.token_wires import TokenReply, TokenRequest, TokenWire
from environments.policy.rendering.chatml import (
    CannotExtendError,
    Renderer,
    first_stop,
    run_parsing,
    run_rendering,
)
from environments.policy.row_prompt import (
    Prompt,
    ToolUse,
    count_tokens,
    extend_row,
    name_calls,
    new_messages,
    with_token_limit,
)
from environments.trajectory import Completion, TextScore
from tools.errors import ConfigError, ContextOverflow, PolicyError, ServerAway

_FORCED = 10_000
"""A logit bias above which no other token is sampled."""
_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class TokenPolicy(ServedModel):
    """Samples from a model server by token ids and parses the message from the sampled ids.

    With an open row, only new messages are rendered. It keeps no state between calls.
    """

    renderer: Renderer
    wire: TokenWire
    context_tokens: int | None = None
    logprobs_mode: str | None = None
    _warned: bool = field(default=False, init=False, repr=False)
    _tool_use: ToolUse = field(init=False, repr=False)

    def __post_init__(self) -> None:
        advice = f"name its chat format with --openai.family, which is {self.renderer.name} now"
        self._tool_use = ToolUse(self._url, advice=advice)

    @property
    def vocabulary_size(self) -> int:
        return self.renderer.vocabulary_size

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        more = self.extra_body.get("stop_token_ids") or ()
        return tuple(dict.fromkeys((*self.renderer.stop_ids, *more)))

    @cached_property
    def sampling(self) -> Mapping[str, Any]:
        asked = sampling_of(self.temperature, self.top_p, self.extra_body)
        return {name: value for name, value in asked.items() if name != "stop_token_ids"}

    async def complete(self, request: CompletionRequest) -> Completion:
        prompt = await self._prompt(request)
        tokens = count_tokens(prompt, request)
        fitted = with_token_limit(request, prompt_tokens=tokens, context_tokens=self.context_tokens)
        row_json = [request.row.json()] if request.row is not None and prompt.extends_row else []
        new = orjson.dumps(prompt.prompt_ids)[1:-1]
        pieces = [*row_json, *([b","] if row_json and new else []), new]
        asked = TokenRequest(
            model=self.model,
            prompt_json=tuple(pieces),
            prompt_tokens=tokens,
            max_tokens=fitted.max_tokens,
            seed=request.seed,
            stop_ids=self.stop_ids,
            sampling={**with_stops(self.sampling, request.stops), **self._constraint_fields(request)},
            more=self._more,
        )
        reply = await self._ask(asked)
        message = await run_parsing(
            partial(self.renderer.parse, reply.token_ids, request.tools), tokens=len(reply.token_ids)
        )
        if self._tool_use.note(request, message):
            self._tool_use.warn(request)
        message = name_calls(message, request, is_cut=reply.finish_reason == "length")
        called = reply.finish_reason == "stop" and message.tool_calls
        mode = {} if self.logprobs_mode is None else {"logprobs_mode": self.logprobs_mode}
        return Completion(
            message=message,
            finish_reason="tool_calls" if called else str(reply.finish_reason),
            prompt_ids=prompt.prompt_ids,
            extends_row=prompt.extends_row,
            fork=prompt.fork,
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            exact=True,
            weight_version=reply.weight_version,
            weight_spans=reply.weight_spans,
            sampling={**asked.sampling, **mode},
        )

    async def score(self, request: CompletionRequest, text: str) -> TextScore:
        if self.wire.scoring is None:
            raise ConfigError(f"{self._url} {NO_SCORES}")
        prompt_ids = (await self._prompt(request)).prompt_ids
        ids = self.renderer.text_ids(text)
        tokens = len(prompt_ids) + len(ids)
        with_token_limit(request, prompt_tokens=tokens, context_tokens=self.context_tokens)
        asked = TokenRequest(
            model=self.model,
            prompt_json=(orjson.dumps([*prompt_ids, *ids])[1:-1],),
            prompt_tokens=tokens,
            max_tokens=1,
            seed=request.seed,
            stop_ids=(),
            more=self._more,
            scored_ids=ids,
        )
        reply = await self._ask(self.wire.scoring(asked))
        return TextScore(logprobs=reply.scored, weight_version=reply.weight_version)

    @property
    def _more(self) -> Mapping[str, Any]:
        shaping = shaping_fields(self.extra_body)
        return {name: value for name, value in self.extra_body.items() if name not in shaping}

    def _constraint_fields(self, request: CompletionRequest) -> Mapping[str, Any]:
        if (constraint := request.constraint) is None:
            return {}
        if constraint.schema is None or request.tools:
            raise CannotEnforceError(
                f"{' and '.join(constraint.fields)} beside tools can be enforced by messages alone "
                f"(--openai.server_type chat)"
            )
        return self.wire.constrain(constraint.schema)

    async def check_stop_ids(self) -> None:
        """Force each stop id once, where a server ends turns at its model's end tokens alone.

        Raises:
            ConfigError: if a stop id does not end a turn.
        """
        for stop_id in () if self.wire.has_stop_ids else self.stop_ids:
            asked = TokenRequest(
                model=self.model,
                prompt_json=(b"%d" % stop_id,),
                prompt_tokens=1,
                max_tokens=1,
                seed=0,
                stop_ids=(),
                sampling={"logit_bias": [[stop_id, _FORCED]]},
            )
            try:
                reply = await self._ask(asked)
            except PolicyError as error:
                is_away = error.__cause__ is not None and is_transient(error.__cause__)
                raise (ServerAway if is_away else ConfigError)(
                    f"whether the id {stop_id} ends a turn could not be tried: {error}"
                ) from error
            if reply.finish_reason != "stop":
                raise ConfigError(
                    f"{self._url}: the id {stop_id}, of the chat format {self.renderer.name} or of "
                    f"--openai.extra_body.stop_token_ids, is no end token of the model, and only these end a "
                    f"turn; name another --openai.family, or ask by messages with --openai.server_type chat"
                )

    async def prompt_tokens(self, request: CompletionRequest) -> int:
        return count_tokens(await self._prompt(request), request)

    @property
    def _url(self) -> str:
        base = self.server.base_url
        return f"{base.removesuffix('/v1') if self.wire.at_root else base}{self.wire.path}"

    async def _prompt(self, request: CompletionRequest) -> Prompt:
        limits = [each for each in (self.context_tokens, request.max_row_tokens) if each is not None]
        render = partial(run_rendering, renderer=self.renderer, max_tokens=min(limits, default=None))
        fork = None
        if (row := request.row) is not None and row.token_ids:
            going_on = partial(extend_row, request, row, self.renderer)
            sampled = row.size - row.sampled_start
            try:
                new_ids = await render(going_on, messages=new_messages(request), sampled=sampled)
            except CannotExtendError as error:
                fork = f"renderer: {error}"
            else:
                return Prompt(prompt_ids=new_ids, extends_row=True)
        whole = partial(self.renderer.prompt_ids, request.messages, request.tools)
        return Prompt(prompt_ids=await render(whole, messages=request.messages), fork=fork)

    async def _ask(self, asked: TokenRequest) -> TokenReply:
        async def read(content: bytes) -> TokenReply:
            to_read = len(content) - sum(map(len, asked.prompt_json))
            return await run_parsing(partial(self.wire.read, content, asked), tokens=to_read // 16)

        try:
            reply = await self.server.ask(
                self.wire.path, self.wire.body(asked), read, at_root=self.wire.at_root
            )
            return reply if asked.scored_ids else self._cut_at_stop(reply, asked)
        except (StatusError, NoAnswerError) as error:
            problem = f"{self._url} {self.describe_failure(error)}"
            if isinstance(error, StatusError) and is_context_overflow(error):
                raise ContextOverflow(problem) from error
            if isinstance(error, StatusError) and (
                error.status in (404, 405) or "scale-out" in error.reason.lower()
            ):
                problem = f"{problem}; {self.wire.absent}"
            raise PolicyError(problem) from error
        except ReplyError as error:
            raise PolicyError(f"{self._url}: {error}") from error

    def _cut_at_stop(self, reply: TokenReply, asked: TokenRequest) -> TokenReply:
        """Return the reply cut after the first stop id, with its finish reason.

        The ids up to there have the model's distribution, whatever follows.
        """
        largest = max(reply.token_ids)
        if largest >= self.vocabulary_size:
            raise ReplyError(f"the model sampled the id {largest}; the tokenizer has {self.vocabulary_size}")
        stop = first_stop(reply.token_ids, asked.stop_ids)
        if stop is not None:
            if stop + 1 < len(reply.token_ids) and not self._warned:
                self._warned = True
                _LOG.warning("%s samples on after a stop token; what follows it is cut off", self._url)
            ids, logprobs = reply.token_ids[: stop + 1], reply.logprobs[: stop + 1]
            return replace(reply, token_ids=ids, logprobs=logprobs, finish_reason="stop")
        # A server may cut a turn before our limit, at its own window.
        if reply.finish_reason == "length" or (
            reply.finish_reason is None and len(reply.token_ids) == asked.max_tokens
        ):
            return replace(reply, finish_reason="length")
        last = reply.token_ids[-1]
        given: list[Any] = [asked.sampling.get("stop"), asked.sampling.get("stop_regex")]
        lists: list[list[Any]] = [each if isinstance(each, list) else [each] for each in given if each]
        texts = [text for each in lists for text in each]
        # Any other name in a reply is the server's word for a stop token.
        if reply.finish_reason == "stop" and reply.stopped_by in (last, *texts):
            return reply
        raise ReplyError(
            f"the turn ended with the id {last}, and its ids have none of {sorted(asked.stop_ids)}, which "
            f"end a turn: the server drops the stop token, or the model stops at another one; name that with "
            f"--openai.extra_body.stop_token_ids"
        )
