"""A model server for long conversations that costs little: its ids go on from those of the request before.

    python -m tests.benchmarks.session_server

Prints its base URL; a process of its own, so that nobody's measurement holds its time. A session is told by
the request's seed. Every turn calls the tool `look`. As vLLM does, a reply repeats the prompt's ids.
"""

import asyncio
import re
import socket

import orjson

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trajectory import Message
from tools.calls import ToolCall

CONTENT = "Let me look at the next part of the file before I change anything in it."
ARGUMENTS = '{"path": "src/package/module.py", "line": 120}'
OBSERVED = list(range(300, 390))
"""Ids of a tool result and what stands around it, where the server renders."""
_SEED = re.compile(rb'"seed":(\d+)')
_IDS = re.compile(rb'"prompt":\[([0-9,]*)\]')


class Sessions:
    """Replies as JSON, made of ready pieces."""

    def __init__(self) -> None:
        call = ToolCall(id="call_1", name="look", arguments=ARGUMENTS)
        message = Message(role="assistant", content=CONTENT, tool_calls=(call,))
        ids = ChatMLRenderer.embedded().completion_ids(message)
        self._ids = orjson.dumps(ids)[1:-1]
        self._observed = orjson.dumps(OBSERVED)[1:-1]
        self._rows: dict[bytes, bytearray] = {}
        logprobs = [-0.0625 * (1 + index % 7) for index in range(len(ids))]
        entries = [{"token": "tok", "logprob": each, "bytes": [116], "top_logprobs": []} for each in logprobs]
        chosen = {"index": 0, "finish_reason": "tool_calls", "message": message.to_openai()}
        self._chat = orjson.dumps({**chosen, "logprobs": {"content": entries}, "token_ids": ids})
        self._text = orjson.dumps({"id": "c", "choices": [chosen]})
        chosen = {"index": 0, "finish_reason": "stop", "text": CONTENT, "stop_reason": ids[-1]}
        held = {"tokens": ["tok"] * len(ids), "token_logprobs": logprobs}
        self._completion = orjson.dumps({**chosen, "logprobs": held, "token_ids": ids})[:-1]

    def reply(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"GET"):
            return b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'
        if b"/v1/completions" in head[:40]:
            prompt = _IDS.search(body)
            assert prompt is not None
            return b'{"id":"c","choices":[%b,"prompt_token_ids":[%b]}]}' % (self._completion, prompt[1])
        if b'"model":"text"' in body[:200]:
            return self._text
        seed = _SEED.search(body)
        assert seed is not None
        row = self._rows.setdefault(seed[1], bytearray(b"1"))
        row += b"," + self._observed
        made = b'{"id":"c","choices":[%b],"prompt_token_ids":[%b]}' % (self._chat, row)
        row += b"," + self._ids
        return made


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._read = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(b"\r\n\r\n", 0, 4096)
        if end < 0:
            return
        head = bytes(self._read[:end])
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._read) < whole:
            return
        body = self._sessions.reply(head, bytes(self._read[end + 4 : whole]))
        del self._read[:whole]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def serve() -> None:
    sessions = Sessions()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        server = await asyncio.get_running_loop().create_server(lambda: Connection(sessions), sock=listening)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
