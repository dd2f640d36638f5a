"""An environment whose one tool runs on the host and writes down what it was called with."""

import asyncio
import json
import os
import resource
import time
from contextlib import asynccontextmanager
from pathlib import Path

from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox, SandboxLimits, SandboxRecord
from turnwise import AgentEnv

TICK_S = 0.01
REPORT = "FAULT_RUN_REPORT"


class NoSandbox:
    """Nothing runs in it: what is tried here is the way to the model."""

    record = SandboxRecord(backend="none", tier="none", limits=SandboxLimits(), enforced=())
    workdir = "/"


NOTED = []
"""What the tool was called with."""


@tool
async def note(sandbox: Sandbox, token: str) -> str:
    """Note a token.

    Args:
        token: to be noted.
    """
    NOTED.append(token)
    return f"noted {token}"


class Faulted(AgentEnv):
    name = "faulted"
    tools = (Toolset("notes", (note,)),)

    async def setup(self):
        self.longest_s = 0.0
        self.beating = asyncio.create_task(self.beat())

    async def beat(self):
        """Measure CPU time of the loop's thread between two ticks."""
        last = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.longest_s, last = max(self.longest_s, now - last), now

    async def teardown(self):
        self.beating.cancel()
        files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        report = {
            "noted": NOTED,
            "longest_s": self.longest_s,
            "sockets": sum(file.startswith("socket:") for file in files),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        Path(os.environ[REPORT]).write_text(json.dumps(report))

    @asynccontextmanager
    async def open_sandbox(self):
        yield NoSandbox()

    async def load_items(self):
        return [{"id": f"item-{number}", "number": number} for number in range(100_000)]

    def format_prompt(self, item):
        return f"Note item {item['number']}."

    async def compute_reward(self, item, trajectory, ctx):
        return float(len(trajectory.turns))
