"""A Unix socket in front of the real Docker engine that breaks the requests that a test names."""

import os
import re
import shutil
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker

from tools.sandbox.docker import engine, manager, orphans

ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
"""Read once, before any test sets it to a proxy."""
_BYTES = 1 << 16
_LATE_S = 0.3
_SEND = docker.APIClient.send
_END_OF_ARCHIVE = bytes(1024)

Fault = Callable[[socket.socket, bytes], None]
"""Gets the connection of a client and the beginning of its request; it is closed afterwards."""


class EngineProxy:
    """What is asked of the engine, and what breaks of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Method and path of each request."""
        self._pattern, self._fault, self._left = re.compile("(?!)"), _pass, 0
        self._open: set[socket.socket] = set()

    def breaks(self, pattern: str, fault: Fault, times: int = 1_000_000) -> None:
        """Let a fault happen to requests such as `GET /v1.41/containers/…/changes`, so many times."""
        self._pattern, self._fault, self._left = re.compile(pattern), fault, times

    def mend(self) -> None:
        """Pass on everything."""
        self.breaks("(?!)", _pass)

    def cut_all(self) -> None:
        """Close every connection, as the end of an engine does."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def is_late(self, line: str) -> bool:
        """Whether the answer to a request will be late."""
        return self._fault is late and bool(self._left) and bool(self._pattern.search(line))

    def serve(self, client: socket.socket) -> None:
        """Answer one request."""
        request = client.recv(_BYTES)
        line = request.split(b" HTTP/")[0].decode()
        self.asked.append(line)
        self._open.add(client)
        try:
            if self._left and self._pattern.search(line):
                self._left -= 1
                self._fault(client, request)
            else:
                _pass(client, request)
        finally:
            self._open.discard(client)


def late(client: socket.socket, request: bytes) -> None:
    """The engine does it, and nobody hears of that before the client has given up."""
    with _connected(client, request) as upstream:
        while upstream.recv(_BYTES) and b"Transfer-Encoding: chunked" in request:
            pass
        client.settimeout(60)
        with suppress(OSError):
            while client.recv(_BYTES):
                pass


def refused(client: socket.socket, request: bytes) -> None:
    """The connection is closed without a word."""


def cut(client: socket.socket, request: bytes) -> None:
    """The answer ends in the middle."""
    with _connected(client, request) as upstream:
        answer = b""
        while b"\r\n\r\n" not in answer and (data := upstream.recv(_BYTES)):
            answer += data
        if b"Content-Length: 0" not in answer and not answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 101")):
            answer += upstream.recv(_BYTES)
        head, _, body = answer.partition(b"\r\n\r\n")
        client.sendall(head + b"\r\n\r\n" + body[: len(body) // 2] if body else b"HTTP/1.")


def cut_head(client: socket.socket, request: bytes) -> None:
    """The answer ends within its headers."""
    with _connected(client, request) as upstream:
        client.sendall(upstream.recv(_BYTES).partition(b"\r\n\r\n")[0][:-6])


def disk_full(client: socket.socket, request: bytes) -> None:
    """What an engine says whose disk is full."""
    _answer(
        client,
        request,
        b"500 Internal Server Error",
        b'{"message": "write /var/lib/x: no space left on device"}',
    )


def parent_pruned(client: socket.socket, request: bytes) -> None:
    """What a build gives when somebody has removed the image of its last step."""
    _answer(
        client, request, b"200 OK", b'{"error": "failed to set parent 01: unknown parent image ID sha256:01"}'
    )


def container_lost(client: socket.socket, request: bytes) -> None:
    """What an engine says after a restart of a container that removes itself."""
    _answer(client, request, b"404 Not Found", b'{"message": "No such container: 0123"}')


def empty_archive(client: socket.socket, request: bytes) -> None:
    """An archive without what the engine could not read."""
    _answer(client, request, b"200 OK", _END_OF_ARCHIVE)


def one_at_a_time(each_s: float) -> Fault:
    """An engine that answers one request after another, slowly."""
    turn = threading.Lock()

    def serve(client: socket.socket, request: bytes) -> None:
        with turn:
            time.sleep(each_s)
        _pass(client, request)

    return serve


@contextmanager
def proxied(monkeypatch) -> Generator[EngineProxy]:
    """An engine behind a proxy, as all of this process sees it meanwhile; nothing of it is left.

    Of what comes too late nobody waits for the whole time limit.
    """
    proxy, folder = EngineProxy(), tempfile.mkdtemp()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                proxy.serve(self.request)

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads, block_on_close, request_queue_size = True, False, 256

        def handle_error(self, *_) -> None:
            pass

    def send(client: Any, request: Any, **settings: Any) -> Any:
        if proxy.is_late(f"{request.method} {request.path_url}"):
            settings["timeout"] = _LATE_S
        return _SEND(client, request, **settings)

    with Server(f"{folder}/docker.sock", Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        monkeypatch.setattr(docker.APIClient, "send", send)
        _forget()
        try:
            yield proxy
        finally:
            proxy.mend()
            for one in engine.connect().containers(f"turnwise.run={orphans.labels()['turnwise.run']}"):
                with suppress(engine.EngineError):
                    engine.connect().remove(one.id)
            monkeypatch.undo()
            _forget()
            server.shutdown()
            shutil.rmtree(Path(folder))


def _forget() -> None:
    engine.connect.cache_clear()
    manager._manager.cache_clear()


def _pass(client: socket.socket, request: bytes) -> None:
    with _connected(client, request) as upstream:
        while data := upstream.recv(_BYTES):
            client.sendall(data)


@contextmanager
def _connected(client: socket.socket, request: bytes) -> Generator[socket.socket]:
    """The engine, which gets the request and what follows it."""
    with closing(socket.socket(socket.AF_UNIX)) as upstream:
        upstream.connect(ENGINE)
        upstream.sendall(request)
        threading.Thread(target=_pump, args=(client, upstream), daemon=True).start()
        yield upstream


def _pump(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(_BYTES):
            upstream.sendall(data)
    with suppress(OSError):
        upstream.shutdown(socket.SHUT_RDWR)


def _answer(client: socket.socket, request: bytes, status: bytes, body: bytes) -> None:
    """Answer after the whole request and say that the connection ends, or the client may use it once more."""
    begin, _, received = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", begin)
    left = int(length[1]) - len(received) if length else 0
    while left > 0 and (data := client.recv(_BYTES)):
        left -= len(data)
    head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    client.sendall(head % (status, len(body)) + body)
