"""Serves an ASGI app in the event loop of a test."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp


@asynccontextmanager
async def running_server(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve `app` in this event loop on a free port of 127.0.0.1; gives the base URL, with `/v1`."""
    # With the protocol named, asyncio turns Nagle's algorithm off; it would cost 40 ms per answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        # A slow test may pause for longer than the default 5 s, and its client would meet a reset.
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_keep_alive=600)
        server = _EmbeddedServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await server.ready.wait()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await serving


class _EmbeddedServer(uvicorn.Server):
    """A server that leaves the process's signal handlers alone and says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
