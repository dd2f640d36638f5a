"""An OpenAI server that streams given messages, for agents that are run without Turnwise."""

import json
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def replaying(script):
    """Its URL; `script` takes the fields of a request and gives a `Message`."""

    async def answer(request):
        fields = await request.json()
        message = script(fields).to_openai()
        calls = [{"index": index, **call} for index, call in enumerate(message.pop("tool_calls", ()))]
        head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": fields["model"]}
        deltas = [{**message, **({"tool_calls": calls} if calls else {})}, {}]
        ends = [None, "tool_calls" if calls else "stop"]
        chunks = [
            head | {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
            for delta, end in zip(deltas, ends, strict=True)
        ]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return web.Response(text="".join([*events, "data: [DONE]\n\n"]), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
