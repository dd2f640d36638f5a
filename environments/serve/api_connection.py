"""The one connection to the trajectory API: bounded answers, and no word about why we are let in."""

from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp

from environments.inference.endpoint import endpoint
from environments.inference.http_body import ACCEPTED_ENCODINGS, BodyError, read_body
from environments.inference.server_text import one_line, reason_of_loss
from tools.errors import ConfigError

MAX_ANSWER_BYTES = 1 << 20
_SHOWN_BYTES = 4_000


class ApiUnavailableError(Exception):
    """No answer of the API itself, or a 5xx: the same request may succeed later."""

    def __init__(self, text: str, *, not_taken: bool = False, retry_after_s: float = 0.0) -> None:
        """Say what came instead of an answer.

        Args:
            text: for people.
            not_taken: what was sent has not arrived, for certain.
            retry_after_s: the wait that was asked for.
        """
        super().__init__(text)
        self.not_taken = not_taken
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """What came, of whoever."""

    status: int
    body: bytes
    """Of an error only the beginning."""
    shown: str
    """The beginning, for people."""
    problem: str | None
    """Why the body cannot be read."""
    retry_after_s: float


class ApiConnection:
    """Requests over one connection. `count` grows whenever a new one was needed, as after a restart."""

    def __init__(self, url: str) -> None:
        """Prepare a connection.

        Raises:
            ConfigError: the URL is none.
        """
        self._endpoint = endpoint(url, name="rollout_server_url", example="http://localhost:8000")
        self.url = self._endpoint.url
        """As it can be shown."""
        self.count = 0
        self._may_open = True
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float, may_open: bool = True
    ) -> RawAnswer:
        """The answer to one request.

        Args:
            method: GET or POST.
            path: of the API.
            body: JSON, gzipped where no new connection may be opened.
            timeout_s: wall clock.
            may_open: whether a new connection will do.

        Raises:
            ApiUnavailableError: none came.
        """
        self._may_open = may_open
        try:
            async with self._open().request(
                method,
                self._endpoint.at(path),
                data=None if body is None else aiohttp.BytesPayload(body),
                headers={} if may_open else {"Content-Encoding": "gzip"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                content, problem = await _content(response)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise ConfigError(f"{self.url!r} is no URL; give one such as http://localhost:8000") from None
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            # Not as its cause: what a library says may quote the URL.
            text = self._endpoint.without_secrets(reason_of_loss(error))
            raise ApiUnavailableError(f"{self.url} does not answer: {one_line(text)}") from None
        start = content[:_SHOWN_BYTES].decode("utf-8", "replace")
        return RawAnswer(
            status=response.status,
            body=content,
            shown=one_line(self._endpoint.without_secrets(start)),
            problem=problem,
            retry_after_s=_seconds(response.headers.get("Retry-After", "")),
        )

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_start.append(self._before_connecting)
            trace.on_connection_create_end.append(self._after_connecting)
            # One connection: a state that was read and the post after it reach the same process.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=300),
                headers={
                    "Content-Type": "application/json",
                    "Accept-Encoding": ACCEPTED_ENCODINGS,
                    **self._endpoint.headers,
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[trace],
            )
        return self._session

    async def _before_connecting(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        # The API may be another than the one that was looked at, and without a trainer a post blocks it.
        if not self._may_open:
            raise ApiUnavailableError(f"{self.url} closed the connection before a post", not_taken=True)

    async def _after_connecting(self, _: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        self.count += 1


async def _content(response: aiohttp.ClientResponse) -> tuple[bytes, str | None]:
    """The body, or why it cannot be read."""
    try:
        content = await read_body(
            response.content.iter_any(),
            response.headers.get("Content-Encoding"),
            max_bytes=MAX_ANSWER_BYTES,
            cut=response.status != 200,
        )
    except BodyError as error:
        return b"", str(error)
    return content, None


def _seconds(header: str) -> float:
    """The whole seconds of a `Retry-After`; a date is none."""
    return float(header) if header.isascii() and header.isdigit() and len(header) < 10 else 0.0
