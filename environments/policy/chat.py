"""The policy behind any OpenAI-compatible server: one request per try, a bounded number of tries."""

import asyncio
import logging
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from pydantic import ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
)

from environments.policy.base import CompletionRequest
from environments.policy.chat_reply import completion_of
from environments.policy.openai_wire import ChatReply, ModelList, first_problem
from environments.policy.renderer import Renderer
from environments.trajectory import Completion
from tools.errors import ConfigError, ContextOverflow, PolicyError

_LOG = logging.getLogger(__name__)
_CHECK_TIMEOUT_S = 15.0
_JITTER = random.Random()
"""Its own generator: waiting never disturbs a seed that someone gave to `random`."""


@dataclass(kw_only=True, eq=False)
class ChatPolicy:
    """Asks a model server for each assistant turn.

    A server that answers `return_token_ids` (vLLM, SGLang) gives exact completions. From any other, the token
    ids are made from the text, without logprobs, and the completion says so (`exact=False`).
    """

    base_url: str
    """Up to and with `/v1`."""
    model: str
    api_key: str
    renderer: Renderer
    """Makes the token ids of a server that gives none."""
    temperature: float = 1.0
    top_p: float = 1.0
    request_timeout_s: float = 120.0
    """Wall clock of one request; also the longest wait that a server's `Retry-After` may ask for."""
    tries: int = 4
    """Requests for one model call before it is lost."""
    max_concurrency: int = 64
    """Requests in flight at once."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    _client: AsyncOpenAI = field(init=False, repr=False)
    _slots: asyncio.Semaphore = field(init=False, repr=False)
    _dialect: "_Dialect" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not re.match(r"https?://[^/]", self.base_url):
            raise ConfigError(
                f"base_url {self.base_url!r} is no URL; give one such as http://localhost:8000/v1"
            )
        self.base_url = self.base_url.rstrip("/")
        self._client = AsyncOpenAI(
            base_url=self.base_url, api_key=self.api_key or "none", max_retries=0, timeout=None
        )
        self._slots = asyncio.Semaphore(self.max_concurrency)
        self._dialect = _Dialect()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample the next assistant message.

        Raises:
            ContextOverflow: the server says that the conversation does not fit its context.
            PolicyError: no answer after `tries` requests, or one that cannot be used; it names the cause.
        """
        content = await self._ask(request)
        try:
            reply = ChatReply.model_validate_json(content)
        except ValidationError as error:
            raise PolicyError(
                f"{self._url} gave no chat completion ({first_problem(error)}): {_start(content)}"
            ) from error
        try:
            return completion_of(reply, request, self.renderer)
        except ValueError as error:
            raise PolicyError(f"{self._url}: {error}") from error

    async def check(self) -> None:
        """Find out before a run whether the server can be used, without buying a completion.

        Asks `GET /models`. A server without that path is accepted, its model unverified, when it understands
        an empty `POST /chat/completions` well enough to refuse it.

        Raises:
            ConfigError: one line that says what to change.
        """
        try:
            async with asyncio.timeout(min(self.request_timeout_s, _CHECK_TIMEOUT_S)):
                content = await self._client.get("/models", cast_to=bytes)
        except APIStatusError as error:
            if error.status_code != 404:
                raise self._refused(error) from error
            await self._check_without_models()
            return
        except (APIConnectionError, TimeoutError) as error:
            raise ConfigError(f"no model server answers at {self.base_url}: {_cause(error)}") from error
        try:
            models = [entry.id for entry in ModelList.model_validate_json(content).data]
        except ValidationError as error:
            said = _start(content)
            raise ConfigError(
                f"{self.base_url} does not speak the OpenAI API{self._hint()}; its /models is {said}"
            ) from error
        if models and not any(name == self.model or name.endswith(f"/{self.model}") for name in models):
            raise ConfigError(f"{self.base_url} has no model {self.model!r}; it has {_listed(models)}")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    @property
    def _url(self) -> str:
        return f"{self.base_url}/chat/completions"

    async def _ask(self, request: CompletionRequest) -> bytes:
        """The server's answer, asked in the most telling dialect that it takes."""
        dialect = self._dialect
        while True:
            try:
                content = await self._send(self._body(request, dialect))
            except APIStatusError as error:
                dialect = self._after_refusal(error, dialect)
            except (APIConnectionError, TimeoutError) as error:
                raise PolicyError(
                    f"{self._url} gave no answer (tried {self.tries} times): {_cause(error)}"
                ) from error
            else:
                self._dialect = dialect
                return content

    def _after_refusal(self, error: APIStatusError, dialect: "_Dialect") -> "_Dialect":
        """The dialect to try after an error status; raises when there is none."""
        status, said = error.status_code, _said(error)
        if status in (400, 413, 422) and _CONTEXT.search(f"{said} {error.code}"):
            raise ContextOverflow(f"{self._url} answered {status}: {said}") from error
        simpler = _simpler(dialect, _details(error)) if status in (400, 422) else None
        if simpler is None:
            tried = f" (tried {self.tries} times)" if _may_pass(error) else ""
            raise PolicyError(f"{self._url} answered {status}{tried}: {said}") from error
        _LOG.warning("%s refuses a part of the request; asking without it: %s", self._url, said)
        return simpler

    async def _send(self, body: Mapping[str, Any]) -> bytes:
        def wait(state: RetryCallState) -> float:
            asked = _retry_after_s(state.outcome.exception() if state.outcome else None)
            if asked is not None:
                return min(asked, self.request_timeout_s)
            longest = min(self.longest_wait_s, self.first_wait_s * 2 ** (state.attempt_number - 1))
            return _JITTER.uniform(longest / 2, longest)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.tries), wait=wait, retry=retry_if_exception(_may_pass), reraise=True
        )
        return await retrying(self._post, body)

    async def _post(self, body: Mapping[str, Any]) -> bytes:
        """Exactly one HTTP request."""
        async with self._slots, asyncio.timeout(self.request_timeout_s):
            return await self._client.post("/chat/completions", cast_to=bytes, body=body)

    def _body(self, request: CompletionRequest, dialect: "_Dialect") -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [message.to_openai() for message in request.messages],
            "n": 1,
            "temperature": self.temperature,
            "top_p": self.top_p,
            dialect.max_tokens: request.max_tokens,
        }
        if request.tools:
            body["tools"] = [tool.to_openai() for tool in request.tools]
        if dialect.seed:
            body["seed"] = request.seed
        if dialect.capture:
            # With `top_logprobs` unset, vLLM gives no logprobs at all.
            body |= {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
        return body

    async def _check_without_models(self) -> None:
        try:
            async with asyncio.timeout(min(self.request_timeout_s, _CHECK_TIMEOUT_S)):
                await self._client.post("/chat/completions", cast_to=bytes, body={})
        except APIStatusError as error:
            if error.status_code in (404, 405):
                raise ConfigError(
                    f"{self.base_url} has neither /models nor /chat/completions{self._hint()}"
                ) from error
            if error.status_code not in (400, 422):
                raise self._refused(error) from error
        except (APIConnectionError, TimeoutError) as error:
            raise ConfigError(f"no model server answers at {self.base_url}: {_cause(error)}") from error

    def _refused(self, error: APIStatusError) -> ConfigError:
        if error.status_code in (401, 403):
            return ConfigError(f"{self.base_url} refuses the API key ({error.status_code}): {_said(error)}")
        return ConfigError(f"{self.base_url} answered {error.status_code}: {_said(error)}")

    def _hint(self) -> str:
        return "" if self.base_url.endswith("/v1") else f" (did you mean {self.base_url}/v1?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """Which optional fields a server takes."""

    capture: bool = True
    """Token ids and logprobs."""
    seed: bool = True
    max_tokens: str = "max_tokens"


_CONTEXT = re.compile(
    r"context[ _](length|size|window)|maximum model length|max_model_len|prompt is too long"
    r"|max_new_tokens\W+must be <=",
    re.IGNORECASE,
)
"""How OpenAI, vLLM, SGLang, llama.cpp and TGI say that the prompt does not fit."""


def _simpler(dialect: _Dialect, said: str) -> _Dialect | None:
    """The dialect without what the server's refusal names, or `None` when it names nothing optional."""
    if dialect.max_tokens == "max_tokens" and "max_completion_tokens" in said:
        return replace(dialect, max_tokens="max_completion_tokens")
    if dialect.capture and re.search("return_token_ids|logprobs", said):
        return replace(dialect, capture=False)
    if dialect.seed and re.search(r"\bseed\b", said):
        return replace(dialect, seed=False)
    return None


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, APIStatusError):
        return error.status_code in (408, 429) or error.status_code >= 500
    return isinstance(error, APIConnectionError | TimeoutError)


def _retry_after_s(error: BaseException | None) -> float | None:
    """The seconds that the server asked to wait."""
    asked = error.response.headers.get("retry-after") if isinstance(error, APIStatusError) else None
    if asked is None:
        return None
    try:
        seconds = float(asked)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # no date either, or one without a time zone
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _said(error: APIStatusError) -> str:
    """What the server's error says, in one short line."""
    body: object = error.body
    said = cast("dict[str, object]", body).get("message") if isinstance(body, dict) else None
    return _one_line(said) if isinstance(said, str) else _start(error.response.content)


def _details(error: APIStatusError) -> str:
    """All that the server's error says, for looking up field names in it."""
    return error.response.text[:10_000]


def _cause(error: BaseException) -> str:
    """Why no answer came; the openai client only says "Connection error." and hides the rest as the cause."""
    if isinstance(error, TimeoutError):
        return "timed out"
    return _one_line(str(error.__cause__ or error) or type(error.__cause__ or error).__name__)


def _start(content: bytes) -> str:
    return _one_line(content.decode("utf-8", "replace")) or "(empty)"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]}…"


def _listed(models: list[str]) -> str:
    more = f" and {len(models) - 10} more" if len(models) > 10 else ""
    return ", ".join(sorted(models)[:10]) + more
