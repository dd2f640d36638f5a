"""A model server that costs next to nothing: every POST gets the same bytes, after a fixed latency.

    python -m tests.benchmarks.canned_server [--latency-s 1] [--prompt-tokens 600] [--sampled-tokens 64]

Prints its base URL; a process of its own, so that nobody's measurement holds its time.
"""

import argparse
import asyncio
import json
import socket


def chat_reply(prompt_tokens, sampled_tokens, *, call=True):
    """A reply of vLLM's with ids and logprobs; it calls a tool, or says that it is done."""
    entries = [
        {"token": "tok", "logprob": -0.25, "bytes": [116, 111, 107], "top_logprobs": []}
        for _ in range(sampled_tokens)
    ]
    function = {"name": "look", "arguments": '{"path": "src/main.py", "lines": 40}'}
    calls = [{"id": "call_1", "type": "function", "function": function}] if call else []
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
                "finish_reason": "tool_calls" if call else "stop",
                "logprobs": {"content": entries},
                "token_ids": list(range(1000, 1000 + sampled_tokens)),
            }
        ],
        "prompt_token_ids": list(range(prompt_tokens)),
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": sampled_tokens, "total_tokens": 1},
    }


def completions_reply(token_ids):
    """A reply of vLLM's `/v1/completions` with ids and logprobs; the prompt's are those of the request."""
    sampled = len(token_ids)
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "Let me look.",
                "finish_reason": "stop",
                "stop_reason": token_ids[-1],
                "logprobs": {
                    "tokens": ["tok"] * sampled,
                    "token_logprobs": [-0.25] * sampled,
                    "top_logprobs": [{}] * sampled,
                    "text_offset": [0] * sampled,
                },
                "token_ids": token_ids,
                "prompt_token_ids": "PROMPT",
            }
        ],
        "usage": {"prompt_tokens": "COUNT", "completion_tokens": sampled, "total_tokens": 1},
    }


def http(body):
    content = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def growing_replies(prompt_tokens, sampled_tokens, added_tokens, turns):
    """The replies of a conversation, each prompt of which begins with the one before and what was sampled."""
    replies, ids = [], list(range(1000, 1000 + prompt_tokens))
    for turn in range(turns):
        reply = chat_reply(0, sampled_tokens, call=turn < turns - 1)
        sampled = list(range(len(ids), len(ids) + sampled_tokens))
        reply["prompt_token_ids"], reply["choices"][0]["token_ids"] = ids, sampled
        replies.append(http(reply))
        ids = [*ids, *sampled, *range(added_tokens)]
    return replies


class Canned(asyncio.Protocol):
    """One connection. A request whose conversation has `last` tool results is answered without a call."""

    def __init__(self, options):
        self.latency_s = options.latency_s
        self.last = options.last
        self.call = http(chat_reply(options.prompt_tokens, options.sampled_tokens))
        self.done = http(chat_reply(options.prompt_tokens, options.sampled_tokens, call=False))
        self.growing = REPLIES
        reply = completions_reply([int(each) for each in options.sampled_ids.split(",")])
        self.ids = json.dumps(reply, separators=(",", ":")).encode()
        self.models = http({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})
        self.read = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.read += data
        while (end := self.read.find(b"\r\n\r\n")) >= 0:
            head = self.read[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.read) < end + 4 + length:
                return
            body, self.read = self.read[end + 4 : end + 4 + length], self.read[end + 4 + length :]
            self.answer(head, body)

    def answer(self, head, body):
        if head.startswith(b"get"):
            made = self.models
        elif head.startswith(b"post /v1/completions"):
            start = body.index(b'"prompt":[') + 9
            prompt = body[start : body.index(b"]", start) + 1]
            count = str(prompt.count(b",") + 1).encode()
            made = http(self.ids.replace(b'"PROMPT"', prompt).replace(b'"COUNT"', count))
        elif self.growing:
            made = self.growing[body.count(b'"role":"tool"')]
        else:
            made = self.done if self.last and body.count(b'"role":"tool"') >= self.last else self.call
        if self.latency_s:
            asyncio.get_running_loop().call_later(self.latency_s, self.write, made)
        else:
            self.write(made)

    def write(self, made):
        if not self.transport.is_closing():
            self.transport.write(made)


REPLIES = []


async def serve(options):
    if options.added_tokens:
        sizes = options.prompt_tokens, options.sampled_tokens, options.added_tokens
        REPLIES.extend(growing_replies(*sizes, options.last + 1))
    with socket.create_server(("127.0.0.1", 0), backlog=8192) as listening:
        server = await asyncio.get_running_loop().create_server(lambda: Canned(options), sock=listening)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--prompt-tokens", type=int, default=600)
    parser.add_argument("--sampled-ids", default="5,6,7", help="what /completions samples")
    parser.add_argument("--sampled-tokens", type=int, default=64)
    parser.add_argument(
        "--added-tokens", type=int, default=0, help="of each tool result, if prompts are to grow"
    )
    parser.add_argument(
        "--last", type=int, default=0, help="tool results after which no call comes; 0: never"
    )
    asyncio.run(serve(parser.parse_args()))
