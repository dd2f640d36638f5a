"""A program with a Ray of its own: groups by workers and by this process, and what Ray shows of them."""

import asyncio
import json
import sys

import ray

from environments.config import AgentEnvConfig, ServerConfig
from environments.record.group_line import encode_group
from environments.run.workers.workers import Workers
from tests.environments.run.workers.on_ray import comparable
from tests.environments.serve.served_env import Talk

KEY = "key-of-a-model-server"


async def main(address, port):
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    config = AgentEnvConfig(group_size=2)
    async with Workers(Talk, config, count=2) as workers, Talk(config) as env:
        tasks = zip(workers.env.tasks()[:3], env.tasks()[:3], strict=True)
        same = [plain(await workers.run_group(a)) == plain(await env.run_group(b)) for a, b in tasks]
    server = ServerConfig(base_url=f"http://127.0.0.1:{port}/v1", model_name="scripted", api_key=KEY)
    async with Workers(Talk, config, [server], count=1) as workers:
        status = (await workers.run_group(workers.env.tasks()[0])).status
        state = ray._private.state.state
        shown = json.dumps([state.actor_table(None), state.job_table()], default=str)
    found = {"same": same, "status": status, "uses_ray": ray.is_initialized(), "key": KEY in shown}
    sys.stdout.write(json.dumps({**found, "actors": shown.count("WorkerProcess")}) + "\n")


def plain(group):
    """A group as it is recorded, without what may differ."""
    return comparable(json.loads(encode_group(group)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
