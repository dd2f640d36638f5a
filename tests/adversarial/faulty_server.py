"""A model server on loopback that answers soundly, or with a fault that its plan names for this call."""

import asyncio
import hashlib
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.adversarial.body_faults import kinds as body_kinds
from tests.adversarial.fault_kinds import Exchange, Fault
from tests.adversarial.hostile_server import answer, requests
from tests.adversarial.message_faults import POISON
from tests.adversarial.message_faults import kinds as message_kinds
from tests.adversarial.sampled_replies import ANSWERS, PATHS, call_text, sampled
from tests.adversarial.token_faults import chat_kinds, token_kinds
from tests.adversarial.transport_faults import kinds as transport_kinds

_TABLES = (transport_kinds, body_kinds, message_kinds, chat_kinds, token_kinds)
FAULTS = {fault.name: fault for kinds in _TABLES for fault in kinds()}
"""Every kind by its name."""


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def ids_of(message):
    """Ids that stand for a message, the same whoever wrote it down."""
    calls = [
        [call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []
    ]
    drawn = digest([message["role"], message.get("content") or "", calls])
    return [256 + byte for byte in drawn[: 1 if message["role"] == "tool" else 8]]


@dataclass(kw_only=True)
class Plan:
    """What becomes of one call."""

    fault: Fault | None = None
    tries: int = 0
    """Requests that the fault is played for; the next one is answered soundly."""
    done: bool = False
    """Whether a sound answer ends the rollout in place of calling the tool."""


@dataclass
class Call:
    """One completion that was asked for, however often."""

    plan: Plan
    token: str
    """What the answer has the tool called with."""
    requests: int = 0


@dataclass
class FaultyServer:
    plan_of: object
    """Gives the plan of a call, by 32 bytes that are its own."""
    calls: dict = field(default_factory=dict)
    url: str = ""
    serving: set = field(default_factory=set)

    async def serve(self, reader, writer):
        self.serving.add(task := asyncio.current_task())
        try:
            async for _, path, _, body in requests(reader):
                if not await self._answer(path.partition("?")[0], body, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.serving.discard(task)
            writer.close()

    async def left(self):
        """Until nobody is connected any more."""
        if self.serving:
            await asyncio.wait(set(self.serving))

    async def _answer(self, path, body, reader, writer):
        if path == "/v1/models":
            writer.write(answer({"data": [{"id": "m"}]}))
            return True
        wire = PATHS.get(path, "chat" if path == "/v1/chat/completions" else None)
        if wire is None:
            writer.write(answer({"error": {"message": "nothing here"}}, status=404))
            return True
        exchange, call = self._exchange(wire, json.loads(body), reader, writer)
        if call.plan.fault is not None and call.requests <= call.plan.tries:
            return await call.plan.fault.play(exchange)
        await exchange.send(answer(exchange.content))
        return True

    def _exchange(self, wire, asked, reader, writer):
        """The exchange with a sound reply, and its call."""
        wire = ("sglang", "chat") if "input_ids" in asked and wire == "chat" else wire
        sampling = asked.get("sampling_params", asked)
        seed = sampling.get("seed", sampling.get("sampling_seed"))
        if wire == "chat":
            call = self._call(wire, [asked["messages"], seed])
            reply = reply_to(asked, call)
            return Exchange(reader=reader, writer=writer, reply=reply), call
        prompt = next(asked[name] for name in ("prompt", "token_ids", "input_ids") if name in asked)
        call = self._call(wire, [prompt, seed])
        made = sampled("done" if call.plan.done else call_text(call.token), prompt)
        reply = ANSWERS[wire](made)
        return Exchange(reader=reader, writer=writer, reply=reply, sampled=made, write=ANSWERS[wire]), call

    def _call(self, wire, names):
        key = digest(names)
        if key not in self.calls:
            plan = self.plan_of(key, wire)
            once = plan.fault is None or plan.fault.runs or plan.fault.expected == "retried"
            self.calls[key] = Call(plan=plan, token=f"{'token' if once else POISON}-{key.hex()[:16]}")
        self.calls[key].requests += 1
        return self.calls[key]


def reply_to(asked, call):
    """The answer of a server as vLLM is one."""
    key = call.token.partition("-")[2]
    arguments = json.dumps({"token": call.token})
    function = {"id": f"call-{key}", "type": "function", "function": {"name": "note", "arguments": arguments}}
    message = {"role": "assistant", "content": "done" if call.plan.done else ""}
    if not call.plan.done:
        message["tool_calls"] = [function]
    sampled = ids_of(message)
    return {
        "id": f"chatcmpl-{key}",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "stop" if call.plan.done else "tool_calls",
                "logprobs": {"content": [{"token": "?", "logprob": -0.5} for _ in sampled]},
                "token_ids": sampled,
            }
        ],
        "prompt_token_ids": [id for message in asked["messages"] for id in ids_of(message)],
        "usage": {"prompt_tokens": 1, "completion_tokens": len(sampled)},
    }


@asynccontextmanager
async def faulty(plan_of):
    server = FaultyServer(plan_of)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
    async with listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        yield server
        for each in server.serving:
            each.cancel()
