"""One client's loop, measured in this process: CPU per call with so many calls in flight.

    python tests/benchmarks/client_loops.py CLIENT URL IN_FLIGHT CALLS

Prints milliseconds.
"""

import asyncio
import os
import sys
import time

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"To {name} at a file of the repository, from a line on.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in ("look", "edit")
]
FUNCTION = {"name": "look", "arguments": '{"path": "src/main.py"}'}
CALL = {"id": "call_0", "type": "function", "function": FUNCTION}
MESSAGES = [
    {"role": "system", "content": "You repair programs. " * 20},
    {"role": "user", "content": "The tests fail, find out why and repair it. " * 20},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "content": "def main():\n    return 1\n" * 40, "tool_call_id": "call_0"},
]
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024, "logprobs": True, "top_logprobs": 0}


async def floor(url, in_flight):
    """aiohttp and orjson, and nothing else."""
    body = {"model": "m", "messages": MESSAGES, "tools": TOOLS, **SAMPLING, "return_token_ids": True}
    return _plain_call(f"{url}/chat/completions", body)


async def token_floor(url, in_flight):
    """The same, with ids for a prompt."""
    renderer, request, _ = token_loop()
    ids = renderer.prompt_ids(request.messages, request.tools)
    body = {"model": "m", "prompt": ids, "max_tokens": 1024, "logprobs": 0, "return_token_ids": True}
    return _plain_call(f"{url}/completions", body)


def _plain_call(url, body):
    import aiohttp
    import orjson

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def call():
        async with session.post(url, data=orjson.dumps(body)) as response:
            return orjson.loads(await response.read())["choices"][0]

    return call


def _ours():
    from environments.trajectory import Message
    from tools.calls import ToolCall, ToolSpec

    messages = tuple(
        Message(
            role=each["role"],
            content=each["content"],
            tool_call_id=each.get("tool_call_id"),
            tool_calls=tuple(ToolCall(id=c["id"], **c["function"]) for c in each.get("tool_calls", [])),
        )
        for each in MESSAGES
    )
    return messages, tuple(ToolSpec(**each["function"]) for each in TOOLS)


async def chat(url, in_flight):
    """Ours: `ChatPolicy.complete` and the check that every completion passes."""
    from environments.policy.base import CompletionRequest
    from environments.policy.chat import ChatPolicy
    from environments.policy.inference.model_server import ModelServer
    from environments.policy.rendering.chatml import ChatMLRenderer
    from environments.rollout.rows import check_completion

    server = ModelServer(base_url=url, api_key="k", max_concurrency=in_flight)
    policy = ChatPolicy(server=server, model="m", renderer=ChatMLRenderer.embedded())
    messages, tools = _ours()

    async def call():
        request = CompletionRequest(messages=messages, tools=tools, seed=1)
        return check_completion(await policy.complete(request), request, vocabulary_size=None)

    return call


def token_loop():
    """A row of two messages and a turn, what a tool said then, and what the model samples next."""
    from environments.policy.base import CompletionRequest, OpenRow
    from environments.policy.rendering.chatml import ChatMLRenderer
    from environments.trajectory import Message
    from tools.calls import ToolCall

    renderer, row, (messages, tools) = ChatMLRenderer.embedded(), OpenRow(), _ours()
    turn = Message(
        role="assistant",
        content="Let me look at what the program does there, line by line. " * 2,
        tool_calls=(ToolCall(id="call_0", **FUNCTION),),
    )
    row.extend(renderer.prompt_ids(messages[:2], tools), renderer.completion_ids(messages[2]), messages=3)
    request = CompletionRequest(messages=messages, tools=tools, seed=1, row=row)
    return renderer, request, renderer.completion_ids(turn)


async def tokens(url, in_flight):
    """Ours: `TokenPolicy.complete`, which goes on from an open row, and the same check."""
    from environments.policy.inference.model_server import ModelServer
    from environments.policy.inference.token_wires import WIRES
    from environments.policy.token_policy import TokenPolicy
    from environments.rollout.rows import check_completion

    renderer, request, _ = token_loop()
    server = ModelServer(base_url=url, api_key="k", max_concurrency=in_flight)
    policy = TokenPolicy(server=server, model="m", renderer=renderer, wire=WIRES["vllm", "completions"])

    async def call():
        return check_completion(await policy.complete(request), request, vocabulary_size=2048)

    return call


async def openai(url, in_flight):
    """The `openai` package's client."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="k")

    async def call():
        return await client.chat.completions.create(
            model="m", messages=MESSAGES, tools=TOOLS, **SAMPLING, extra_body={"return_token_ids": True}
        )

    return call


LOOPS = (floor, token_floor, chat, tokens, openai)
CLIENTS = {each.__name__: each for each in LOOPS}


async def measured(client, url, in_flight, calls):
    call = await client(url, in_flight)
    left = in_flight + calls
    started_s = None

    async def worker():
        nonlocal left, started_s
        while left > 0:
            left -= 1
            await call()
            if left <= calls and started_s is None:
                started_s = time.process_time()

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return (time.process_time() - started_s) / calls


if __name__ == "__main__":
    name, url, in_flight, calls = sys.argv[1:]
    print(1000 * asyncio.run(measured(CLIENTS[name], url, int(in_flight), int(calls))), flush=True)
    os._exit(0)  # connections are the server's to find closed
