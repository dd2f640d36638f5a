"""An MCP server over HTTP, written by hand, whose one tool gives more than a session should take."""

import gzip
import json
import sys

from aiohttp import web

PARTS = {"content": [{"type": "text", "text": "a"}] * 100_000}
RESULTS = {
    "parts": PARTS,
    "parts in an event": PARTS,
    "parts that are none": {"content": [{"type": "x"}] * 100_000},
    "nested": {"content": json.loads("[" * 300 + "]" * 300)},
    "long": {"content": [{"type": "text", "text": "a" * (9 << 20)}]},
    "much text": {"content": [{"type": "text", "text": "[{," * 1_000_000}]},
}
PACKED = gzip.compress(b" " * (512 << 20), 1)


async def answer(request):
    """The answer to one message of a client."""
    asked = await request.json()
    if "id" not in asked:
        return web.Response(status=202)
    what = asked.get("params", {}).get("arguments", {}).get("what")
    if what == "packed":
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return web.Response(body=PACKED, headers=headers)
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "bulky", "version": "1"}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "give", "inputSchema": {"type": "object"}}]}
    else:
        result = RESULTS[what]
    text = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
    if what == "parts in an event":
        return web.Response(text=f"event: message\ndata: {text}\n\n", content_type="text/event-stream")
    return web.Response(text=text, content_type="application/json")


if __name__ == "__main__":
    app = web.Application()
    app.router.add_post("/mcp", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
