"""One OpenAI-compatible server: so many requests at once, a bounded number of tries, waits between them."""

import asyncio
import math
import random
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from environments.inference.endpoint import endpoint
from environments.inference.http_client import HttpClient, NoAnswerError, StatusError

CHECK_TIMEOUT_S = 15.0
_JITTER = random.Random()
"""Its own generator: waiting never disturbs a seed that someone gave to `random`."""


@dataclass(kw_only=True, eq=False)
class ModelServer:
    """Sends requests to one server."""

    base_url: str
    """Up to and with `/v1`; once this is made, without what may let somebody in, so that it can be shown."""
    api_key: str = field(repr=False)
    request_timeout_s: float = 120.0
    """Wall clock of one request; also the longest wait that a server's `Retry-After` may ask for."""
    tries: int = 4
    """Requests for one call before it is lost."""
    max_concurrency: int = 64
    """Requests in flight at once."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    _client: HttpClient = field(init=False, repr=False)
    _slots: asyncio.Semaphore = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = endpoint(
            self.base_url, name="base_url", example="http://localhost:8000/v1", api_key=self.api_key or "none"
        )
        self.base_url = where.url
        self._client = HttpClient(where)
        self._slots = asyncio.Semaphore(self.max_concurrency)

    @property
    def chat_url(self) -> str:
        """Where chat completions are."""
        return f"{self.base_url}/chat/completions"

    async def chat(self, body: Mapping[str, Any]) -> bytes:
        """The server's reply to a chat request, after as many tries as it takes and may take.

        Raises:
            StatusError: an error status, the last one.
            NoAnswerError: no answer.
        """
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.tries),
            wait=self._wait_s,
            retry=retry_if_exception(may_pass),
            reraise=True,
        )
        return await retrying(self._try_chat, body)

    async def ask_once(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The answer to one request outside a run, a POST when it has a body.

        Raises:
            StatusError: an error status.
            NoAnswerError: no answer.
        """
        request = self._client.get(path) if body is None else self._client.post(path, body)
        return await _within(min(self.request_timeout_s, CHECK_TIMEOUT_S), request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _try_chat(self, body: Mapping[str, Any]) -> bytes:
        """Exactly one HTTP request."""
        async with self._slots:
            return await _within(self.request_timeout_s, self._client.post("/chat/completions", body))

    def _wait_s(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        seconds = _retry_after_s(error.retry_after) if isinstance(error, StatusError) else None
        if seconds is not None:
            return min(seconds, self.request_timeout_s)
        longest = min(self.longest_wait_s, self.first_wait_s * 2 ** (state.attempt_number - 1))
        return _JITTER.uniform(longest / 2, longest)


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, StatusError):
        return error.status in (408, 429) or error.status >= 500
    return isinstance(error, NoAnswerError)


async def _within(timeout_s: float, request: Awaitable[bytes]) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await request
    except TimeoutError as error:
        raise NoAnswerError("timed out") from error


def _retry_after_s(header: str | None) -> float | None:
    """The seconds that the server asked to wait."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # no date either, or one without a time zone
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
