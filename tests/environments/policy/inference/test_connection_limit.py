import asyncio
import resource
from contextlib import asynccontextmanager

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.inference.model_server import ModelServer
from tools.errors import ConfigError


class OneTask(AgentEnv):
    name = "one_task"

    def format_prompt(self, item):
        return "?"

    async def compute_reward(self, item, trajectory, ctx):
        return 0.0


@pytest.fixture
def open_files():
    """Sets how many files this process may open."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def env(*, rollouts=16, **server):
    servers = [ServerConfig(base_url="http://127.0.0.1:9/v1", **server)]
    return OneTask(AgentEnvConfig(max_concurrent_rollouts=rollouts), servers)


def test_more_requests_at_once_than_files_may_be_open_are_refused(open_files):
    open_files(1024)
    with pytest.raises(ConfigError, match=r"num_max_requests_at_once 2000 .* 1024 .* 960 .*ulimit -n 2064"):
        env(num_max_requests_at_once=2000)


def test_more_rollouts_than_the_default_of_requests_can_have_are_refused(open_files):
    open_files(256)
    with pytest.raises(ConfigError, match=r"max_concurrent_rollouts 512 .* 256 .* 192 "):
        env(rollouts=4000)


def test_a_default_that_no_rollout_uses_up_is_not_refused(open_files):
    open_files(256)
    assert env(rollouts=64).servers


def test_settings_reach_four_thousand_rollouts(open_files):
    open_files(min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert env(rollouts=4000, num_max_requests_at_once=4000).servers


async def as_it_is(content):
    return content


@asynccontextmanager
async def barrier(count):
    """A server that answers nobody until so many requests are there."""
    arrived, everybody = 0, asyncio.Event()

    async def serve(reader, writer):
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n{}")
        arrived += 1
        if arrived == count:
            everybody.set()
        await everybody.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"


async def test_twelve_hundred_requests_are_really_in_flight(open_files):
    open_files(min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    async with barrier(1200) as url:
        server = ModelServer(base_url=url, api_key="", max_concurrency=1200, tries=1)
        answers = await asyncio.gather(*(server.chat(b"{}", as_it_is) for _ in range(1200)))
        await server.aclose()
    assert answers == [b"{}"] * 1200
