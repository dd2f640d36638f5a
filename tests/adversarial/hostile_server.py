"""An HTTP server on loopback that answers byte by byte what a test says."""

import asyncio
import gzip
import json
import zlib
from contextlib import asynccontextmanager

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def answer(body, *, status=200, headers=()):
    """A well-formed answer around any body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", *headers, f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(head).encode() + content


def gzip_bomb(mebibytes=50):
    return gzip.compress(bytes(mebibytes << 20), 9)


def zlib_bomb(mebibytes=50):
    return zlib.compress(bytes(mebibytes << 20), 9)


async def drip(writer):
    """A byte now and then, for ever."""
    writer.write(OK + b"Content-Length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless(writer):
    """As fast as it is read, for ever."""
    writer.write(OK + b"Connection: close\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"[" * 65536)
        await writer.drain()


async def requests(reader):
    """Method, path, headers and body of each request of a connection."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
        yield method, path, headers, await reader.readexactly(int(headers.get("content-length", 0)))


class HostileServer:
    """`answers`: by path, or `*`; bytes, or a coroutine function of the writer, after which it hangs up."""

    def __init__(self, answers):
        self.answers = dict(answers)
        self.asked = []
        """Method, path, headers and body of every request."""
        self.url = ""

    async def serve(self, reader, writer):
        try:
            async for method, path, headers, body in requests(reader):
                self.asked.append((method, path, headers, body))
                made = self.answers.get(path.partition("?")[0], self.answers.get("*"))
                if callable(made):
                    await made(writer)
                    break
                writer.write(made)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def hostile(answers):
    server = HostileServer(answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server
        for each in (*asyncio.all_tasks(),):
            if getattr(each.get_coro(), "__qualname__", "") == "HostileServer.serve":
                each.cancel()
