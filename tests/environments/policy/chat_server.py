"""A model server with queued answers for the tests of the chat policy, and answers for it."""

import asyncio
import json
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.policy.base import CompletionRequest
from environments.policy.chat import ChatPolicy
from environments.policy.inference.model_server import ModelServer
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trajectory import Message
from tests.equipment.running_server import running_server
from tools.calls import ToolSpec

RENDERER = ChatMLRenderer.embedded()
USER = Message(role="user", content="Count the files.")
TERMINAL = ToolSpec(name="terminal", description="Run a command.", parameters={"type": "object"})
REQUEST = CompletionRequest(messages=(USER,), tools=(TERMINAL,), seed=5, max_tokens=77)


class Server:
    """A model server: gives the queued answers, the last for ever, and remembers what it was asked."""

    def __init__(self, *answers, models=None):
        self.answers = list(answers)
        self.models = models or JSONResponse({"data": [{"id": "m"}]})
        self.asked = []
        self.base_url = ""

    @property
    def app(self):
        return Starlette(
            routes=[
                Route("/v1/models", self._list_models),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _list_models(self, request):
        return self.models

    async def _complete(self, request):
        self.asked.append(json.loads(await request.body()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request) if asyncio.iscoroutinefunction(answer) else answer


@asynccontextmanager
async def served(*answers, models=None, **settings):
    server = Server(*answers, models=models)
    async with running_server(server.app) as server.base_url:
        policy = chat_policy(server.base_url, **settings)
        yield server, policy
        await policy.aclose()


def chat_policy(base_url, *, model="m", **settings):
    own = ("temperature", "top_p", "extra_body", "family", "tools_in_prompt")
    sampling = {name: settings.pop(name) for name in own if name in settings}
    waits = {"first_wait_s": 0.001, "longest_wait_s": 0.002, "request_timeout_s": 10.0}
    server = ModelServer(**{"base_url": base_url, "api_key": "k", **waits, **settings})
    return ChatPolicy(server=server, model=model, renderer=RENDERER, **sampling)


def answer(
    message=None, *, finish_reason="stop", logprobs=(-0.5, -0.25), token_ids=(11, 2), prompt_ids=(7, 8, 9)
):
    choice = {
        "message": {"role": "assistant", **(message or {"content": "3"})},
        "finish_reason": finish_reason,
        "logprobs": {"content": [{"token": "?", "logprob": value} for value in logprobs]},
        "token_ids": list(token_ids),
    }
    return {"choices": [choice], "prompt_token_ids": list(prompt_ids)}


def without(body, *path):
    *steps, last = path
    inner = body
    for step in steps:
        inner = inner[step]
    del inner[last]
    return body


def ok(**changes):
    return JSONResponse(answer(**changes))


def failed(status, message="broken", headers=None, **more):
    return JSONResponse({"error": {"message": message, **more}}, status_code=status, headers=headers)
