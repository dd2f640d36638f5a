"""Chat requests to a server that is examined: whatever it answers is a value, never an exception."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from environments.inference.chat_reply import SampledMessage, read_reply
from environments.inference.dialect import CAPTURE, Dialect, RefusedSettingError, is_context_overflow
from environments.inference.http_client import NoAnswerError, StatusError
from environments.inference.model_server import ModelServer
from environments.inference.reply_tokens import TOO_DEEP, ReplyError, SampledTokens
from environments.inference.request_body import request_body
from environments.trajectory import Message
from tools.calls import ToolSpec

NEUTRAL: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of one request."""

    sampled: SampledMessage | None = None
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problem: str = ""
    """Why nothing was sampled, in a line."""
    too_long: bool = False
    """Whether the server says that the prompt does not fit."""

    @property
    def message(self) -> Message | None:
        """What was sampled."""
        return None if self.sampled is None else self.sampled.message

    @property
    def tokens(self) -> SampledTokens | None:
        """The ids, where the server gave them."""
        return None if self.sampled is None else self.sampled.tokens


@dataclass(kw_only=True, eq=False)
class ChatRequests:
    """Asks one server, and keeps what its refusals say that it does not take."""

    server: ModelServer
    model: str
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dialect: Dialect = field(default_factory=Dialect)
    token_problem: str = ""
    """Why the ids or logprobs of a reply cannot be used."""
    gives_ids: bool = False

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        seed: int = 0,
        max_tokens: int = 1024,
        fields: Mapping[str, Any] | None = None,
    ) -> Asked:
        """One completion, with `fields` beside those of the settings.

        Sampling settings among `fields` are told apart: a server may refuse them.
        """
        more = dict(fields or {})
        sampling = {name: more.pop(name, neutral) for name, neutral in NEUTRAL.items()}
        while True:
            asked = self.dialect.fields(sampling, seed=seed, max_tokens=max_tokens)
            body = self._body({**asked, **self.extra_body, **more}, messages, tools)
            try:
                content = await self.server.chat(body)
            except NoAnswerError as error:
                return Asked(problem=f"no answer: {error}")
            except StatusError as error:
                refusal = self._refused(error, sampling)
                if refusal is not None:
                    return refusal
                continue
            try:
                sampled = read_reply(content, f"{seed}_{len(messages)}", max_tokens=max_tokens)
            except (ReplyError, RecursionError) as error:
                said = TOO_DEEP if isinstance(error, RecursionError) else str(error)
                if not self.dialect.captures:
                    return Asked(problem=said)
                # Perhaps only its tokens cannot be used: without them it may say more.
                self.token_problem = said
                self.dialect = replace(self.dialect, refused=self.dialect.refused | CAPTURE)
                continue
            self._learn(sampled)
            return Asked(sampled=sampled, usage=_usage(content))

    def _refused(self, error: StatusError, sampling: Mapping[str, Any]) -> Asked | None:
        """What a refusal comes to; `None`: the request can be made without what it names."""
        said = f"{error.status}: {error.reason}"
        if is_context_overflow(error):
            return Asked(problem=said, too_long=True)
        try:
            simpler = self.dialect.without_refused(error, sampling, gives_ids=self.gives_ids)
        except RefusedSettingError as refusal:
            return Asked(problem=str(refusal))
        if simpler is None:
            return Asked(problem=said)
        if not simpler.captures and self.dialect.captures:
            self.token_problem = f"{', '.join(sorted(simpler.refused & CAPTURE))} refused ({error.status})"
        self.dialect = simpler
        return None

    def _learn(self, sampled: SampledMessage) -> None:
        self.gives_ids = self.gives_ids or sampled.tokens is not None
        if sampled.reasoning_field is not None:
            self.dialect = replace(self.dialect, reasoning=sampled.reasoning_field)

    def _body(
        self, fields: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> bytes:
        ready = {"messages": [self._written(message) for message in messages]}
        if tools:
            ready["tools"] = [tool.json() for tool in tools]
        return request_body({"model": self.model, **fields}, ready)

    def _written(self, message: Message) -> bytes:
        """A message as JSON, its reasoning in the field that the server knows."""
        fields = message.to_openai()
        thoughts = fields.pop("reasoning_content", None)
        if thoughts is not None and self.dialect.reasoning_field is not None:
            fields[self.dialect.reasoning_field] = thoughts
        return orjson.dumps(fields)


def _usage(content: bytes) -> Mapping[str, Any]:
    """The tokens that the server counted; empty where it does not say, or answers as a stream."""
    try:
        usage: object = orjson.loads(content).get("usage")
    except (ValueError, AttributeError):
        return {}
    return cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
