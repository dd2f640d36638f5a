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
        run = asyncio.Handle._run

        def timed(handle):
            """Measure the CPU time for which one callback holds the loop."""
            started = time.thread_time()
            run(handle)
            self.longest_s = max(self.longest_s, time.thread_time() - started)

        asyncio.Handle._run = timed

    async def teardown(self):
        report = {
            "noted": NOTED,
            "longest_s": self.longest_s,
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
