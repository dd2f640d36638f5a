"""The model endpoint of recorded agents: one server on loopback, a path and a secret for each rollout."""

import asyncio
import hashlib
import hmac
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any, Protocol

import orjson
from aiohttp import web
from aiohttp.web_request import BaseRequest

from environments.agents.dialects import CHAT, MESSAGES, NOT_RETRIED, AgentRequest, Dialect, Refused, Reply
from environments.reward_context import AgentEndpoint

_LARGEST_BODY = 32 << 20
_LONG_BYTES = 1 << 20
"""Of a body, from which reading it takes some 10 ms."""
_PING_S = 5.0
"""Before a stream begins without its completion: until then an error has a status of its own."""
STRUCK = "[secret]"


class Connection:
    """The way back to an agent."""

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self.is_delivered = False
        """Whether the last byte of a completion was written to it."""

    @property
    def is_open(self) -> bool:
        """Whether the agent still waits at the other end."""
        transport = self._request.transport
        return transport is not None and not transport.is_closing()

    @property
    def is_retry(self) -> bool:
        """Whether the client calls its request one."""
        return self._request.headers.get("x-stainless-retry-count", "0") != "0"


class Recorded(Protocol):
    """One rollout, as the endpoint asks it."""

    models: Sequence[str]
    """The names that its agent may ask for."""
    secrets: Sequence[bytes]
    """What its agent must not hand to the model, or to the record."""

    def note_refusal(self, problem: str) -> None:
        """Take into account that a request was refused."""
        ...

    async def ask(self, request: AgentRequest, connection: Connection) -> Reply:
        """The completion of a request.

        Raises:
            Refused: there is none.
            ConnectionResetError: the agent does not wait for it any more.
        """
        ...


def struck(text: bytes, hidden: Sequence[bytes]) -> bytes:
    """A text without secrets."""
    for secret in hidden:
        if secret in text:
            text = text.replace(secret, STRUCK.encode())
    return text


