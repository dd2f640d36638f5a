"""What attacks share: a sandbox whose rewards are verified in fresh ones, and little patience."""

import pytest

from environments.rewards.reward_context import RolloutContext
from tools import files
from tools.sandbox import open_sandbox
from tools.sandbox.host import channel


@pytest.fixture
async def ctx():
    async with open_sandbox("local") as sandbox:
        yield RolloutContext(
            env="attacked", item_id="1", sandbox=sandbox, fresh_sandbox=lambda: open_sandbox("local")
        )


@pytest.fixture
def impatient(monkeypatch):
    """Tools and supervisors that are stopped all the time are not waited for as long as usual."""
    monkeypatch.setattr(files, "_LONGEST_S", 4.0)
    monkeypatch.setattr(channel, "_GRACE_S", 8.0)
