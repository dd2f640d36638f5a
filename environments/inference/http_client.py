"""One HTTP request to a model server, and the two ways in which it fails."""

import asyncio
import ssl

import aiohttp

from environments.inference.endpoint import Endpoint, shown_url
from environments.inference.error_answers import Problem, problem_in_success, problem_of
from environments.inference.http_body import ACCEPTED_ENCODINGS, BodyError, BrokenOffError, read_body
from environments.inference.json_bombs import bomb_in
from environments.inference.kept_connections import KeptConnections
from environments.inference.server_text import one_line, reason_of_loss, start_of

_MAX_ANSWER_BYTES = 64 << 20
"""Two million token ids with their logprobs fit."""
_MAX_ERROR_BYTES = 100_000
_DETAILS_CHARS = 10_000


class StatusError(Exception):
    """The server answered with an error."""

    def __init__(
        self, status: int, reason: str, *, code: str | None, details: str, retry_after: str | None
    ) -> None:
        """Take the answer apart.

        Args:
            status: of HTTP; of an error that came with a 200, the one that it names.
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

    def __init__(self, text: str, *, may_pass: bool = True) -> None:
        """Say what came instead.

        Args:
            text: for people.
            may_pass: whether the same request may get an answer later.
        """
        super().__init__(text)
        self.may_pass = may_pass


class HttpClient:
    """Connections to one server. Each call is exactly one request."""

    def __init__(
        self, server: Endpoint, *, proxy: Endpoint | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, path: str, *, at_root: bool = False) -> bytes:
        """The body of a page.

        Args:
            path: below the base URL.
            at_root: it is beside `/v1` instead.

        Raises:
            StatusError: an error, or another place to ask.
            NoAnswerError: no answer, or one that is too long or breaks off.
        """
        return await self._request("GET", self._server.at(path, at_root=at_root), None)

    async def post(self, path: str, body: bytes, *, at_root: bool = False) -> bytes:
        """The body of the answer to some JSON.

        Args:
            path: below the base URL.
            body: the JSON.
            at_root: the path is beside `/v1` instead.

        Raises:
            StatusError: an error, or another place to ask.
            NoAnswerError: no answer, or one that is too long or breaks off.
        """
        return await self._request("POST", self._server.at(path, at_root=at_root), body)

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        closing, self._session = self._session, None
        if closing is not None:
            await closing.close()

    async def _request(self, method: str, url: str, content: bytes | None) -> bytes:
        try:
            async with self._open().request(
                method,
                url,
                data=None if content is None else aiohttp.BytesPayload(content),
                allow_redirects=False,
                proxy=self._proxy and self._proxy.with_credentials,
            ) as response:
                failed = response.status >= 300
                body = await read_body(
                    response.content.iter_any(),
                    response.headers.get("Content-Encoding"),
                    max_bytes=_MAX_ERROR_BYTES if failed else _MAX_ANSWER_BYTES,
                    cut=failed,
                )
                if not failed and (bomb := bomb_in(body)) is not None:
                    raise BodyError(bomb)
        except (aiohttp.ClientError, BodyError, OSError, TimeoutError, ValueError) as error:
            # Not as its cause: what a library says may quote the URL.
            text = self._without_secrets(reason_of_loss(error))
            same_again = isinstance(error, BodyError) and not isinstance(error, BrokenOffError)
            raise NoAnswerError(one_line(text), may_pass=not same_again) from None
        if failed:
            raise self._refusal(response, body, problem_of(body))
        if (problem := problem_in_success(body)) is not None:
            raise self._refusal(response, body, problem)
        return body

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes, problem: Problem | None) -> StatusError:
        text = self._without_secrets(body.decode("utf-8", "replace"))
        status = response.status
        message = problem and problem.message and self._without_secrets(problem.message)
        if status < 300 and problem is not None:
            status = problem.status
        elif status < 400:
            message = f"it leads to {shown_url(response.headers.get('Location', 'nowhere'))}; ask there"
        return StatusError(
            status,
            one_line(message) if message is not None else start_of(text.encode()),
            code=problem and problem.code and self._without_secrets(problem.code),
            details=text[:_DETAILS_CHARS],
            retry_after=response.headers.get("Retry-After"),
        )

    def _without_secrets(self, text: str) -> str:
        return self._server.without_secrets(
            text if self._proxy is None else self._proxy.without_secrets(text)
        )

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        # Connections of a loop that has ended are of no use in another.
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                # The caller bounds time and requests at once.
                connector=KeptConnections(limit=0, ssl=True if self._tls is None else self._tls),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={
                    "Content-Type": "application/json",
                    "Accept-Encoding": ACCEPTED_ENCODINGS,
                    **self._server.headers,
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session
