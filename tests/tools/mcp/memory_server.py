"""An MCP server that keeps what it is given in a file: `MEMORY`, beside its program or where it starts."""

import json
import os
import sys
from pathlib import Path

where = sys.argv[1]
folder = Path(__file__).parent if where == "beside" else Path.cwd()
memory = Path(os.environ.get("MEMORY") or folder / "memory")
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NAMED = {"type": "object", "properties": {}}


def call(tool, arguments):
    """A tool's answer."""
    if tool == "show":
        names = ("HOME", "TMPDIR", "MEMORY", "XDG_CONFIG_HOME", "npm_config_cache")
        return json.dumps({"cwd": str(Path.cwd())} | {name: os.environ.get(name) for name in names})
    known = memory.read_text().splitlines() if memory.exists() else []
    if arguments["text"] in known:
        return "nothing new"
    memory.write_text("\n".join([*known, arguments["text"]]))
    return f"created {arguments['text']}"


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    params = request.get("params") or {}
    if request["method"] == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "memory", "version": "1"}
    elif request["method"] == "tools/list":
        result = {"tools": [{"name": "create", "inputSchema": TEXT}, {"name": "show", "inputSchema": NAMED}]}
    else:
        result = {"content": [{"type": "text", "text": call(params["name"], params.get("arguments") or {})}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
    sys.stdout.flush()
