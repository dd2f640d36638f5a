"""Inspect's own published suite, run against our sandboxes through an adapter; needs `inspect_ai`."""

import errno

import pytest

from tests.tools.sandbox.conftest import TEST_IMAGE
from tools.sandbox.check import Target

inspect_ai = pytest.importorskip(
    "inspect_ai.util", reason="inspect_ai is installed only for this test: see requirements/inspect.in"
)
from inspect_ai.util._sandbox.limits import SandboxEnvironmentLimits  # noqa: E402
from inspect_ai.util._sandbox.self_check import *  # noqa: E402, F403

EXPECTED_FAILURES = {
    "test_exec_as_user": "a sandbox has one unprivileged user; there is no root inside to become",
}
"""What the protocol does not have; everything else in the suite passes."""


class Adapter(inspect_ai.SandboxEnvironment):
    """A sandbox of ours in Inspect's words: timeouts and refusals become exceptions."""

    def __init__(self, sandbox):
        super().__init__()
        self._sandbox = sandbox

    async def exec(self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, **_):
        if user is not None:
            raise inspect_ai.SandboxUserUnsupportedError("commands run as the sandbox's one user")
        result = await self._sandbox.exec(
            cmd,
            stdin=input.encode() if isinstance(input, str) else input or b"",
            cwd=cwd,
            env=env,
            timeout_s=timeout or 60,
            max_output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
        )
        if result.timed_out:
            raise TimeoutError
        stderr = result.stderr.decode()
        if result.exit_code == 126:
            raise PermissionError(stderr)
        return inspect_ai.ExecResult(
            success=result.exit_code == 0,
            returncode=result.exit_code,
            stdout=result.stdout.decode(),
            stderr=stderr,
        )

    async def write_file(self, file, contents):
        await self._sandbox.write_file(file, contents.encode() if isinstance(contents, str) else contents)

    async def read_file(self, file, text=True):
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._sandbox.read_file(file, max_bytes=limit)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            readable = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise inspect_ai.OutputLimitExceededError(limit_str=readable, truncated_output=None) from None
        return data.decode() if text else data

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        """Sandboxes are closed by the fixture."""


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
async def sandbox_env(request):
    reason = EXPECTED_FAILURES.get(request.node.originalname)
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    image = {}
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
        image = {"image": TEST_IMAGE}
    async with Target(backend=request.param, options=image).open() as sandbox:
        yield Adapter(sandbox)
