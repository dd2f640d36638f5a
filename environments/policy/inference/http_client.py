"""HTTP client for model servers: pooled connections, bounded bodies, classified failures."""

import asyncio
import math
import re
import resource
import select
import ssl
from base64 import b64encode
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote

import aiohttp
import orjson
from aiohttp import TCPConnector

from tools.errors import ConfigError
from tools.json_input import JsonError, read_json
from tools.plain_text import one_line, public_url, split_url, without_credentials

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_FOR_THE_REST = 64
"""File descriptors for the record, standard streams, the event loop and libraries."""
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
"""Errors of OpenAI, Anthropic, vLLM, SGLang, Google and gateways that a retry may cure."""
ACCEPTED_ENCODINGS = "gzip, deflate"
_MAX_ANSWER_BYTES = 64 << 20
"""Two million token ids with logprobs fit."""
_MAX_ERROR_BYTES = 100_000
_DETAILS_CHARS = 10_000
_SHORTEST_SECRET = 4
"""Shorter secrets are hidden only inside URLs, since they occur in ordinary words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A parsed URL; `repr` and `url` contain no credentials."""

    url: str
    query: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    with_credentials: str = field(default="", repr=False)
    """Never show this."""

    def at(self, path: str, *, at_root: bool = False) -> str:
        url = self.url.removesuffix("/v1") if at_root else self.url
        return f"{url}{path}{'?' if self.query else ''}{self.query}"

    def without_secrets(self, text: str) -> str:
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return without_credentials(text)


def endpoint(url: str, *, name: str, example: str, api_key: str = "") -> Endpoint:
    """Parse a URL; `name` and `example` are for the ConfigError about an invalid one."""
    parts = split_url(url)
    if parts is None:
        raise ConfigError(f"{name} {public_url(url)!r} is not a URL; give one such as {example}")
    api_key = api_key.strip()
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError(f"the API key for {public_url(url)} has characters that no header can carry")
    secrets = {api_key, parts.query, *(value for pair in parse_qsl(parts.query) for value in pair[1:])}
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    userinfo, at, _ = parts.netloc.rpartition("@")
    if at:
        user, _, password = userinfo.partition(":")
        basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}"}
        secrets |= {userinfo, password or user, unquote(password or user), basic}
    secrets |= {value for each in parts.query.split("&") for value in each.split("=")[1:]}
    return Endpoint(
        url=public_url(url).rstrip("/"),
        query=parts.query,
        headers=headers,
        secrets=frozenset(secret for secret in secrets - {"none"} if len(secret) >= _SHORTEST_SECRET),
        with_credentials=url.strip(),
    )


