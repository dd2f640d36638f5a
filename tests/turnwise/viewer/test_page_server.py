"""What the server of a live page answers, and whom."""

import asyncio
import gzip
import json
import os
import signal
import socket

import aiohttp
import pytest

from environments.testing import group_of
from tests.tables import cases
from tests.turnwise.viewer.pages import content, recorded
from turnwise.viewer.page_server import LiveRecord, serve_page


@pytest.fixture
async def url(tmp_path):
    record = recorded(tmp_path / "r.jsonl", group_of([[1.0], [0.0]]))
    started = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_page(LiveRecord(record, content, None), 0, started.set_result))
    yield await started
    os.kill(os.getpid(), signal.SIGTERM)
    await serving


async def asked(url, method="GET", **options):
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
        return answer.status, await answer.read(), answer.headers


async def test_it_gives_the_page_its_index_and_its_blocks(url):
    _, page, _ = await asked(url)
    _, index, _ = await asked(f"{url}index")
    _, block, _ = await asked(f"{url}block/g1r0p0")

    assert b"<!doctype html>" in page
    assert len(json.loads(gzip.decompress(index))["groups"]) == 1
    assert len(json.loads(gzip.decompress(block))["turns"]) == 1


PATHS = ("", "index", "block/g1r0p0")
REFUSED = {
    "another host": (403, PATHS, {"headers": {"Host": "rebound.example"}}),
    "without the secret": (404, [f"../{path}" for path in PATHS], {}),
    "other files": (404, ["block/", "block/g1/", "block/..%2f..%2fr.jsonl", "r.jsonl", "page/dom.js"], {}),
    **{method: (405, ["index"], {"method": method}) for method in ("POST", "PUT", "DELETE", "OPTIONS")},
    **{f"after {n}": (400, ["index"], {"params": {"after": n}}) for n in ("-1", "x", "9" * 30, "²")},
}


@cases(("status", "paths", "options"), REFUSED.values(), ids=REFUSED)
async def test_nothing_but_reading_its_own_page_with_its_secret_is_permitted(url, status, paths, options):
    for path in paths:
        found, body, _ = await asked(f"{url}{path}", **options)
        assert (found, b"index" in body) == (status, False), path


async def test_nobody_may_frame_it_or_keep_it(url):
    headers = (await asked(url))[2]

    assert headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


async def test_it_listens_on_loopback_alone(url):
    port = aiohttp.client.URL(url).port
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}

    for address in others - {"127.0.0.1"}:
        if not address.startswith("127."):
            with pytest.raises(OSError, match="refused"), socket.create_connection((address, port)):
                pass
    assert url.startswith("http://127.0.0.1:")
