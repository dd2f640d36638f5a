"""The page of a live run, on loopback: one page, its index and its blocks, for who knows the path."""

import asyncio
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from environments.viewer.live_record import LiveRecord
from environments.viewer.page_template import page_template
from environments.viewer.record_page import title_of
from tools.errors import ConfigError

_HOST = "127.0.0.1"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_DIGITS = 9


async def serve_page(record: LiveRecord, port: int, started: Callable[[str], None]) -> None:
    """Serve the page of a record on loopback until SIGINT or SIGTERM.

    Args:
        record: what is looked at.
        port: 0: a free one.
        started: gets the URL. Its path is a secret, as other users of the machine reach loopback, too.

    Raises:
        ConfigError: the port cannot be had.
    """
    try:
        listening = socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {_HOST}:{port}: {error}") from None
    with listening:
        host = f"{_HOST}:{listening.getsockname()[1]}"
        secret = secrets.token_urlsafe(16)
        runner = web.AppRunner(page_app(record, host, secret), access_log=None, handle_signals=False)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            started(f"http://{host}/{secret}/")
            await ended.wait()
        finally:
            await runner.cleanup()


def page_app(record: LiveRecord, host: str, secret: str) -> web.Application:
    """The server's application: GET alone, below the secret path, and only to those who ask this host."""

    @web.middleware
    async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # A page elsewhere may give its own name our address.
        if request.host != host and request.host != host.replace(_HOST, "localhost"):
            raise web.HTTPForbidden(text="not the host that this page is served by\n")
        answer = await handler(request)
        answer.headers.update(_HEADERS)
        return answer

    async def page(_: web.Request) -> web.StreamResponse:
        template = page_template(title_of(record.path), live=True)
        text = template.before + template.between + template.after
        return web.Response(text=text, content_type="text/html", charset="utf-8")

    async def index(request: web.Request) -> web.StreamResponse:
        after = request.query.get("after", "0")
        if not after.isdecimal() or len(after) > _DIGITS:
            raise web.HTTPBadRequest(text="after: how many groups are known\n")
        return _block(await asyncio.to_thread(record.index, int(after)))

    async def block(request: web.Request) -> web.StreamResponse:
        content = await asyncio.to_thread(record.block, request.match_info["name"])
        if content is None:
            raise web.HTTPNotFound(text="no such block\n")
        return _block(content)

    app = web.Application(middlewares=[guarded])
    app.router.add_get(f"/{secret}/", page)
    app.router.add_get(f"/{secret}/index", index)
    app.router.add_get(f"/{secret}/block/{{name}}", block)
    return app


def _block(content: bytes) -> web.Response:
    return web.Response(body=content, content_type="application/gzip")
