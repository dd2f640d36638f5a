"""A model server that differs from the mock server as a real one does: what it refuses, replies, lists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Fields = dict[str, Any]
_CHAT = "/v1/chat/completions"
_MODELS = "/v1/models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One difference."""

    says: str = ""
    """What it is, in a few words."""
    refuses: Callable[[Fields], Response | None] | None = None
    """The answer to a request that it does not take."""
    fails_first: Callable[[], Response] | None = None
    """The first answer to each request, before the one that it gets when it comes again."""
    replies: Callable[[Fields], None] | None = None
    """Changes a reply, in place."""
    writes: Callable[[Fields], bytes] | None = None
    """The body of a reply, where that is no plain JSON."""
    models: Callable[[Fields], Response] | None = None
    """The answer to `GET /models`, made of the plain one."""
    plain_name: Callable[[str], str] | None = None
    """The plain name of a model, where that answer names it otherwise."""


class QuirkyServer:
    """A server with quirks around one without, as an ASGI app."""

    def __init__(self, app: ASGIApp, quirks: Sequence[Quirk]) -> None:
        """Change what goes in and out of `app`."""
        self._app = app
        self._quirks = tuple(quirks)
        self._failed = set[bytes]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path")
        if scope["type"] != "http" or path not in (_CHAT, _MODELS):
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        answer = await (self._models(scope) if path == _MODELS else self._chat(scope, body))
        await answer(scope, receive, send)

    async def _models(self, scope: Scope) -> Response:
        answer = await self._plain(scope, b"")
        change = next((quirk.models for quirk in self._quirks if quirk.models is not None), None)
        return answer if change is None or answer.status_code != 200 else change(orjson.loads(answer.body))

    async def _chat(self, scope: Scope, body: bytes) -> Response:
        asked = _object(body)
        if "messages" not in asked:
            return await self._plain(scope, body)
        if (refused := self._refusal(asked, body)) is not None:
            return refused
        plain = {**asked, "stream": False, "model": self._plain_name(asked.get("model"))}
        answer = await self._plain(scope, orjson.dumps(plain))
        if answer.status_code != 200:
            return answer
        reply: Fields = orjson.loads(answer.body)
        for quirk in self._quirks:
            if quirk.replies is not None:
                quirk.replies(reply)
        write = next((quirk.writes for quirk in self._quirks if quirk.writes is not None), orjson.dumps)
        return Response(write(reply), media_type="application/json")

    def _plain_name(self, model: Any) -> Any:
        for quirk in self._quirks:
            if quirk.plain_name is not None and isinstance(model, str):
                model = quirk.plain_name(model)
        return model

    def _refusal(self, asked: Fields, body: bytes) -> Response | None:
        for quirk in self._quirks:
            if quirk.refuses is not None and (refused := quirk.refuses(asked)) is not None:
                return refused
            if quirk.fails_first is not None and body not in self._failed:
                self._failed.add(body)
                return quirk.fails_first()
        return None

    async def _plain(self, scope: Scope, body: bytes) -> Response:
        """What the server without quirks answers."""
        status, parts = 500, list[bytes]()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        headers = [each for each in scope["headers"] if each[0] != b"content-length"]
        await self._app({**scope, "headers": headers}, receive, send)
        return Response(b"".join(parts), status_code=status, media_type="application/json")


def calls_of(message: Fields) -> list[Fields]:
    """The tool calls of a message."""
    return message.get("tool_calls") or []


def _object(body: bytes) -> Fields:
    try:
        read: Any = orjson.loads(body)
    except ValueError:
        return {}
    return cast("Fields", read) if isinstance(read, dict) else {}


async def _body(receive: Receive) -> bytes:
    parts = list[bytes]()
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
