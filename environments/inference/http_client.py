"""HTTP to a model server: requests over kept connections, bounded bodies, and the ways in which they fail."""

import asyncio
import re
import resource
import select
import ssl
import zlib
from collections import deque
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import orjson
from aiohttp import TCPConnector

from environments.inference.endpoint import Endpoint, shown_url
from environments.plain_text import printable
from tools.errors import ConfigError

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_FOR_THE_REST = 64
"""File descriptors for the record, standard streams, the event loop and libraries."""
_LONGEST_ERROR = 100_000
_STATUS_BY_NAME = (
    (429, re.compile(r"rate.?limit|too.?many|throttl|resource.?exhausted", re.IGNORECASE)),
    (
        503,
        re.compile(
            r"overload|unavailable|busy|capacity|internal|server.?error|api.?error|time.?out|timed.?out"
            r"|deadline|upstream|bad.?gateway",
            re.IGNORECASE,
        ),
    ),
)
"""How OpenAI, Anthropic, vLLM, SGLang, Google and gateways name what may pass."""
ACCEPTED_ENCODINGS = "gzip, deflate"
_GZIP_OR_ZLIB = 47
_RAW_DEFLATE = -15
_MOST_MEMBERS = 100
_PIECE_BYTES = 1 << 20
_LONGEST = 300
_MAX_ANSWER_BYTES = 64 << 20
"""Two million token ids with their logprobs fit."""
_MAX_ERROR_BYTES = 100_000
_DETAILS_CHARS = 10_000
_SMALL_BYTES = 100_000
_STEP_BYTES = 4 << 20
_DENSE = 400_000
_MOST_CONTAINERS = 1_500_000
"""Lists and objects: 131,072 tokens have 650,000 with logprobs and a `top_logprobs`; texts count, too."""
_BYTES_EACH = 6
"""At least, in an answer of more than `_DENSE`: an entry of logprobs has 20, and dense code."""
_MOST_VALUES = 4_000_000


def refuse_more_connections(asked: int, setting: str) -> None:
    """Raise ConfigError where this process may not open so many at once."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or asked + _FOR_THE_REST <= allowed:
        return
    raise ConfigError(
        f"{setting} {asked} needs as many open connections, and this process may open {allowed} files: give "
        f"{max(1, allowed - _FOR_THE_REST)} or less, or raise the limit, `ulimit -n {asked + _FOR_THE_REST}`"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What an error answer says."""

    message: str | None
    code: str | None
    """The server's name for it."""
    status: int
    """Of HTTP, as its code or type says; 400 where neither says that it may pass."""


def problem_of(content: str | bytes) -> Problem | None:
    """What the body of an error status says; OpenAI's shape, with `error` around or not."""
    fields = _object(content)
    return _problem(_error_in(fields) or fields) if fields else None


def problem_in_success(content: bytes) -> Problem | None:
    """The error that came with a status of success, if one did."""
    # In a JSON text every quote inside a string is escaped: what has no such key or value costs no parsing.
    if len(content) > _LONGEST_ERROR or b'"error"' not in content:
        return None
    # One object, alone or behind comments, or one in an event.
    for line in (content, *content.splitlines()):
        if b'"error"' in line and (error := _error_in(_object(line.removeprefix(b"data:")))):
            return _problem(error)
    return None