class EndpointServer:
    """Serves while any rollout needs it, in a context of its own: requests belong to no one's hooks."""

    def __init__(self) -> None:
        self._rollouts: dict[str, Recorded] = {}
        self._opened = 0
        self._secret = secrets.token_bytes(32)
        self._lock: asyncio.Lock | None = None
        self._runner: web.ServerRunner | None = None
        self._users = 0
        self._port = 0

    @asynccontextmanager
    async def rollout(
        self, recorded: Callable[[str], Recorded], model: str, sock: socket.socket | None = None
    ) -> AsyncGenerator[tuple[Recorded, AgentEndpoint]]:
        """The endpoint of one rollout, at `sock` too where its agent reaches no other.

        Args:
            recorded: makes what answers, with the rollout's secret.
            model: the name of the policy.
            sock: listens already; it is closed afterwards.
        """
        self._opened += 1
        name = f"r{self._opened}"
        key = self._key(name)
        async with self.serving() as runner:
            port = self._port
            site = None
            if sock is not None:
                port = sock.getsockname()[1]
                site = web.SockSite(runner, sock)
                await _in_no_context(site.start)
            answers = self._rollouts[name] = recorded(key)
            try:
                base = f"http://127.0.0.1:{port}/{name}"
                yield answers, AgentEndpoint(base_url=f"{base}/v1", api_key=key, model=model)
            finally:
                del self._rollouts[name]
                if site is not None:
                    await site.stop()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[web.ServerRunner]:
        """With the server, which one user after another shares."""
        self._users += 1
        try:
            yield await self._started()
        finally:
            self._users -= 1
            if self._users == 0 and self._runner is not None:
                runner, self._runner, self._lock = self._runner, None, None
                await runner.cleanup()

    async def _started(self) -> web.ServerRunner:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._runner is None:
                server = web.Server(self._handle, request_factory=_request, access_log=None)
                runner = web.ServerRunner(server, shutdown_timeout=0.1)
                await _in_no_context(runner.setup)
                await _in_no_context(web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start)
                self._runner, self._port = runner, runner.addresses[0][1]
            return self._runner

    def _key(self, name: str) -> str:
        return f"sk-{hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()[:40]}"

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        name, _, path = request.path.lstrip("/").partition("/")
        path = path.removeprefix("v1/")
        dialect = MESSAGES if path.startswith("messages") else CHAT
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        rollout: Recorded | None = None
        try:
            rollout = self._authorised(request, name)
            if request.method == "GET" and path.split("/")[0] == "models":
                return _json(_models(rollout, path))
            if request.method != "POST" or path not in ("chat/completions", "messages"):
                possible = "POST /v1/chat/completions, POST /v1/messages, GET /v1/models"
                raise Refused(f"{request.method} {request.path}: possible is {possible}", status=404)
            asked = await _asked(request, dialect, rollout.secrets)
            return await self._answered(rollout, dialect, asked, request, response)
        except Refused as refused:
            if rollout is not None:
                rollout.note_refusal(f"{refused.status}: {refused}")
            if not response.prepared:
                return _json(dialect.error(refused), refused.status)
            await response.write(dialect.error_event(refused))
            await response.write_eof()
        except ConnectionResetError:
            pass  # nobody waits for it
        return response

    def _authorised(self, request: BaseRequest, name: str) -> Recorded:
        """The rollout of a path, for those who know its secret."""
        given = (
            request.headers.get("authorization", "").partition(" ")[2],
            request.headers.get("x-api-key", ""),
        )
        key = self._key(name)
        if not any(
            hmac.compare_digest(each.strip().encode("utf-8", "replace"), key.encode()) for each in given
        ):
            problem = "wrong API key: each rollout has its own, in the same place as its base URL"
            raise Refused(problem, status=401, kind="authentication_error", code="invalid_api_key")
        rollout = self._rollouts.get(name)
        if rollout is None:
            raise Refused(
                "this rollout is over, and nothing answers it any more", status=410, code="rollout_over"
            )
        return rollout

    async def _answered(
        self, rollout: Recorded, dialect: Dialect, asked: AgentRequest, request: BaseRequest,
        response: web.StreamResponse,
    ) -> web.StreamResponse:  # fmt: skip
        connection = Connection(request)
        if not asked.stream:
            response = _json(dialect.reply(await rollout.ask(asked, connection)))
            await response.prepare(request)
        else:
            asking = asyncio.ensure_future(rollout.ask(asked, connection))
            while not (await asyncio.wait({asking}, timeout=_PING_S))[0] and connection.is_open:
                if not response.prepared:
                    await response.prepare(request)
                with suppress(ConnectionResetError):
                    await response.write(dialect.ping)
            reply = await asking
            if not response.prepared:
                await response.prepare(request)
            await response.write(dialect.events(reply, with_usage=asked.with_usage))
        await response.write_eof()
        connection.is_delivered = True
        return response


def _request(*parts: Any) -> BaseRequest:
    """The request of `aiohttp`, whose body may be larger than its own limit."""
    message, payload, protocol, writer, task = parts
    loop = asyncio.get_running_loop()
    return BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_LARGEST_BODY)


async def _asked(request: BaseRequest, dialect: Dialect, hidden: Sequence[bytes]) -> AgentRequest:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise Refused(f"the body is larger than {_LARGEST_BODY >> 20} MiB", status=413) from None
    except web.RequestPayloadError as error:
        raise Refused(f"the body cannot be read: {error}") from None
    body = struck(body, hidden)
    return dialect.read(body) if len(body) < _LONG_BYTES else await asyncio.to_thread(dialect.read, body)


def _models(rollout: Recorded, path: str) -> dict[str, Any]:
    listed = [
        {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "owned_by": "turnwise",
        }
        for name in rollout.models
    ]
    _, is_one, name = path.partition("/")
    if not is_one:
        return {"object": "list", "data": listed, "has_more": False}
    found = next((each for each in listed if each["id"] == name), None)
    if found is None:
        raise Refused(f"no model {name!r:.100}; choose from {', '.join(rollout.models)}", status=404)
    return found


def _json(fields: dict[str, Any], status: int = 200) -> web.Response:
    headers = {} if status < 400 or status >= 500 else NOT_RETRIED
    return web.Response(
        body=orjson.dumps(fields), status=status, content_type="application/json", headers=headers
    )


async def _in_no_context(start: Callable[[], Any]) -> None:
    """Start something that outlives whoever asks for it: in none of its variables."""
    await asyncio.get_running_loop().create_task(start(), context=Context())
