"""Token policies over real HTTP against the mock servers, for tests."""

from contextlib import asynccontextmanager

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.token_wires import WIRES
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.token_policy import TokenPolicy
from environments.trajectory import Message
from tests.equipment.running_server import running_server
from tools.calls import ToolSpec

RENDERER = ChatMLRenderer.embedded()
SYSTEM = Message(role="system", content="Be brief. ä<|im_end|>")
USER = Message(role="user", content="Count the files.")
TERMINAL = ToolSpec(
    name="terminal",
    description="Run a “command”.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
ALL_WIRES = sorted(WIRES)


def token_policy(base_url, wire, *, renderer=RENDERER, model="scripted", **settings):
    server = ModelServer(base_url=base_url, api_key="k", tries=1, request_timeout_s=10.0)
    return TokenPolicy(server=server, model=model, renderer=renderer, wire=WIRES[wire], **settings)


@asynccontextmanager
async def served(wire, script=None, *, policy=None, **settings):
    """A policy over one of the wires; `settings` are the mock's."""
    like = MockSettings(**{"kind": wire[0], **settings})
    app = mock_app(lambda messages: script, skill=0.6, renderer=RENDERER, settings=like)
    async with running_server(app) as base_url:
        asking = token_policy(base_url, wire, **(policy or {}))
        yield asking
        await asking.aclose()


async def rollout(policy, seed, *, turns=2, messages=(SYSTEM, USER), tools=(TERMINAL,), max_tokens=1024):
    """Turns as the loop takes them, each with the open row: completions, the last row, the messages in it."""
    row, completions = None, []
    for _ in range(turns):
        request = CompletionRequest(messages=messages, tools=tools, seed=seed, max_tokens=max_tokens, row=row)
        completion = await policy.complete(request)
        completions.append(completion)
        if not completion.extends_row:
            row = OpenRow()
        answers = [
            Message(role="tool", content=f"3\n{'<|im_start|>' * seed}", tool_call_id=call.id)
            for call in completion.message.tool_calls
        ]
        messages = (*messages, completion.message)
        row.extend(completion.prompt_ids, completion.token_ids, messages=len(messages))
        messages = (*messages, *(answers or [Message(role="user", content="Sure?")]))
    return completions, row, messages[: row.messages]


def server_type_of(kind, wire):
    """What `--openai.server_type` calls a wire."""
    default = next((name for of, name in WIRES if of == kind), None)
    return kind if wire in (None, default) else f"{kind}_{wire}"