def refuse_more_connections(asked: int, setting: str) -> None:
    """Raise ConfigError if the limit of open files is too low."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or asked + _FOR_THE_REST <= allowed:
        return
    raise ConfigError(
        f"{setting} {asked} needs as many open connections, and this process may open {allowed} files: give "
        f"{max(1, allowed - _FOR_THE_REST)} or less, or raise the limit, `ulimit -n {asked + _FOR_THE_REST}`"
    )


def error_fields(content: str | bytes) -> Mapping[str, Any]:
    fields = _object(content)
    return _error_in(fields) or fields


def error_in_success(content: bytes) -> Mapping[str, Any]:
    # Quotes inside JSON strings are escaped, so other replies need no parsing.
    if len(content) > _MAX_ERROR_BYTES or b'"error"' not in content:
        return {}
    for line in (content, *content.splitlines()):
        if b'"error"' in line and (error := _error_in(_object(line.removeprefix(b"data:")))):
            return error
        if line.startswith(b"data:") and b'"choices"' in line:
            break
    return {}


def error_message(fields: Mapping[str, Any]) -> str | None:
    message = fields.get("message")
    raw = mapping(fields.get("metadata")).get("raw")
    if isinstance(raw, dict | list):
        raw = orjson.dumps(raw).decode()
    behind = f": {raw}" if isinstance(raw, str) and raw else ""
    return f"{message}{behind}" if isinstance(message, str) and message else None


def mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_in(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


class BodyError(Exception):
    pass


async def read_body(chunks: AsyncIterable[bytes], *, max_bytes: int, cut: bool = False) -> bytes:
    read = bytearray()
    async for chunk in chunks:
        read += chunk
        if len(read) > max_bytes:
            if not cut:
                raise BodyError(f"the answer is longer than {max_bytes} bytes")
            break
    return bytes(read[:max_bytes])


class KeptConnections(TCPConnector):
    """A pool that drops connections on which bytes arrived between requests.

    Such bytes would be read as the next reply, and every later reply would be off by one
    (https://github.com/aio-libs/aiohttp/issues/13656). Proxies send 408 before closing an idle connection.
    """

    async def _get(self, key: "ConnectionKey", traces: list["Trace"]) -> "Connection | None":
        while (kept := await super()._get(key, traces)) is not None:
            protocol, transport = kept.protocol, kept.transport
            if protocol is not None and transport is not None and not protocol.should_close:
                readable = select.poll()
                readable.register(transport.get_extra_info("socket"), select.POLLIN)
                if not readable.poll(0):
                    return kept
            kept.close()
        return None


class Pace:
    """Admits callers in order, `per_iteration` of them in each iteration of one event loop."""

    def __init__(self, per_iteration: int) -> None:
        self._per_iteration = per_iteration
        self._left = per_iteration
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def step(self) -> None:
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
            if not turn.done():
                turn.set_result(None)
                self._left -= 1
        if self._left < self._per_iteration:
            self._loop.call_soon(self._next_iteration)


def request_body(fields: Mapping[str, Any], lists: Mapping[str, Iterable[bytes]]) -> bytes:
    # Joined once, since each copy of a long conversation costs time.
    parts = [b"{", orjson.dumps(dict(fields))[1:-1]]
    for name, items in lists.items():
        parts += (b"," if parts[1] else b"", b'"%b":[' % name.encode(), b",".join(items), b"]")
    return b"".join((*parts, b"}"))


def start_of(content: bytes) -> str:
    return one_line(content[:_MAX_ERROR_BYTES].decode("utf-8", "replace")) or "(empty)"


def retry_after_s(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def reason_of_loss(error: Exception) -> str:
    return str(error).replace(" ssl:default", "") or type(error).__name__


class StatusError(Exception):
    def __init__(
        self, status: int, reason: str, *, code: str | None, details: str, retry_after_s: float | None
    ) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.code = code
        self.details = details
        self.retry_after_s = retry_after_s


class NoAnswerError(Exception):
    def __init__(self, text: str, *, may_pass: bool = True) -> None:
        super().__init__(text)
        self.may_pass = may_pass


class IncompleteError(NoAnswerError):
    pass


class HttpClient:
    def __init__(
        self, server: Endpoint, *, proxy: Endpoint | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def request(self, path: str, body: bytes | None = None, *, at_root: bool = False) -> bytes:
        try:
            async with self._open().request(
                "GET" if body is None else "POST",
                self._server.at(path, at_root=at_root),
                data=None if body is None else aiohttp.BytesPayload(body),
                allow_redirects=False,
                proxy=self._proxy and self._proxy.with_credentials,
            ) as response:
                failed = response.status >= 300
                answer = await read_body(
                    response.content.iter_any(),
                    max_bytes=_MAX_ERROR_BYTES if failed else _MAX_ANSWER_BYTES,
                    cut=failed,
                )
        except (aiohttp.ClientError, BodyError, OSError, TimeoutError, ValueError) as error:
            # Not chained: a library's text may quote the URL.
            text = self._without_secrets(reason_of_loss(error))
            raise NoAnswerError(one_line(text), may_pass=not isinstance(error, BodyError)) from None
        answer = answer.removeprefix(BOM_UTF8)
        error = error_fields(answer) if failed else error_in_success(answer)
        if not failed and not error:
            return answer
        text = self._without_secrets(answer.decode("utf-8", "replace"))
        status, message, code = response.status, error_message(error), _word(error.get("code"))
        if status < 300:
            status = _status(error)
        elif status < 400:
            message = f"it leads to {public_url(response.headers.get('Location', 'nowhere'))}; ask there"
        raise StatusError(
            status,
            start_of(text.encode()) if message is None else one_line(self._without_secrets(message)),
            code=code and self._without_secrets(code),
            details=text[:_DETAILS_CHARS],
            retry_after_s=retry_after_s(response.headers.get("Retry-After")),
        )

    async def close(self) -> None:
        closing, self._session = self._session, None
        if closing is not None:
            await closing.close()

    def _without_secrets(self, text: str) -> str:
        return self._server.without_secrets(
            text if self._proxy is None else self._proxy.without_secrets(text)
        )

    def _open(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=KeptConnections(limit=0, ssl=True if self._tls is None else self._tls),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={
                    "Content-Type": "application/json",
                    "Accept-Encoding": ACCEPTED_ENCODINGS,
                    **self._server.headers,
                },
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def tls_context() -> ssl.SSLContext:
    # `create_default_context` would also honour SSLKEYLOGFILE from the environment.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    context.load_default_certs()
    return context


def _object(content: str | bytes) -> Mapping[str, Any]:
    try:
        return mapping(read_json(content))
    except JsonError:
        return {}


def _error_in(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    error = fields.get("error")
    if not error and (choices := list_in(fields.get("choices"))):
        error = mapping(choices[0]).get("error")
    if isinstance(error, str) and error:
        return {"message": error}
    return mapping(error) or (fields if fields.get("object") == "error" else {})


def _status(fields: Mapping[str, Any]) -> int:
    """Return the status that an error inside a 200 names, or 400 if it does not look transient."""
    words = [_word(fields.get(name)) for name in ("code", "status", "status_code", "type")]
    named = [word for word in words if word]
    for text in named:
        if re.fullmatch("[45][0-9]{2}", text):
            return int(text)
    return next((status for status, names in _STATUS_BY_NAME if any(map(names.search, named))), 400)


def _word(value: object) -> str | None:
    return str(value)[:100] if isinstance(value, str | int | float) else None
