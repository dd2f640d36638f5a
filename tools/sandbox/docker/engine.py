"""All calls to the `docker` package, typed and blocking, with one kind of error."""

import base64
import json
import logging
import math
import posixpath
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, cast

import docker
import docker.errors
import requests
import urllib3

from tools.errors import IsolationError
from tools.sandbox.host.channel import Channel
from tools.sandbox.host.layout import RESERVED_PIDS
from tools.sandbox.host.silence import Counters
from tools.sandbox.inside.messages import Inbox, Message

_TIMEOUT_S = 120
"""Time limit of a request, after its wait for a slot."""
_AGAIN_S = 1.0
MOST_BUILD_S = 3600
_CHUNK_BYTES = 1 << 18
THREADS = 24
"""Size of the client's connection pool."""
_FREEZE_TRIES = 5
"""Freezing fails while new processes start."""
_FIX = "start one (`systemctl start docker`) or say where it is (`DOCKER_HOST=unix:///path/to/docker.sock`)"
BAD_REQUEST, NOT_FOUND, CONFLICT, _NO_ANSWER = 400, 404, 409, 500
_SOCKET = 1 << 24
"""The socket bit of Go's file modes."""
_CACHES = ("active_file", "inactive_file")
_FEWEST, _MOST_REQUESTS, _SLOW_S, _BOTTLENECK_S = 2, 16, 5.0, 15.0
_LOG = logging.getLogger(__name__)
# urllib3 logs tracebacks of truncated responses.
logging.getLogger("urllib3.connection").addFilter(lambda record: record.exc_info is None)

T = TypeVar("T")


