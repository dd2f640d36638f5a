"""An MCP server written by hand: it starts at once, and misbehaves as its argument says and its tools do."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

does = sys.argv[1]
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
NOTHING = {"type": "object", "properties": {}}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
BULKY = {
    "list_much": json.dumps({"content": [{"type": "text", "text": "a"}] * 100_000}),
    "nest": "[" * 300 + "]" * 300,
}
TOOLS = [
    {"name": name, "description": f"To {name}.", "inputSchema": NUMBER if name == "add" else NOTHING}
    for name in (
        "add",
        "say_nothing",
        "die",
        "fail",
        "refuse",
        "talk_nonsense",
        "break_shape",
        "shout",
        "flood",
        "break_text",
        *BULKY,
    )
]
LISTED = {
    "no schema": [{"name": "act"}],
    "properties of a list": [{"name": "act", "inputSchema": {"type": "object", "properties": []}}],
    "long schema": [{**TOOLS[0], "description": "a" * 200_000}],
    "odd name": [{**TOOLS[0], "name": "files/read"}],
    "twice": [TOOLS[0], TOOLS[0]],
}
KEEPING = [{"name": "create", "inputSchema": TEXT}, {"name": "show", "inputSchema": NOTHING}]
LISTED |= {"keeps beside": KEEPING, "keeps here": KEEPING}
count = 0


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def text(words, *, failed=False):
    """The result of a tool."""
    return {"content": [{"type": "text", "text": words}], "isError": failed}


def call(answer, tool, arguments):
    """Answer a call, each tool in its way."""
    global count
    if tool == "add":
        count += arguments["number"]
        send({**answer, "result": text(f"{count} in {os.getpid()}")})
    elif tool == "die":
        os._exit(3)
    elif tool == "fail":
        send({**answer, "result": text("this never works", failed=True)})
    elif tool == "refuse":
        send({**answer, "error": {"code": -32602, "message": "no such argument"}})
    elif tool == "talk_nonsense":
        sys.stdout.write('nonsense\n[[[[\n{"jsonrpc": 1}\n\n')
        send({**answer, "result": text("after nonsense")})
    elif tool == "break_shape":
        send({**answer, "result": {"content": "text"}})
    elif tool == "shout":
        send({**answer, "result": text("a" * 100_000)})
    elif tool == "flood":
        for _ in range(100):
            sys.stdout.write("a" * 100_000)
        sys.stdout.write("\n")
        sys.stdout.flush()


def keep(tool, arguments):
    """Keep a line in a file, `MEMORY` or one beside this program or where it started; or show its folders."""
    if tool == "show":
        names = ("HOME", "TMPDIR", "MEMORY", "XDG_CONFIG_HOME", "npm_config_cache")
        return json.dumps({"cwd": str(Path.cwd())} | {name: os.environ.get(name) for name in names})
    folder = Path(__file__).parent if does == "keeps beside" else Path.cwd()
    memory = Path(os.environ.get("MEMORY") or folder / "memory")
    known = memory.read_text().splitlines() if memory.exists() else []
    if arguments["text"] in known:
        return "nothing new"
    memory.write_text("\n".join([*known, arguments["text"]]))
    return f"created {arguments['text']}"


def break_text(answer):
    """Answer with half a character, and a byte that is no UTF-8."""
    written = json.dumps({**answer, "result": text("\ud800 and %")})
    sys.stdout.buffer.write(written.replace("%", "\xff").encode("latin-1") + b"\n")
    sys.stdout.flush()


def flood():
    """Write without an end, to nobody."""
    while True:
        sys.stdout.write("a" * 100_000 + "\n")


if does == "ends at once":
    sys.exit("no such option: --frobnicate")
if does == "leaves a child":
    subprocess.Popen(["sleep", "3600", *sys.argv[2:]])
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if "id" not in request or does == "answers nothing":
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"protocolVersion": version, "capabilities": {"tools": {}}}
        send({**answer, "result": {**info, "serverInfo": {"name": "raw", "version": "1"}}})
    elif method == "tools/list":
        more = {"nextCursor": "more"} if does == "pages without an end" else {}
        tools = [{**TOOLS[0], "name": f"add_{number}"} for number in range(513)] if does == "many" else TOOLS
        send({**answer, "result": {"tools": LISTED.get(does, tools), **more}})
    elif method == "tools/call" and request["params"]["name"] in BULKY:
        sys.stdout.write(json.dumps(answer)[:-1] + ', "result": ' + BULKY[request["params"]["name"]] + "}\n")
        sys.stdout.flush()
    elif method == "tools/call" and does in ("keeps beside", "keeps here"):
        kept = keep(request["params"]["name"], request["params"].get("arguments"))
        send({**answer, "result": text(kept)})
    elif method == "tools/call":
        if request["params"]["name"] == "break_text":
            break_text(answer)
        call(answer, request["params"]["name"], request["params"].get("arguments") or {})
if does == "floods":
    flood()
if does == "stays":
    time.sleep(3600)
