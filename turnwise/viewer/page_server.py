"""The page of a live run, on loopback: one page, its index and its blocks, for who knows the path."""

import asyncio
import itertools
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from aiohttp import web

from environments.record.group_line import LineChecks, decode_group, parse_head
from environments.record.origin import GroupKey
from environments.record.recorder import read_contents, with_contents
from environments.run.run_list import CountedOnce
from tools.errors import ConfigError, RecordError
from turnwise.viewer.artefact_values import LARGEST_SHOWN
from turnwise.viewer.page_values import PageContent, group_values
from turnwise.viewer.record_page import (
    IndexBuilder,
    compressed,
    other_estimators,
    page_template,
    text_of,
    title_of,
)

_BLOCK = re.compile(r"g(\d{1,12})(?:r\d+p\d+)?")
_KEPT_GROUPS = 4
"""Whose blocks are kept; those of others are made again when they are asked for."""
_SLICE_S = 1.0
"""An index is given after this long, whatever is left to read: the page asks again."""
_TAIL_BYTES = 64


class LiveRecord:
    """Index and blocks of a record. Any thread may ask; whatever the file is like, nothing is raised."""

    def __init__(self, path: Path, content: Callable[[], PageContent], others: Sequence[str] | None) -> None:
        """Nothing is read yet; the file may come later.

        Args:
            path: the record.
            content: what a page takes, made anew for each purpose, since it counts.
            others: further estimators; `None`: what suits the recorded one.
        """
        self.path = path
        self._content = content
        self._others = others
        self._one_at_a_time = threading.Lock()
        self._generations = itertools.count()
        self._begin()

    def index(self, after: int = 0) -> bytes:
        """The index as a block, of the groups from this one on."""
        with self._one_at_a_time:
            self._read_on()
            cut = [*self._builder.cut(), *self._trouble]
            index = self._builder.index(cut=cut, live=True)
            return compressed({**index, "groups": index["groups"][after:]})

    def block(self, name: str) -> bytes | None:
        """The block of this name, or `None`."""
        found = _BLOCK.fullmatch(name)
        with self._one_at_a_time:
            place = self._places.get(int(found[1])) if found else None
            if found is None or place is None:
                return None
            number = int(found[1])
            if number not in self._blocks:
                self._blocks[number] = self._blocks_at(number, *place)
            self._blocks.move_to_end(number)
            while len(self._blocks) > _KEPT_GROUPS:
                self._blocks.popitem(last=False)
            return self._blocks[number].get(name)

    def _begin(self) -> None:
        finished: Container[GroupKey] = ()
        with suppress(RecordError):  # reported when its lines are read
            finished = read_contents(self.path).finished
        self._builder = IndexBuilder(
            title=title_of(self.path),
            source=text_of(self.path),
            content=self._content(),
            counts=CountedOnce(finished),
            generation=next(self._generations),
        )
        self._file: tuple[int, int] | None = None
        """Device and inode."""
        self._end, self._tail, self._lines = 0, b"", 0
        self._checks = LineChecks(self.path)
        self._places: dict[int, tuple[int, int]] = {}
        """Where the lines of groups begin, and how long they are."""
        self._blocks: OrderedDict[int, dict[str, bytes]] = OrderedDict()
        self._trouble: list[str] = []

    def _read_on(self) -> None:
        """Take in the lines that were finished since, for a while."""
        until = time.monotonic() + _SLICE_S
        try:
            with self.path.open("rb") as file:
                self._notice_another(file)
                file.seek(self._end)
                for line in file:
                    if not line.endswith(b"\n") or time.monotonic() > until:
                        break
                    self._take(line)
        except OSError as error:
            self._trouble = [f"what came later: {text_of(self.path)} cannot be read ({error.strerror})"]

    def _notice_another(self, file: BufferedReader) -> None:
        """Begin anew where the file was emptied, or is another one."""
        status = os.fstat(file.fileno())
        tail = os.pread(file.fileno(), len(self._tail), self._end - len(self._tail))
        if self._file not in (None, (status.st_dev, status.st_ino)) or tail != self._tail:
            self._begin()
        self._file = status.st_dev, status.st_ino

    def _take(self, line: bytes) -> None:
        self._lines += 1
        place = self._end, len(line)
        self._end += len(line)
        self._tail = line[-_TAIL_BYTES:]
        builder = self._builder
        try:
            if not self._checks.is_new(line, self._lines):
                return
            credited = decode_group(line, self.path, self._lines)
            if not builder.entries:
                builder.others = other_estimators(credited.estimator, self._others)
            if credited.group.fingerprint is not None and not builder.facts:
                builder.facts = parse_head(line, self.path, self._lines).get("origin") or {}
            builder.add(credited, self._lines, _nowhere)
        except RecordError:
            self._trouble.append(f"line {self._lines}, which is malformed")
            return
        self._places[self._lines] = place

    def _blocks_at(self, number: int, start: int, length: int) -> dict[str, bytes]:
        blocks: dict[str, bytes] = {}
        try:
            with self.path.open("rb") as file:
                line = os.pread(file.fileno(), length, start)
            credited = decode_group(line, self.path, number)
            credited = with_contents(credited, self.path, max_bytes=LARGEST_SHOWN)
        except (OSError, RecordError):
            return {}

        def keep(name: str, value: Any) -> None:
            blocks[name] = compressed(value)

        group_values(credited, number, self._content(), (), keep)
        return blocks


def _nowhere(_: str, __: Any) -> None:
    """Blocks are made when they are asked for."""


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