class EngineError(Exception):
    """The engine refused a call (HTTP `status`) or did not answer."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_silence(self) -> bool:
        """Whether no answer came, because the connection failed."""
        lost = (requests.RequestException, urllib3.exceptions.HTTPError)
        return self.status is None and isinstance(self.__cause__, lost)


class Ramp:
    """Adaptive concurrency: one call more after a fast one, half as many after others."""

    def __init__(self, most: int, slow_s: float = _SLOW_S) -> None:
        self._most, self._slow_s = most, slow_s
        self._allowed = self._fewest = min(_FEWEST, most)
        self._running = 0
        self._changed = threading.Condition()

    @contextmanager
    def slot(self) -> Generator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._running < self._allowed)
            self._running += 1
        begun, worked = time.monotonic(), False
        try:
            yield
            worked = time.monotonic() - begun < self._slow_s
        finally:
            with self._changed:
                self._running -= 1
                more, fewer = min(self._allowed + 1, self._most), max(self._fewest, self._allowed // 2)
                self._allowed = more if worked else fewer
                self._changed.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    id: str
    digest: str
    env: tuple[str, ...]
    """`NAME=value` pairs."""
    workdir: str = ""
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    id: str
    created: int
    labels: Mapping[str, str]


class Engine:
    """A Docker engine; requests wait for a slot."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._requests, self._is_slow = Ramp(_MOST_REQUESTS), False
        info: dict[str, Any] = self._ask(api.info)
        options = [str(option) for option in info.get("SecurityOptions") or ()]
        self.arch: str = info.get("Architecture", "")
        self.runtime: str = info.get("DefaultRuntime", "") or "container"
        self.maps_users: bool = any(
            name in text for text in options for name in ("name=userns", "name=rootless")
        )
        """Whether user ids are mapped and scarce."""

    def image(self, name: str) -> Image | None:
        try:
            found: dict[str, Any] = self._ask(lambda: self._api.inspect_image(name))
        except EngineError as error:
            if error.status in (BAD_REQUEST, NOT_FOUND):
                return None
            raise
        digests: list[str] = found.get("RepoDigests") or []
        config: dict[str, Any] = found.get("Config") or {}
        env: list[str] = config.get("Env") or []
        return Image(
            id=found["Id"],
            digest=digests[0] if digests else found["Id"],
            env=tuple(env),
            workdir=config.get("WorkingDir") or "",
            volumes=tuple(map(posixpath.normpath, config.get("Volumes") or ())),
        )

    def pull(self, name: str) -> Iterator[dict[str, Any]]:
        """Pull an image and yield events; one with `error` is the last."""
        with _translate_errors():
            yield from self._api.pull(name, stream=True, decode=True)

    def build(self, folder: str, tag: str) -> Iterator[dict[str, Any]]:
        """Build a folder's Dockerfile and yield events; one with `error` is the last."""
        with _translate_errors():
            yield from self._api.build(
                path=folder, tag=tag, rm=True, forcerm=True, decode=True, timeout=MOST_BUILD_S
            )

    def commit(self, container: str, config: Mapping[str, Any]) -> str:
        return self._ask(lambda: self._api.commit(container, conf=config)["Id"], tries=1)

    def remove_image(self, image: str) -> None:
        """Remove an image and none of its untagged parents, which a running build may need."""
        self._ask(lambda: self._api.remove_image(image, force=True, noprune=True))

    def images(self, label: str) -> list[Listed]:
        found: list[dict[str, Any]] = self._ask(lambda: self._api.images(filters={"label": label}))
        return [Listed(id=one["Id"], created=one["Created"], labels=one["Labels"]) for one in found]

    def count_written_bytes(self, container: str) -> int:
        request = partial(self._api.containers, all=True, size=True, filters={"id": container})
        if not (found := self._ask(request, tries=1)):
            raise EngineError(f"no such container: {container}", NOT_FOUND)
        return found[0].get("SizeRw") or 0

    def list_changes(self, container: str) -> list[tuple[str, int]]:
        """Return changed (0), new (1) and removed (2) paths."""
        ask = self._api.diff
        return self._ask(lambda: [(each["Path"], each["Kind"]) for each in ask(container) or ()], tries=1)

    @contextmanager
    def freeze(self, container: str) -> Generator[None]:
        thaw = partial(self._ask, lambda: self._api.unpause(container))
        try:
            try:
                self._ask(lambda: self._api.pause(container), tries=_FREEZE_TRIES)
            except EngineError as error:
                if error.status != CONFLICT:  # the earlier try may have succeeded
                    raise
            yield
        except BaseException:
            with suppress(EngineError):
                thaw()
            raise
        thaw()

    def archive(self, container: str, path: str) -> Generator[bytes]:
        """Yield a tar archive of a path, with its own name at the top.

        Until it is closed or read to its end, the engine answers nothing else about the container.
        """
        url = self._api._url("/containers/{0}/archive", container)
        # `get_archive` does not close unread responses.
        answer = self._ask(lambda: self._api._get(url, params={"path": path}, stream=True), tries=1)
        with closing(answer), _translate_errors():
            self._api._raise_for_status(answer)
            yield from answer.iter_content(_CHUNK_BYTES)

    def is_socket(self, container: str, path: str) -> bool:
        """Whether a path is a socket, which archives leave out."""
        url = self._api._url("/containers/{0}/archive", container)
        ask = partial(self._api.head, url, params={"path": path}, timeout=_TIMEOUT_S)
        state = self._ask(lambda: base64.b64decode(ask().headers["X-Docker-Container-Path-Stat"]))
        return bool(json.loads(state)["mode"] & _SOCKET)

    def put_archive(self, container: str, archive: bytes) -> None:
        if not self._ask(lambda: self._api.put_archive(container, "/", archive), tries=1):
            raise EngineError("the archive was not taken", None)

    def create(self, image: str, command: Sequence[str], host: Mapping[str, Any], **settings: Any) -> str:
        """Create a container that runs only `command`; return its id.

        `host` are arguments of `create_host_config`, `settings` others of `create_container`.
        """
        name = f"turnwise-{secrets.token_hex(8)}"
        try:
            return self._ask(
                lambda: self._api.create_container(
                    image, entrypoint=list(command), command=[], name=name,
                    host_config=self._api.create_host_config(**host),
                    # A proxy's address may contain a password of the host.
                    use_config_proxy=False, **settings,
                )["Id"],
                tries=1,
            )  # fmt: skip
        except EngineError:
            with suppress(EngineError):  # it may exist although the request failed
                self.remove(name)
            raise

    def start(self, container: str) -> None:
        self._ask(lambda: self._api.start(container), tries=1)

    def running(self, container: str) -> bool:
        try:
            return self._ask(lambda: bool(self._api.inspect_container(container)["State"]["Running"]))
        except EngineError as error:
            if error.status == NOT_FOUND:
                return False
            raise

    def counters(self, container: str) -> Counters:
        try:
            with _translate_errors():
                found: dict[str, Any] = self._api.stats(container, stream=False, one_shot=True)
            memory, pids, cpu = found["memory_stats"], found["pids_stats"], found["cpu_stats"]
            kinds: dict[str, int] = memory["stats"]  # the page cache can be dropped
            cached = sum(kinds.get(f"total_{each}", kinds.get(each, 0)) for each in _CACHES)
            return {
                "memory_full": memory["usage"] - cached >= 0.98 * memory["limit"],
                "pids_full": pids["current"] + RESERVED_PIDS >= (pids.get("limit") or math.inf),
                "throttled": cpu["throttling_data"]["throttled_periods"],
                "cpu_s": cpu["cpu_usage"]["total_usage"] / 1e9,
            }
        except (EngineError, KeyError, TypeError):
            return {}

    def first_process(self, container: str) -> int:
        return self._ask(lambda: int(self._api.inspect_container(container)["State"]["Pid"]))

    def open_exec(self, container: str, argv: Sequence[str], user: str) -> tuple[str, socket.socket]:
        """Run a program; return its id and a socket with its framed streams."""

        def run() -> tuple[str, socket.socket]:
            made = self._api.exec_create(container, list(argv), stdin=True, user=user, workdir="/")["Id"]
            raw = self._api.exec_start(made, socket=True)
            try:  # detached from the HTTP client, which would close it
                return made, socket.socket(fileno=raw._sock.detach())
            finally:
                raw._response.close()

        return self._ask(run)

    def exec_code(self, exec_id: str) -> int | None:
        return cast("int | None", self._ask(lambda: self._api.exec_inspect(exec_id)["ExitCode"]))

    def remove(self, container: str) -> None:
        """Kill and remove a container without waiting for a slot."""
        with _translate_errors():
            self._api.remove_container(container, force=True, v=True)

    def containers(self, label: str) -> list[Listed]:
        request = partial(self._api.containers, all=True, filters={"label": label})
        found: list[dict[str, Any]] = self._ask(request)
        return [Listed(id=one["Id"], created=one["Created"], labels=one["Labels"] or {}) for one in found]

    def _ask(self, request: Callable[[], T], *, tries: int = 2) -> T:
        while True:
            begun = time.monotonic()
            try:
                with self._requests.slot(), _translate_errors():
                    return request()
            except EngineError as error:
                tries -= 1
                if not tries or (error.status or _NO_ANSWER) < _NO_ANSWER:
                    raise
            finally:
                took_s = time.monotonic() - begun
                if took_s > _BOTTLENECK_S and not self._is_slow:
                    self._is_slow = True
                    _LOG.warning("the Docker engine is the bottleneck: an answer took %.0f s", took_s)
            time.sleep(_AGAIN_S)


