import json

import pytest

from tests.tools.sandbox.conftest import EACH_TIER, docker_engine, opening, tier_c  # noqa: F401  # fixtures
from tools.calls import ToolCall
from tools.python import python
from tools.sandbox.base import SandboxLimits


@pytest.fixture(params=EACH_TIER)
async def sandbox(request, opening):  # noqa: F811
    async with opening(request.param, SandboxLimits(memory_mb=128, disk_mb=32, output_mb=4)) as opened:
        yield opened


async def run(sandbox, code, limit_s=20.0):
    call = ToolCall(id="c", name="python", arguments=json.dumps({"code": code}))
    return await python.execute(call, sandbox, timeout_s=limit_s, max_output_chars=2000)


async def test_state_stays_between_calls(sandbox):
    await run(sandbox, "import math\ndef twice(x): return 2 * x")
    assert (await run(sandbox, "twice(math.factorial(5))")).content == "240"


async def test_what_is_printed_comes_before_the_value_of_the_last_expression(sandbox):
    result = await run(sandbox, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 + 1")
    assert (result.content, result.exit_code) == ("out\nerr\n2", 0)


async def test_an_exception_is_a_traceback_of_the_code_alone_and_keeps_the_state(sandbox):
    result = await run(sandbox, "x = 5\nx / 0")
    assert result.content.startswith('Traceback (most recent call last):\n  File "<call 1>", line 2, in')
    assert result.content.endswith("ZeroDivisionError: division by zero")
    assert (result.error, result.exit_code, (await run(sandbox, "x")).content) == (None, 1, "5")


async def test_a_timeout_ends_the_call_and_says_that_the_state_is_gone(sandbox):
    await run(sandbox, "x = 5")
    result = await run(sandbox, "print('begun', flush=True)\nwhile True: pass", limit_s=3.0)
    assert result.timed_out
    assert "begun" in result.content
    assert "variables, functions and imports are gone" in result.content
    assert (await run(sandbox, "'x' in globals()")).content == "False"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, shutil; shutil.rmtree(os.environ.get('TMPDIR', '/tmp') + '/.turnwise-python')",
        "import os; os.chmod(os.environ.get('TMPDIR', '/tmp') + '/.turnwise-python', 0)",
    ],
)
async def test_code_that_ends_its_interpreter_gets_another_one_and_is_told(sandbox, code):
    assert "the code ended the interpreter" in (await run(sandbox, code)).content
    assert (await run(sandbox, "1 + 1")).content == "2"


async def test_an_interpreter_that_ended_between_calls_is_told(sandbox):
    await run(sandbox, "x = 1")
    await sandbox.exec(
        "pid=$(readlink ${TMPDIR:-/tmp}/.turnwise-python/pid); kill -9 $pid; while kill -0 $pid; do :; done",
        timeout_s=60.0,
    )
    told = "[the interpreter of the calls before had ended: their variables are gone]\n2"
    assert (await run(sandbox, "2")).content == told


async def test_more_memory_than_there_is_ends_the_call_and_not_the_sandbox(sandbox):
    result = await run(sandbox, "x = bytearray(3 << 30)")
    assert "killed: the code used more memory" in result.content or "MemoryError" in result.content
    assert (await run(sandbox, "1 + 1")).content == "2"


@pytest.mark.parametrize(
    "code", ["import os; os.closerange(0, 100)", "import sys; sys.stdout.close()", "import os; os.fork(); 1"]
)
async def test_code_that_closes_or_forks_the_interpreter_wedges_nothing(sandbox, code):
    await run(sandbox, code)
    assert (await run(sandbox, "'%s' % 7")).content.endswith("'7'")


@pytest.mark.parametrize("pid", ["os.symlink('0', p)", "os.symlink('9' * 400, p)", "os.mkfifo(p)"])
async def test_a_forged_process_id_wedges_nothing(sandbox, pid):
    code = f"import os; p = os.environ.get('TMPDIR', '/tmp') + '/.turnwise-python/pid'; os.unlink(p); {pid}"
    await run(sandbox, code)
    assert (await run(sandbox, "1 + 1")).content.endswith("2")


async def test_modules_of_the_workspace_do_not_break_the_interpreter(sandbox):
    for name in ("ast.py", "json.py", "sitecustomize.py"):
        await sandbox.write_file(name, b"raise SystemExit\n")
    await sandbox.write_file("mine.py", b"seven = 7\n")
    assert (await run(sandbox, "import mine; mine.seven")).content == "7"
