"""What a failure says of the error that dropped a rollout."""

import pytest

from tests.environments.write_file import HELLO, ScalarWriteFile, made


class ForgetsIn(ScalarWriteFile):
    def compute_reward(self, item, trajectory, ctx):
        return float(ctx.sandbox.exec("true").exit_code)


class ForgetsInAsync(ScalarWriteFile):
    async def compute_reward(self, item, trajectory, ctx):
        return 1.0 + ctx.sandbox.exec("true")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("env_cls", [ForgetsIn, ForgetsInAsync])
async def test_a_forgotten_await_is_named_as_one(env_cls):
    async with made(env_cls, group_size=2) as env:
        group = await env.run_group(HELLO)
    assert ["is `await` missing" in failure.error for failure in group.group.failures] == [True, True]