def mapping(value: object) -> Mapping[str, Any]:
    """The object that a value of JSON is; empty for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_in(value: object) -> list[Any]:
    """The list that a value of JSON is; empty for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def bomb_in(content: bytes) -> str | None:
    """Why an answer is not parsed: 64 MB of empty lists take 10 s and 2 GB; `None` when it can be."""
    containers = values = 0
    most = min(_MOST_CONTAINERS, max(_DENSE, len(content) // _BYTES_EACH))
    for start in range(0, len(content), _STEP_BYTES) if len(content) > _SMALL_BYTES else ():
        end = start + _STEP_BYTES
        containers += content.count(b"[", start, end) + content.count(b"{", start, end)
        values += content.count(b",", start, end)
        if containers > most:
            return f"the answer has more than {most} lists and objects"
        if values > _MOST_VALUES:
            return f"the answer has more than {_MOST_VALUES} values"
    return None


class BodyError(Exception):
    """A body that is too long, or not what its headers say."""


class BrokenOffError(BodyError):
    """A body that ends too early, as when a server is stopped."""


async def read_body(
    chunks: AsyncIterable[bytes], encoding: str | None, *, max_bytes: int, cut: bool = False
) -> bytes:
    """The decoded body.

    Args:
        chunks: as they came over the wire.
        encoding: the header `Content-Encoding`.
        max_bytes: the longest that is read, before and after decoding.
        cut: give the beginning of a longer one, or of one that breaks off.

    Raises:
        BodyError: longer, or malformed.
    """
    decode = _decoder(encoding)
    read, received = bytearray(), 0
    async for chunk in chunks:
        received += len(chunk)
        for piece in decode.pieces(chunk):
            read += piece
            if max(len(read), received) > max_bytes:
                if cut:
                    return bytes(read[:max_bytes])
                raise BodyError(f"the answer is longer than {max_bytes} bytes")
            if len(piece) == _PIECE_BYTES:  # a little that becomes a lot keeps nobody else waiting
                await asyncio.sleep(0)
    if not (cut or decode.complete):
        raise BrokenOffError("the answer breaks off")
    return bytes(read)


class KeptConnections(TCPConnector):
    """Uses no connection again on which something came between two requests.

    What came would be taken for the answer to the next request, and each answer for that to a later one
    (https://github.com/aio-libs/aiohttp/issues/13656); proxies say 408 before they close an idle connection.
    """

    async def _get(self, key: "ConnectionKey", traces: list["Trace"]) -> "Connection | None":
        while (kept := await super()._get(key, traces)) is not None:
            if _is_silent(kept):
                return kept
            kept.close()
        return None


class Pace:
    """Callers in the order they came, so many in each iteration of one event loop."""

    def __init__(self, per_iteration: int) -> None:
        self._per_iteration = per_iteration
        self._left = per_iteration
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def step(self) -> None:
        """Go on now where few did in this iteration, and else in a later one."""
        if self._left == self._per_iteration:
            self._loop.call_soon(self._next_iteration)
        if self._left > 0:
            self._left -= 1
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_iteration(self) -> None:
        self._left = self._per_iteration
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._left -= 1
        if self._left < self._per_iteration:
            self._loop.call_soon(self._next_iteration)


def request_body(fields: Mapping[str, Any], lists: Mapping[str, Iterable[bytes]]) -> bytes:
    """A JSON object.

    Args:
        fields: its values.
        lists: more of them, each a list of what is JSON already.
    """
    # Joined once: a long conversation is as large as all the rest, and every copy of it costs.
    parts = [b"{", orjson.dumps(dict(fields))[1:-1]]
    for name, items in lists.items():
        parts += (b"," if parts[1] else b"", b'"%b":[' % name.encode(), b",".join(items), b"]")
    return b"".join((*parts, b"}"))


def one_line(text: str) -> str:
    """The text without line breaks and what would steer a terminal, cut where it gets long."""
    line = " ".join(text[: 100 * _LONGEST].split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return printable(line, "\N{REPLACEMENT CHARACTER}")


def start_of(content: bytes) -> str:
    """The beginning of an answer."""
    return one_line(content[: 400 * _LONGEST].decode("utf-8", "replace")) or "(empty)"


def reason_of_loss(error: Exception) -> str:
    """What a library says of a request that got no answer; aiohttp's `ssl:default` says nothing."""
    return str(error).replace(" ssl:default", "") or type(error).__name__


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


def tls_context() -> ssl.SSLContext:
    """Checks certificates and host names, by the system's certificates or those of `SSL_CERT_FILE`."""
    # Not `create_default_context`, which takes a file for the session's keys from the process environment.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    context.load_default_certs()
    return context


def _object(content: str | bytes) -> Mapping[str, Any]:
    try:
        return mapping(orjson.loads(content))
    except ValueError:
        return {}


def _error_in(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The error of an answer, of its first choice (OpenRouter), or the answer that is one (vLLM)."""
    error = fields.get("error")
    if not error and (choices := list_in(fields.get("choices"))):
        error = mapping(choices[0]).get("error")
    if isinstance(error, str) and error:
        return {"message": error}
    return mapping(error) or (fields if fields.get("object") == "error" else {})


def _problem(fields: Mapping[str, Any]) -> Problem:
    message, code = fields.get("message"), fields.get("code")
    return Problem(
        message=f"{message}{_provider_text(fields)}" if isinstance(message, str) else None,
        code=_word(code),
        status=_status(fields),
    )


def _provider_text(fields: Mapping[str, Any]) -> str:
    """What OpenRouter passes on from the server behind it, since its own message explains nothing."""
    raw = mapping(fields.get("metadata")).get("raw")
    if isinstance(raw, dict | list):
        raw = orjson.dumps(raw).decode()
    return f": {raw}" if isinstance(raw, str) and raw else ""


def _status(fields: Mapping[str, Any]) -> int:
    words = [_word(fields.get(name)) for name in ("code", "status", "status_code", "type")]
    named = [word for word in words if word]
    for text in named:
        if re.fullmatch("[45][0-9]{2}", text):
            return int(text)
    return next((status for status, names in _STATUS_BY_NAME if any(map(names.search, named))), 400)


def _word(value: object) -> str | None:
    """A name or a number; lists in lists are neither, and too deep ones have no text."""
    return str(value)[:100] if isinstance(value, str | int | float) else None


class _Plain:
    complete = True

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk


class _Inflate:
    """Decodes gzip, zlib and bare deflate, the members of a gzip body one after the other."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False
        self._drained = True
        """Whether all that was taken in has come out."""
        self._members = 1

    @property
    def complete(self) -> bool:
        return self._stream.eof or not self._begun

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """What a chunk decodes to, bit by bit."""
        try:
            while chunk or not self._drained:
                if self._stream.eof:
                    self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
                    self._members += 1
                    if self._members > _MOST_MEMBERS:
                        raise BodyError(f"the answer has more than {_MOST_MEMBERS} gzip members")
                elif not self._begun and chunk[0] & 15 != 8 and chunk[0] != 0x1F:
                    self._stream = zlib.decompressobj(_RAW_DEFLATE)
                self._begun = True
                piece = self._stream.decompress(chunk, _PIECE_BYTES)
                chunk = self._stream.unused_data or self._stream.unconsumed_tail
                self._drained = self._stream.eof or len(piece) < _PIECE_BYTES
                yield piece
        except zlib.error as error:
            raise BodyError(f"the answer cannot be decompressed: {error}") from error


def _decoder(encoding: str | None) -> _Plain | _Inflate:
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return _Plain()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflate()
    raise BodyError(f"the answer has the encoding {name[:40]!r}, which was not asked for")


def _is_silent(kept: "Connection") -> bool:
    protocol, transport = kept.protocol, kept.transport
    if protocol is None or transport is None or protocol.should_close:
        return False
    readable = select.poll()
    readable.register(transport.get_extra_info("socket"), select.POLLIN)
    return not readable.poll(0)
