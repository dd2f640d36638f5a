"""A model server for text alone, over HTTP: queued answers, the last one for ever."""

from contextlib import asynccontextmanager

from starlette.responses import JSONResponse

from environments.policy.inference.model_server import ModelServer
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.second_models import TextModel
from environments.trajectory import Message
from tests.environments.policy.chat_server import Server
from tests.equipment.running_server import running_server
from turnwise.cli.mock_model import MockRole

QUESTION = (Message(role="user", content="Good?"),)


def said(content, *, finish_reason="stop", usage=None, **fields):
    """A chat completion without token ids."""
    message = {"role": "assistant", "content": content, **fields}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return JSONResponse({"choices": [choice], "usage": usage or {"prompt_tokens": 5, "completion_tokens": 3}})


def verdict(text):
    """Of a judge: `ID` stands for the field of the id, which the question ends with."""

    async def answer(request):
        question = (await request.json())["messages"][-1]["content"]
        return said(text.replace("ID", question[-len('"id": "0123456789ab"') :]))

    return answer


def text_model(base_url, *, role="judge", extra_body=None, temperature=0.0, max_tokens=64, **settings):
    waits = {"first_wait_s": 0.001, "longest_wait_s": 0.002, "request_timeout_s": 10.0}
    return TextModel(
        server=ModelServer(**{"base_url": base_url, "api_key": "k", **waits, **settings}),
        role=role,
        model="m",
        temperature=temperature,
        top_p=1.0,
        max_tokens=max_tokens,
        extra_body=extra_body or {},
    )


@asynccontextmanager
async def answering(*answers, **settings):
    """The server, and the model that asks it."""
    server = Server(*answers)
    async with running_server(server.app) as server.base_url:
        model = text_model(server.base_url, **settings)
        yield server, model
        await model.aclose()


@asynccontextmanager
async def playing(env_cls, role):
    """The URL of a model called `m`, which plays a judge or a user as `mock-model --role` does."""
    env = env_cls()
    async with env.loaded():
        script = MockRole(env, role).script
        app = mock_app(script, skill=1.0, renderer=env.renderer, settings=MockSettings(model="m"))
        async with running_server(app) as url:
            yield url
