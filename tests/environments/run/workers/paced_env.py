"""Environments that the tests on Ray roll out: at a pace, with variables, or until they are cancelled."""

import asyncio
import os
from pathlib import Path

from tests.environments.counted_items import Counted
from tests.environments.serve.served_env import WriteWord


class Paced(WriteWord):
    """Takes its time for each rollout until there is a file that the variable `PACED_FAST` names."""

    name = "paced"

    async def prepare(self, item, sandbox):
        if not Path(os.environ["PACED_FAST"]).exists():
            await asyncio.sleep(0.2)


class Named(Counted):
    """Needs a variable before it has items."""

    name = "named"

    def load_items(self):
        os.environ["NAMED_TOKEN"]
        return super().load_items()


class Prompted(Counted):
    """What its model is asked depends on a variable, if there is one."""

    name = "prompted"
    system_prompt = os.environ.get("PROMPTED", "as ever")


class Waiting(Counted):
    """Its rollouts end when they are cancelled."""

    name = "waiting"

    async def prepare(self, item, sandbox):
        Path(os.environ["WAITING_FOLDER"], item["id"]).touch()
        await asyncio.Event().wait()


class Deaf(Waiting):
    """Its rollouts do not even end then."""

    name = "deaf"

    async def prepare(self, item, sandbox):
        while True:
            try:
                await super().prepare(item, sandbox)
            except asyncio.CancelledError:
                Path(os.environ["WAITING_FOLDER"], "cancelled").touch()
