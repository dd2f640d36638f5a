import pytest

from environments.code_debug_env.hidden_checks import Verify
from tools.sandbox import open_sandbox


@pytest.fixture
def verify() -> Verify:
    """What `RolloutContext.verify` does, without a rollout."""

    async def run(*, command, files, stdin, timeout_s):
        async with open_sandbox("local") as sandbox:
            for name, data in files.items():
                await sandbox.write_file(name, data.encode() if isinstance(data, str) else data)
            return await sandbox.exec(command, stdin=stdin, timeout_s=timeout_s)

    return run
