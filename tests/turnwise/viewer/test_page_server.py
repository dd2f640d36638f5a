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


@pytest.mark.parametrize("path", ["", "index", "block/g1r0p0"])
async def test_who_asks_for_another_host_is_refused(url, path):
    status, body, _ = await asked(f"{url}{path}", headers={"Host": "rebound.example"})

    assert (status, b"index" in body) == (403, False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_nothing_can_be_done_but_reading(url, method):
    assert (await asked(f"{url}index", method))[0] == 405


async def test_who_does_not_know_the_secret_finds_nothing(url):
    root = url.rsplit("/", 2)[0]

    assert [(await asked(f"{root}/{path}"))[0] for path in ("", "index", "block/g1")] == [404] * 3


@pytest.mark.parametrize("path", ["block/", "block/g1/", "block/..%2f..%2fr.jsonl", "r.jsonl", "page/dom.js"])
async def test_there_are_no_other_files(url, path):
    assert (await asked(f"{url}{path}"))[0] == 404


@pytest.mark.parametrize("after", ["-1", "x", "9" * 30, "²"])
async def test_a_malformed_question_is_refused(url, after):
    assert (await asked(f"{url}index", params={"after": after}))[0] == 400


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
