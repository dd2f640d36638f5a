"""What the endpoint refuses, in the shapes of the APIs, and who may ask it."""

import asyncio
import json
import socket
from contextlib import suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp

from environments.rollout.agents import endpoint
from tests.environments.rollout.agents.recorded import Talk, ask, played, post, roll_out, user
from tests.tables import cases

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


async def _answers(requests, path="/chat/completions"):
    """Status and error of each request of one agent, which then makes one that works."""
    got = []

    async def play(self, item, ctx):
        for body in requests:
            status, answer, headers = await post(ctx.endpoint, body, path)
            got.append((status, answer, headers.get("x-should-retry")))
        await ask(ctx.endpoint, user("x"))

    credited = await roll_out(played(Talk, play))
    assert len(credited.group.trajectories) == 1
    return got


@cases(
    "fields, named",
    [
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{}]}, "tools"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_and_named(fields, named):
    ((status, answer, retried),) = await _answers([{"model": "m", "messages": [user("x")], **fields}])
    error = answer["error"]
    assert (status, error["type"], error["param"], retried) == (400, "invalid_request_error", named, "false")


async def test_the_messages_api_has_its_own_shape_of_errors_and_refuses_stateful_threads():
    body = {"model": "m", "max_tokens": 9, "messages": [user("x")]}
    containers, threads = await _answers(
        [{**body, "container": "x"}, {**body, "thread": {"type": "create"}}], "/messages"
    )
    assert containers[1] == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": 'container="x" cannot be honoured here; leave it out',
        },
    }
    assert threads[1]["error"]["details"]["error_code"] == "thread_unsupported_request"


@cases(
    "body",
    [
        b"nothing",
        b"[]",
        b'{"messages": {}}',
        b'{"messages": [1]}',
        b'{"messages": "\xff"}',
        b"[" * 9000,
        b'{"a":[' + b"[]," * 200_000 + b"0]}",
        b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}",
        json.dumps({"messages": [user("x")], "model": "m" * 2000}).encode(),
        json.dumps({"messages": [user("x")], "tools": [{"name": "f"}] * 1001}).encode(),
    ],
)
async def test_garbage_and_what_would_keep_the_loop_busy_is_a_400_and_costs_nothing(body):
    ((status, answer, _),) = await _answers([body])
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


async def test_a_body_of_100_mb_is_refused():
    ((status, answer, _),) = await _answers([b'{"messages": "' + b"x" * 100_000_000 + b'"}'])
    assert status == 413
    assert "32 MiB" in answer["error"]["message"]


async def test_a_connection_that_comes_as_the_rollout_ends_is_closed(caplog):
    async with endpoint.EndpointServer().rollout(lambda key: SimpleNamespace(), "m") as (_, opened):
        port = urlsplit(opened.base_url).port
        await asyncio.sleep(0)
        client = socket.create_connection(("127.0.0.1", port), timeout=20)
        await asyncio.sleep(0)  # so that the loop has seen it in the turn in which the rollout ends
    with client, suppress(ConnectionResetError):
        assert client.recv(1) == b""
    assert caplog.records == []


async def test_a_rollout_ends_although_a_connection_waits_for_room():
    clients = []
    async with asyncio.timeout(60):
        async with endpoint.EndpointServer().rollout(lambda key: SimpleNamespace(), "m") as (_, opened):
            port = urlsplit(opened.base_url).port
            for _ in range(endpoint._MAX_CONNECTIONS + 2):
                clients.append(await asyncio.open_connection("127.0.0.1", port))
                await asyncio.sleep(0)
    for reader, writer in clients:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_an_agent_sees_only_its_own_rollout():
    endpoints, got = [], []

    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        endpoints.append(ctx.endpoint)
        while len(endpoints) < 2:
            await ask(ctx.endpoint, user("x"))
        other = next(each for each in endpoints if each is not ctx.endpoint)
        for key in (ctx.endpoint.api_key, "", "sk-guess"):
            status, answer, _ = await post(other, {"messages": [user("x")]}, key=key)
            got.append((status, answer["error"]["code"]))

    await roll_out(played(Talk, play), group_size=2, max_turns=1000)
    assert set(got) == {(401, "invalid_api_key")}


