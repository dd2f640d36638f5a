"""A mock server over HTTP that plays a judge or a user of an environment, as `mock-model --role` does."""

from contextlib import asynccontextmanager

from environments.policy.mock_server import MockSettings, mock_app
from tests.equipment.running_server import running_server
from turnwise.cli.mock_model import MockRole


@asynccontextmanager
async def playing(env_cls, role):
    """The URL of a model called `m`."""
    env = env_cls()
    async with env.loaded():
        script = MockRole(env, role).script
        app = mock_app(script, skill=1.0, renderer=env.renderer, settings=MockSettings(model="m"))
        async with running_server(app) as url:
            yield url
