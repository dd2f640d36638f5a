"""Requests that no client should send: a 400 in the API's own shape, on one line, and the agent goes on."""

import asyncio
import json
import time
from urllib.parse import urlsplit

import pytest

from tests.environments.rollout.agents.recorded import Talk, played, post, roll_out, user

WRONG = (
    [],
    {},
    "x",
    5,
    -1,
    True,
    1.5,
    [None],
    [[]],
    [5],
    [{}],
    {"type": []},
    {"type": {}},
    {"type": "none such"},
)
"""Values that are wrong for most fields; a field may take some of them."""
ROLES = [{"role": role, "content": "x"} for role in (None, 5, [], {}, "x", "tools")]
CONTENTS = [
    {"role": role, "content": content}
    for role in ("system", "user", "assistant", "tool")
    for content in (5, {}, [5], [{"type": 5}], [{"type": "image"}], [{"type": "text", "text": 5}])
]
CALLS = [
    {"role": "assistant", "content": None, "tool_calls": calls}
    for calls in ("x", {}, [5], [{}], [{"id": 5}], [{"id": "a", "function": 5}], [{"function": {"name": 5}}])
]
CHAT = [
    *({"messages": [user("x"), each, user("y")]} for each in (5, "x", [], *ROLES, *CONTENTS, *CALLS)),
    *({"messages": [{"role": "tool", "tool_call_id": each, "content": "x"}]} for each in (5, [], {})),
    {"messages": [user("x"), {"role": "assistant", "content": "a"}]},
    {"messages": [{"role": "user"}]},
]
BLOCKS = [[{"type": "tool_result", "tool_use_id": each, "content": "x"}] for each in (5, [], {})] + [
    [{"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "a", "content": "x"}],
    [{"type": "tool_result", "tool_use_id": "a", "content": 5}],
    [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}],
]
MESSAGES = [
    *CHAT,
    *({"messages": [user("x"), user(each)]} for each in BLOCKS),
    *({"system": each} for each in (5, {"type": "image"}, [5], [{"type": "image"}])),
    {"thread": {"type": "create"}},
]
ITEMS = [
    *(5, "x", [], {}),
    *(
        {"type": each}
        for each in (5, [], {}, "none such", "item_reference", "web_search_call", "function_call")
    ),
    *({"type": "message", **each} for each in (*ROLES, *CONTENTS)),
    *({"type": "function_call", "call_id": "a", "name": each, "arguments": "{}"} for each in (5, [], {}, "")),
    *({"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"} for each in (5, [], {})),
    *({"type": "function_call_output", "call_id": each, "output": "x"} for each in (5, [], {})),
    *(
        {"type": "function_call_output", "call_id": "a", "output": each}
        for each in (None, 5, {}, [5], [{"type": 5}])
    ),
    {"type": "reasoning", "summary": [5]},
    {"type": "reasoning", "content": [[5]]},
]
RESPONSES = [
    *({"input": [user("x"), each, user("y")]} for each in ITEMS),
    *({"input": each} for each in (5, {}, [], "", True, [{"type": "reasoning", "summary": []}])),
    {"input": [user("x"), {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]},
    *({"instructions": each} for each in (5, {"type": "image"}, [5])),
    *({name: "x"} for name in ("previous_response_id", "conversation", "prompt")),
    {"background": True},
]
FIELDS = [
    *({"model": each} for each in ([], {}, 5, "m" * 2000)),
    *({"tools": each} for each in WRONG[2:]),
    *({"tools": [{"name": each}]} for each in (None, 5, [], {})),
    {"tools": [{"name": "f"}] * 1001},
]
APIS = {
    "/chat/completions": ({"messages": [user("x")]}, [*FIELDS, *CHAT, {"max_tokens": 0}]),
    "/messages": ({"messages": [user("x")], "max_tokens": 9}, [*FIELDS, *MESSAGES, {"max_tokens": "9"}]),
    "/responses": ({"input": "x"}, [*FIELDS, *RESPONSES, {"max_output_tokens": 1.5}]),
}
BODIES = (
    b"", b"nothing", b"[]", b"5", b"{", b'{"input": "x"', b'{"messages": "\xff"}', b"[" * 9000,
    b'{"input": [' + b"{}," * 1_000_000 + b"{}]}",
)  # fmt: skip


@pytest.mark.parametrize("path", APIS)
async def test_a_malformed_request_is_a_400_in_the_shape_of_its_api(path):
    least, wrong = APIS[path]
    bodies = [*BODIES, *(json.dumps({"model": "m", **least, **fields}).encode() for fields in wrong)]
    assert len(bodies) >= 60
    odd = []

    async def play(self, item, ctx):
        for body in bodies:
            status, answer, _ = await post(ctx.endpoint, body, path)
            error = answer.get("error") or {}
            is_line = "\n" not in error.get("message", "\n")
            shaped = (
                answer.get("type") == "error" if path == "/messages" else {"param", "code"} <= error.keys()
            )
            if (status, error.get("type"), is_line, shaped) != (400, "invalid_request_error", True, True):
                odd.append((body[:200], status, str(answer)[:200]))
        status, answer, _ = await post(ctx.endpoint, {"model": "m", **least}, path)
        assert status == 200, answer

    credited = await roll_out(played(Talk, play), max_turns=200)
    assert odd == []
    (trajectory,) = credited.group.trajectories
    assert trajectory.agent.error == ""
    assert trajectory.agent.counts["refused"] == len(bodies)


@pytest.mark.parametrize("path", APIS)
async def test_a_request_that_is_cut_off_does_not_delay_the_next(path):
    least, _ = APIS[path]
    waited = []

    async def play(self, item, ctx):
        url = urlsplit(ctx.endpoint.base_url)
        head = (
            f"POST {url.path}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ctx.endpoint.api_key}\r\n"
        )
        for rest in ("Content-Length: 99\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n9\r\n{", "Content-"):
            _, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write((head + rest).encode())
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
            started = time.monotonic()
            status, _, _ = await post(ctx.endpoint, {"model": "m", **least}, path)
            waited.append((status, time.monotonic() - started))

    (trajectory,) = (await roll_out(played(Talk, play))).group.trajectories
    assert trajectory.agent.error == ""
    assert all(status == 200 and wait_s < 25 for status, wait_s in waited)  # a body may take 30 s
