"""An OpenAI-compatible server with limited concurrency, retries and backoff."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from environments.policy.inference.http_client import (
    HttpClient,
    NoAnswerError,
    Pace,
    StatusError,
    endpoint,
    tls_context,
)
from tools.time_profile import measure

T = TypeVar("T")
CHECK_TIMEOUT_S = 15.0
_PER_ITERATION = 16
"""Per event loop iteration; the work between a reply and the next request takes about 1 ms."""
_LONGEST_RETRY_AFTER_S = 60.0
_PASSING = frozenset({408, 409, 425, 429})
_LOG = logging.getLogger(__name__)
_JITTER = random.Random()
"""Separate, so that retries do not disturb a user's seed."""


@dataclass(kw_only=True, eq=False)
class ModelServer:
    base_url: str
    """Ends with `/v1`; credentials are removed on creation."""
    api_key: str = field(repr=False)
    request_timeout_s: float = 120.0
    tries: int = 4
    max_concurrency: int = 64
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    proxy: str | None = field(default=None, repr=False)
    """A URL; None or `none` connects directly, whatever the process environment says."""
    key_name: str = ""
    """The environment variable that the key was read from."""
    _new_client: Callable[[], HttpClient] = field(init=False, repr=False)
    _client: HttpClient = field(init=False, repr=False)
    _lanes: "_Lanes | None" = field(init=False, repr=False, default=None)
    _said_to_wait: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        where = endpoint(
            self.base_url, name="base_url", example="http://localhost:8000/v1", api_key=self.api_key or "none"
        )
        self.base_url = where.url
        has_proxy = self.proxy not in (None, "", "none")
        example = "http://proxy:3128, or `none`"
        through = endpoint(str(self.proxy), name="the proxy", example=example) if has_proxy else None
        encrypted = any(each.url.startswith("https:") for each in (where, through) if each is not None)
        tls = tls_context() if encrypted else None
        self._new_client = partial(HttpClient, where, proxy=through, tls=tls)
        self._client = self._new_client()

    @property
    def key_hint(self) -> str:
        if self.key_name:
            return f"the key is that of {self.key_name}"
        hint = "set api_key_env, the environment variable that has the key"
        return f"{'no key was sent' if self.api_key in ('', 'none') else 'the key is api_key'}; {hint}"

    @property
    def chat_url(self) -> str:
        return f"{self.base_url}/chat/completions"

    async def chat(self, body: bytes, read: Callable[[bytes], Awaitable[T]]) -> T:
        return await self.ask("/chat/completions", body, read)

    async def ask(
        self, path: str, body: bytes | None, read: Callable[[bytes], Awaitable[T]], *, at_root: bool = False
    ) -> T:
        """Send a request with retries and return `read(reply)`.

        `read` raises NoAnswerError for an incomplete reply, which is retried.

        Raises:
            StatusError: if the last try got an error reply.
            NoAnswerError: if the last try got no reply.
        """
        lanes = self._lanes
        if lanes is None or lanes.loop is not asyncio.get_running_loop():
            lanes = self._lanes = _Lanes(self.max_concurrency)
        timeout_s = min(self.request_timeout_s, CHECK_TIMEOUT_S) if body is None else self.request_timeout_s
        for tried in range(1, self.tries + 1):
            try:
                async with lanes.slot():
                    reply = await _limit_time(timeout_s, self._client.request(path, body, at_root=at_root))
                await lanes.replies.step()
                return await read(reply)
            except (StatusError, NoAnswerError) as error:
                if tried == self.tries or not is_transient(error):
                    raise
                wait_s = self._wait_s(error, tried)
            with measure("waiting between tries"):
                await asyncio.sleep(wait_s)
        raise AssertionError("a server is asked at least once")

    async def ask_once(self, path: str, body: bytes | None = None) -> bytes:
        # On a separate connection, since servers may close one after an error.
        client = self._new_client()
        try:
            timeout_s = min(self.request_timeout_s, CHECK_TIMEOUT_S)
            return await _limit_time(timeout_s, client.request(path, body))
        finally:
            await client.close()

    async def aclose(self) -> None:
        await self._client.close()

    def wait_for(self, asked_s: float) -> float:
        return min(asked_s, _LONGEST_RETRY_AFTER_S, self.request_timeout_s)

    def _wait_s(self, error: StatusError | NoAnswerError, tried: int) -> float:
        if isinstance(error, StatusError) and error.retry_after_s is not None:
            seconds = self.wait_for(error.retry_after_s)
            if seconds < error.retry_after_s and not self._said_to_wait:
                self._said_to_wait = True
                what = f"{error.status}, asks to wait {error.retry_after_s:g} s"
                _LOG.warning("%s answered %s: asked again after %g s", self.base_url, what, seconds)
            return seconds
        longest = min(self.longest_wait_s, self.first_wait_s * 2 ** (tried - 1))
        return _JITTER.uniform(longest / 2, longest)


class _Lanes:
    def __init__(self, slots: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(slots)
        self._requests, self.replies = Pace(_PER_ITERATION), Pace(_PER_ITERATION)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        with measure("waiting for a connection"):
            await self._slots.acquire()
        try:
            await self._requests.step()
            yield
        finally:
            self._slots.release()


def is_transient(error: BaseException) -> bool:
    if isinstance(error, StatusError):
        return error.status in _PASSING or 500 <= error.status < 600
    return isinstance(error, NoAnswerError) and error.may_pass


async def _limit_time(timeout_s: float, request: Awaitable[bytes]) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await request
    except TimeoutError as error:
        raise NoAnswerError(f"timed out after {timeout_s:g} s") from error