@cache
def connect() -> Engine:
    """Connect as the `docker` command would.

    Raises:
        IsolationError: if no engine answers, or through TLS or SSH.
    """
    client: Any = None
    for left in (1, 0):
        try:
            client = docker.from_env(timeout=_TIMEOUT_S, max_pool_size=THREADS)
            break
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            if not left or "timed out" not in str(error):
                raise IsolationError(f"no Docker engine answers: {error}. To fix it, {_FIX}") from error
    api: Any = client.api
    if not str(api.base_url).startswith(("http+docker://localhost", "http://")):
        raise IsolationError(
            f"the Docker engine at {api.base_url} is reached through TLS or SSH, which cannot carry a "
            "sandbox's session; forward it (`ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`) "
            "and set DOCKER_HOST=unix:///tmp/docker.sock"
        )
    # The client would keep a connection for each URL.
    api.headers["Connection"] = "close"
    api.close()  # idle connections only
    try:
        return Engine(api)
    except EngineError as error:
        raise IsolationError(f"the Docker engine at {api.base_url} refuses: {error}") from error


@contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except docker.errors.APIError as error:
        raise EngineError(str(error.explanation or error), error.status_code) from error
    except EngineError:
        raise
    except Exception as error:  # the client raises anything on invalid responses
        raise EngineError(f"{type(error).__name__}: {error}", None) from error


_STDOUT = 1
_HEADER = struct.Struct(">BxxxL")
_LAST_WORDS_BYTES = 4096


class Splitter:
    """Parses the engine's stream frames incrementally."""

    __slots__ = ("_header", "_left", "_stream")

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self._stream = 0

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        pieces: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                pieces.append((self._stream, piece))
                continue
            missing = _HEADER.size - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == _HEADER.size:
                self._stream, self._left = _HEADER.unpack(self._header)
                self._header.clear()
        return pieces


class Connection:
    """A program's streams: blocking, then attached to an event loop."""

    def __init__(self, sock: socket.socket, exec_id: str = "") -> None:
        self._sock, self.exec_id = sock, exec_id
        self.channel: _EngineChannel | None = None
        self._splitter = Splitter()
        self._inbox = Inbox()
        self._stderr = bytearray()

    @property
    def last_words(self) -> str:
        return self._stderr.decode("utf-8", "replace").strip()

    def send(self, data: bytes, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)
        self._sock.sendall(data)

    def receive(self, timeout_s: float) -> Message:
        self._sock.settimeout(timeout_s)
        while (message := self._inbox.next()) is None:
            data = self._sock.recv(1 << 16)
            if not data:
                raise EOFError
            self._inbox.add(self.take(data))
        return message

    def take(self, data: bytes) -> bytes:
        """Return received stdout; stderr becomes `last_words`."""
        out: list[memoryview] = []
        for stream, piece in self._splitter.feed(data):
            if stream == _STDOUT:
                out.append(piece)
            else:
                self._stderr += piece
                del self._stderr[:-_LAST_WORDS_BYTES]
        return b"".join(out)

    async def attach(self, **judging: Any) -> Channel:
        """Attach to the running event loop; nothing may be unread."""
        self.channel = await _EngineChannel.over(self._sock, self.take, **judging)
        return self.channel

    def close(self) -> None:
        self._sock.close()


class _EngineChannel(Channel):
    is_cut = False
    """Whether the peer closed the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = not self.broken
        super().connection_lost(exc)
