import asyncio

import pytest

from environments.rewards.verdict.frame import Verify
from tools.sandbox import open_sandbox


@pytest.fixture
def verify() -> Verify:
    """What `RolloutContext.verify` does, without a rollout."""

    async def run(*, command, artefacts=(), files=None, stdin=b"", timeout_s=30.0):
        own = {name: data.encode() if isinstance(data, str) else data for name, data in (files or {}).items()}
        async with open_sandbox("local").for_verifier(own) as sandbox:
            return await sandbox.exec(command, stdin=stdin, timeout_s=timeout_s)

    return run


@pytest.fixture
def failing():
    """The names of the cases of which a claim does not hold; four are tried at a time."""

    async def names(cases, holds):
        slots = asyncio.Semaphore(4)

        async def tried(case):
            async with slots:
                return await holds(case)

        results = await asyncio.gather(*map(tried, cases.values()))
        return [name for name, held in zip(cases, results, strict=True) if not held]

    return names
