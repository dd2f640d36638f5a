"""The policy behind any OpenAI-compatible server, exact where the server gives the tokens it sampled."""

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from environments.inference.chat_reply import ReplyError, SampledMessage, SampledTokens, read_reply
from environments.inference.dialect import Dialect, is_context_overflow
from environments.inference.http_client import NoAnswerError, StatusError
from environments.inference.model_server import ModelServer, may_pass
from environments.inference.request_body import json_list, request_body
from environments.inference.server_check import check
from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.rendering.long_text import rendered
from environments.trajectory import Completion
from tools.errors import ContextOverflow, PolicyError

_LOG = logging.getLogger(__name__)
_LONG_BYTES = 1_000_000
"""Of a reply, from which reading it takes some 10 ms."""


@dataclass(kw_only=True, eq=False)
class ChatPolicy:
    """Asks a model server for each assistant turn.

    A server that answers `return_token_ids` (vLLM, SGLang) gives exact completions. From any other, the token
    ids are made from the text, without logprobs, and the completion says so (`exact=False`).
    """

    server: ModelServer
    model: str
    renderer: ChatMLRenderer
    """Makes the token ids of a server that gives none."""
    temperature: float = 1.0
    top_p: float = 1.0
    _dialect: Dialect = field(init=False, repr=False, default_factory=Dialect)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample the next assistant message.

        Raises:
            ContextOverflow: the server says that the conversation does not fit its context.
            PolicyError: no answer after the server's tries, or one that cannot be used; it names the cause.
        """
        content = await self._ask(request)
        read = partial(read_reply, content, f"call_{request.seed}_{len(request.messages)}")
        try:
            sampled = read() if len(content) < _LONG_BYTES else await asyncio.to_thread(read)
        except ReplyError as error:
            raise PolicyError(f"{self.server.chat_url}: {error}") from error
        if sampled.tokens is not None:
            return _exact(sampled, sampled.tokens)
        return await rendered(
            partial(self._approximate, sampled, request),
            self.renderer,
            (*request.messages, sampled.message),
            max_tokens=request.max_row_tokens,
        )

    async def check(self) -> None:
        """Find out before a run whether the server can be used, without buying a completion.

        Raises:
            ConfigError: one line that says what to change.
        """
        await check(self.server, self.model)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.server.aclose()

    async def _ask(self, request: CompletionRequest) -> bytes:
        """The server's answer, asked in the most telling dialect that it takes."""
        dialect = self._dialect
        while True:
            try:
                content = await self.server.chat(self._body(request, dialect))
            except StatusError as error:
                dialect = self._after_refusal(error, dialect)
            except NoAnswerError as error:
                raise PolicyError(
                    f"{self.server.chat_url} gave no answer{self._tried(error)}: {error}"
                ) from error
            else:
                self._dialect = dialect
                return content

    def _after_refusal(self, error: StatusError, dialect: Dialect) -> Dialect:
        """The dialect to try after an error status; raises when there is none."""
        url = self.server.chat_url
        if is_context_overflow(error):
            raise ContextOverflow(f"{url} answered {error.status}: {error.reason}") from error
        simpler = dialect.without_refused(error)
        if simpler is None:
            raise PolicyError(f"{url} answered {error.status}{self._tried(error)}: {error.reason}") from error
        _LOG.warning("%s refuses a part of the request; asking without it: %s", url, error.reason)
        return simpler

    def _tried(self, error: StatusError | NoAnswerError) -> str:
        return f" (tried {self.server.tries} times)" if may_pass(error) else ""

    def _body(self, request: CompletionRequest, dialect: Dialect) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "n": 1,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        fields |= dialect.optional_fields(seed=request.seed, max_tokens=request.max_tokens)
        ready = {"messages": json_list(message.json() for message in request.messages)}
        if request.tools:
            ready["tools"] = json_list(tool.json() for tool in request.tools)
        return request_body(fields, ready)

    def _approximate(self, sampled: SampledMessage, request: CompletionRequest) -> Completion:
        """The completion of a reply without token ids: made from its text."""
        return Completion(
            message=sampled.message,
            finish_reason=sampled.finish_reason,
            prompt_ids=self.renderer.prompt_ids(request.messages, request.tools),
            token_ids=self.renderer.completion_ids(
                sampled.message, stopped=sampled.finish_reason != "length"
            ),
            logprobs=None,
            exact=False,
        )


def _exact(sampled: SampledMessage, tokens: SampledTokens) -> Completion:
    return Completion(
        message=sampled.message,
        finish_reason=sampled.finish_reason,
        prompt_ids=tokens.prompt_ids,
        token_ids=tokens.token_ids,
        logprobs=tokens.logprobs,
        exact=True,
    )