async def test_after_the_end_nothing_answers_an_agent_while_others_go_on():
    ended, got = asyncio.Event(), []

    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        got.append(ctx.endpoint)
        if len(got) == 1:
            ended.set()
            return
        await ended.wait()
        with suppress(aiohttp.ClientError):
            while True:
                assert (await post(got[0], {"messages": [user("late")]}))[0] in (200, 400)
        await ask(ctx.endpoint, user("x"))
        got.append("went on")

    await roll_out(played(Talk, play), group_size=2)
    assert got[-1] == "went on"


async def test_models_are_listed_and_other_paths_named():
    got = {}

    async def play(self, item, ctx):
        headers = {"Authorization": f"Bearer {ctx.endpoint.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for path in ("/models", f"/models/{ctx.endpoint.model}", "/models/other", "/nothing"):
                async with session.get(ctx.endpoint.base_url + path) as answer:
                    got[path] = answer.status, json.loads(await answer.text())
        await ask(ctx.endpoint, user("x"))

    await roll_out(played(Talk, play))
    assert [each["id"] for each in got["/models"][1]["data"]] == ["scripted:0.6"]
    assert [status for status, _ in got.values()] == [200, 200, 404, 404]
    assert "POST /v1/chat/completions" in got["/nothing"][1]["error"]["message"]


class Waiting(Talk):
    async def setup(self):
        self.asked, self.may = asyncio.Semaphore(0), asyncio.Event()

    async def scripted_choices(self, item, messages, tools, skill):
        self.asked.release()
        await self.may.wait()
        return Talk.scripted_choices(self, item, messages, tools, skill)


async def _open(endpoint, request=b"", count=1):
    address = endpoint.base_url.split("/")[2].split(":")
    opened = [await asyncio.open_connection(*address) for _ in range(count)]
    for _, writer in opened:
        writer.write(request)
    return opened


def _request(endpoint, path, body=b""):
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nx-api-key: {endpoint.api_key}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_the_requests_of_sixteen_connections_are_answered_at_once_and_the_others_then():
    served = []

    async def play(self, item, ctx):
        body = json.dumps({"messages": [user("x")]}).encode()
        opened = await _open(ctx.endpoint, _request(ctx.endpoint, "chat/completions", body), 40)
        for _ in range(16):
            await self.asked.acquire()
        served.append(self.asked.locked())
        self.may.set()
        for reader, _ in opened:
            served.append(await reader.readline())

    await roll_out(played(Waiting, play), max_turns=100)
    assert served == [True, *[b"HTTP/1.1 200 OK\r\n"] * 40]


async def test_idle_connections_are_closed_for_new_ones(monkeypatch):
    monkeypatch.setattr(endpoint, "_IDLE_S", 0.0)
    closed = []

    async def play(self, item, ctx):
        opened = await _open(ctx.endpoint, b"", 16)
        await ask(ctx.endpoint, user("x"))
        closed.append(await opened[0][0].read())

    await roll_out(played(Talk, play))
    assert closed == [b""]


async def test_bytes_that_are_not_http_are_counted_and_logged_nowhere(caplog):
    async def play(self, item, ctx):
        for sent in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x" * 100_000):
            ((reader, _),) = await _open(ctx.endpoint, sent)
            assert b" 400 " in await reader.readline()
        await ask(ctx.endpoint, user("x"))

    credited = await roll_out(played(Talk, play))
    assert credited.group.trajectories[0].agent.counts == {"refused": 2}
    assert caplog.records == []


async def test_unknown_fields_are_counted_under_twenty_names_of_a_hundred_characters():
    async def play(self, item, ctx):
        for part in range(3):
            fields = {f"{part}-{number}{'y' * 5000}": 0 for number in range(15)}
            await ask(ctx.endpoint, user("x"), **fields)

    (trajectory,) = (await roll_out(played(Talk, play))).group.trajectories
    counts = trajectory.agent.counts
    assert (len(counts), sum(counts.values())) == (20, 45)
    assert max(map(len, counts)) <= len("ignored ") + 100


async def test_what_the_requests_of_a_rollout_hold_together_is_bounded():
    async def play(self, item, ctx):
        for number in range(3):
            status, _, _ = await post(ctx.endpoint, {"messages": [user(f"{number}" * 30_000_000)]})
            got.append(status)
        await ask(ctx.endpoint, user("x"))

    got = []
    assert len((await roll_out(played(Talk, play))).group.trajectories) == 1
    assert got == [400, 400, 413]
