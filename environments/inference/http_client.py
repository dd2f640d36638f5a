"""One HTTP request to a model server, and the two ways in which it fails."""

from collections.abc import Mapping
from typing import Any, cast
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson

from environments.inference.endpoint import Endpoint, shown_url
from environments.inference.http_body import ACCEPTED_ENCODINGS, BodyError, read_body
from environments.inference.server_text import one_line, start_of

_MAX_ANSWER_BYTES = 32 << 20
"""A million token ids with their logprobs fit."""
_MAX_ERROR_BYTES = 100_000
_DETAILS_CHARS = 10_000


class StatusError(Exception):
    """The server answered with an error status."""

    def __init__(
        self, status: int, reason: str, *, code: str | None, details: str, retry_after: str | None
    ) -> None:
        """Take the answer apart.

        Args:
            status: of HTTP.
            reason: what the server says is wrong, in a short line.
            code: the server's name for it.
            details: the whole answer, as far as one would search it for names.
            retry_after: the header.
        """
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.code = code
        self.details = details
        self.retry_after = retry_after


class NoAnswerError(Exception):
    """No whole answer came; the text is the cause."""


class HttpClient:
    """Connections to one server. Each call is exactly one request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._proxy = _proxy_for(endpoint.url)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> bytes:
        """The body of a page.

        Raises:
            StatusError: an error status, or another place to ask.
            NoAnswerError: no answer, or one that is too long or breaks off.
        """
        return await self._request("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The body of the answer to some JSON.

        Raises:
            StatusError: an error status, or another place to ask.
            NoAnswerError: no answer, or one that is too long or breaks off.
        """
        return await self._request("POST", path, orjson.dumps(body))

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        closing, self._session = self._session, None
        if closing is not None:
            await closing.close()

    async def _request(self, method: str, path: str, content: bytes | None) -> bytes:
        try:
            async with self._open().request(
                method,
                self._endpoint.at(path),
                data=None if content is None else aiohttp.BytesPayload(content),
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                failed = response.status >= 300
                body = await read_body(
                    response.content.iter_any(),
                    response.headers.get("Content-Encoding"),
                    max_bytes=_MAX_ERROR_BYTES if failed else _MAX_ANSWER_BYTES,
                    cut=failed,
                )
        except (aiohttp.ClientError, BodyError, OSError, TimeoutError, ValueError) as error:
            # Not as its cause: what a library says may quote the URL.
            text = self._endpoint.without_secrets(str(error) or type(error).__name__)
            raise NoAnswerError(one_line(text)) from None
        if failed:
            raise self._status_error(response, body)
        return body

    def _status_error(self, response: aiohttp.ClientResponse, body: bytes) -> StatusError:
        text = self._endpoint.without_secrets(body.decode("utf-8", "replace"))
        message, code = _problem(text)
        if response.status < 400:
            message = f"it leads to {shown_url(response.headers.get('Location', 'nowhere'))}; ask there"
        return StatusError(
            response.status,
            one_line(message) if message is not None else start_of(text.encode()),
            code=code,
            details=text[:_DETAILS_CHARS],
            retry_after=response.headers.get("Retry-After"),
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The caller bounds time and requests at once.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={
                    "Content-Type": "application/json",
                    "Accept-Encoding": ACCEPTED_ENCODINGS,
                    **self._endpoint.headers,
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session


def _problem(text: str) -> tuple[str | None, str | None]:
    """What an error answer says is wrong, and its name for it; OpenAI's shape, with `error` around or not."""
    try:
        answer: object = orjson.loads(text)
    except ValueError:
        return None, None
    if isinstance(answer, dict):
        fields = cast("dict[str, object]", answer)
        inner = fields.get("error", fields)
        if isinstance(inner, dict):
            message, code = (cast("dict[str, object]", inner).get(name) for name in ("message", "code"))
            return message if isinstance(message, str) else None, None if code is None else str(code)[:100]
    return None, None


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment's variables name for a URL."""
    scheme, _, rest = url.partition("://")
    proxies = getproxies()
    if proxy_bypass(rest.partition("/")[0]):
        return None
    return proxies.get(scheme) or proxies.get("all")
