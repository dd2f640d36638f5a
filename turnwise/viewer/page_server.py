"""Serves the page of a growing record on loopback, below a secret path."""

import asyncio
import itertools
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from environments.record.group_line import LineChecks, decode_group, parse_head
from environments.record.origin import Contents
from environments.record.recorder import with_contents
from environments.run.run_list import CountedOnce
from tools.errors import ConfigError, RecordError
from turnwise.viewer.page_values import LARGEST_SHOWN, PageContent, group_values
from turnwise.viewer.record_page import IndexBuilder, Kind, compress, page_template, text_of, title_of
from turnwise.viewer.runs_page import LiveRuns

_BLOCK = re.compile(r"g(\d{1,12})(?:r\d+p\d+)?")
_KEPT_GROUPS = 4
_SLICE_S = 1.0
"""Longest reading for one index; the page polls for the rest."""
_TAIL_BYTES = 64


class LiveRecord:
    """Index and blocks of a growing record. Thread-safe; no state of the file raises an error."""

    kind: Kind = "record"

    def __init__(self, path: Path, content: Callable[[], PageContent], others: Sequence[str] | None) -> None:
        """Read nothing yet: the file may appear later.

        `content` makes the options for the content, which also count omissions. `others` are estimators for
        comparison; None for grpo, if the record has turn_return.
        """
        self.path, self.title = path, title_of(path)
        self._content = content
        self._others = others
        self._lock = threading.Lock()
        self._generations = itertools.count()
        self._reset()

    def index(self, after: int = 0) -> bytes:
        with self._lock:
            self._read_new_lines()
            index = self._builder.index(cut=[*self._builder.cut(), *self._errors], live=True)
            return compress({**index, "groups": index["groups"][after:]})

    def block(self, name: str) -> bytes | None:
        found = _BLOCK.fullmatch(name)
        with self._lock:
            number = int(found[1]) if found else 0
            if number not in self._places:
                return None
            if number not in self._blocks:
                self._blocks[number] = self._make_blocks(number)
                if len(self._blocks) > _KEPT_GROUPS:
                    del self._blocks[next(iter(self._blocks))]
            return self._blocks[number].get(name)

    def _reset(self) -> None:
        contents = Contents()
        with suppress(OSError), self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                with suppress(RecordError):  # reported when it is read for the page
                    contents.add(parse_head(line, self.path, number))
        self._builder = IndexBuilder(
            title=self.title,
            source=text_of(self.path),
            content=self._content(),
            others=self._others,
            counts=CountedOnce(contents.finished),
            generation=next(self._generations),
        )
        self._inode: tuple[int, int] | None = None
        self._end, self._tail, self._lines = 0, b"", 0
        self._checks = LineChecks(self.path)
        self._places: dict[int, tuple[int, int]] = {}
        """Offset and length of the lines of groups, by number."""
        self._blocks: dict[int, dict[str, bytes]] = {}
        self._errors: list[str] = []

    def _read_new_lines(self) -> None:
        until = time.monotonic() + _SLICE_S
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode = status.st_dev, status.st_ino
                tail = os.pread(file.fileno(), len(self._tail), self._end - len(self._tail))
                if self._inode not in (None, inode) or tail != self._tail:  # replaced or truncated
                    self._reset()
                self._inode = inode
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n") or time.monotonic() > until:
                        break
                    self._add(line)
                    if not self._end:  # a failed group was done again, so all is counted anew
                        self._read_new_lines()
                        return
        except OSError as error:
            self._errors = [f"what came later: {text_of(self.path)} cannot be read ({error.strerror})"]

    def _add(self, line: bytes) -> None:
        start, builder = self._end, self._builder
        self._lines += 1
        self._end += len(line)
        self._tail = line[-_TAIL_BYTES:]
        try:
            if not self._checks.is_new(line, self._lines):
                return
            credited = decode_group(line, self.path, self._lines)
            if credited.group.fingerprint is not None and not builder.facts:
                builder.facts = parse_head(line, self.path, self._lines).get("origin") or {}
            if builder.counts.is_outdated_by(credited):
                self._reset()
                return
            builder.add(credited, self._lines, lambda _name, _value: None)  # blocks are made on request
        except RecordError:
            self._errors.append(f"line {self._lines}, which is malformed")
            return
        self._places[self._lines] = start, len(line)

    def _make_blocks(self, number: int) -> dict[str, bytes]:
        blocks: dict[str, bytes] = {}
        start, length = self._places[number]
        try:
            with self.path.open("rb") as file:
                line = os.pread(file.fileno(), length, start)
            credited = decode_group(line, self.path, number)
            credited = with_contents(credited, self.path, max_bytes=LARGEST_SHOWN)
        except (OSError, RecordError):
            return {}

        def add(name: str, value: Any) -> None:
            blocks[name] = compress(value)

        group_values(credited, number, self._content(), (), add)
        return blocks


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


async def serve_page(record: LiveRecord | LiveRuns, port: int, started: Callable[[str], None]) -> None:
    """Serve the page of a record, or of several runs, on loopback until SIGINT or SIGTERM.

    `started` gets the URL. Its path is secret, since other users of the machine reach loopback.

    Raises:
        ConfigError: if the port is not available.
    """
    try:
        listening = socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {_HOST}:{port}: {error}") from None
    with listening:
        host = f"{_HOST}:{listening.getsockname()[1]}"
        secret = secrets.token_urlsafe(16)
        runner = web.AppRunner(_make_app(record, host, secret), access_log=None, handle_signals=False)
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


def _make_app(record: LiveRecord | LiveRuns, host: str, secret: str) -> web.Application:
    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # DNS rebinding: another site's name may resolve to our address.
        if request.host != host and request.host != host.replace(_HOST, "localhost"):
            raise web.HTTPForbidden(text="not the host that this page is served by\n")
        answer = await handler(request)
        answer.headers.update(_HEADERS)
        return answer

    async def page(_: web.Request) -> web.StreamResponse:
        template = page_template(record.title, live=True, kind=record.kind)
        text = template.before + template.between + template.after
        return web.Response(text=text, content_type="text/html", charset="utf-8")

    async def index(request: web.Request) -> web.StreamResponse:
        after = request.query.get("after", "0")
        if not after.isdecimal() or len(after) > _DIGITS:
            raise web.HTTPBadRequest(text="after: how many groups are known\n")
        return _block(await asyncio.to_thread(lambda: record.index(int(after))))

    async def block(request: web.Request) -> web.StreamResponse:
        content = await asyncio.to_thread(record.block, request.match_info["name"])
        if content is None:
            raise web.HTTPNotFound(text="no such block\n")
        return _block(content)

    app = web.Application(middlewares=[guard])
    app.router.add_get(f"/{secret}/", page)
    app.router.add_get(f"/{secret}/index", index)
    app.router.add_get(f"/{secret}/block/{{name}}", block)
    return app


def _block(content: bytes) -> web.Response:
    is_page = content.startswith(b"<!doctype html")  # of a run, below a board
    return web.Response(body=content, content_type="text/html" if is_page else "application/gzip")
