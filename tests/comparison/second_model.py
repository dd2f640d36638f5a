"""A chat server on loopback that answers by what it is asked: as player, judge or customer.

python second_model.py PORT
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GUESSES = ["crane", "plant", "river", "stone"]


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "content": None,
        "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}],
    }


def say(text):
    return {"content": text}


def answer(messages, tools):
    """The message that the model writes next."""
    texts = [message.get("content") or "" for message in messages]
    texts = [text if isinstance(text, str) else text[0]["text"] for text in texts]
    whole, after_tool = "\n".join(texts), messages[-1]["role"] == "tool"
    said = sum(message["role"] == "assistant" for message in messages)
    a, b, c = (int(number) for number in (re.findall(r"(\d+) \* (\d+) \+ (\d+)", whole) or [(0, 0, 0)])[0])
    if "Score this description" in texts[-1]:
        return say('{"score": 0.5}')
    if done := re.search(r"###\w+###", whole):
        return say(done[0] if said else "Please cancel order 17.")
    if "multiply" in tools:
        return say(str(a * b + c)) if after_tool else call("multiply", a=a, b=b)
    if "cancel_order" in tools:
        return say("Done.") if after_tool else call("cancel_order", order_id="17")
    if "five letters" in whole:
        return say(GUESSES[said % len(GUESSES)])
    return say(f"\\boxed{{{a * b + c}}}" if "boxed" in whole else f"Draft {said}.")


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tools = {tool["function"]["name"] for tool in asked.get("tools") or ()}
        message = {"role": "assistant", **answer(asked["messages"], tools)}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "c", "created": 0, "model": asked["model"]}
        if asked.get("stream"):
            head["object"] = "chat.completion.chunk"
            parts = [[{"index": 0, "delta": message, "finish_reason": reason}], []]
            events = [{**head, "choices": choices, "usage": None if choices else usage} for choices in parts]
            self._send("".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n")
            return
        choices = [{"index": 0, "message": message, "finish_reason": reason}]
        self._send(json.dumps({**head, "object": "chat.completion", "choices": choices, "usage": usage}))

    def _send(self, text):
        streamed = text.startswith("data:")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streamed else "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Nothing is logged."""


def serving(port=0):
    return ThreadingHTTPServer(("127.0.0.1", port), Answers)


if __name__ == "__main__":
    serving(int(sys.argv[1])).serve_forever()
