"""Six honest rollouts beside a hostile one, whose program is `hostile.py`."""

import asyncio
import os
import re
import sys
from pathlib import Path

from tests.environments.rollout.agents.recorded import Talk, ask, user
from turnwise import AgentEnvConfig

HOSTILE = Path(__file__).with_name("hostile.py")
ATTACKS = [
    each for each in re.findall(r"^def (\w+)\(\):", HOSTILE.read_text(), re.MULTILINE) if each != "told"
]
HONEST = 6


class Beside(Talk):
    """One of the hostile item's siblings attacks until the honest item's have ended."""

    attack, turns = "", 0

    def load_items(self):
        return [{"id": "honest"}, {"id": "hostile"}]

    async def setup(self):
        self.begun, self.done, self.is_attacked = asyncio.Event(), asyncio.Event(), False

    async def play(self, item, ctx):
        if item["id"] == "hostile" and not self.is_attacked:
            self.is_attacked = True
            await self.run_hostile(ctx.endpoint)
            return
        history = [user("x")]
        for number in range(self.turns):
            if number == self.turns // 2:
                await self.begun.wait()
            history += [await ask(ctx.endpoint, *history), user("on")]

    async def run_hostile(self, endpoint):
        names = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.api_key}
        process = await asyncio.create_subprocess_exec(
            sys.executable, HOSTILE, self.attack, stdout=asyncio.subprocess.PIPE, env={**os.environ, **names}
        )
        try:
            await process.stdout.readline()
            self.begun.set()
            await self.done.wait()
        finally:
            process.kill()
            await process.communicate()


async def roll_out_beside(attack, *, turns=10, **settings):
    """The honest group, and the hostile one's; without an attack, the honest one alone."""
    config = AgentEnvConfig(group_size=HONEST, min_group_size=1, max_concurrent_rollouts=64, **settings)
    async with type("Beside", (Beside,), {"attack": attack, "turns": turns})(config) as env:
        honest, hostile = sorted(env.tasks(), key=lambda task: task.item["id"])
        if attack is None:
            env.begun.set()
            return await env.run_group(honest), None
        attacking = asyncio.create_task(env.run_group(hostile))
        try:
            beside = await env.run_group(honest)
        finally:
            env.done.set()
        return beside, await attacking
