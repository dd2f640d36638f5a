"""What a solution may try against the judge of `code_debug`: nothing of it makes a failed check hold."""

import asyncio

import pytest

from environments.rewards.reward_context import RolloutContext
from environments.rewards.verdict.code_judge import CheckLimits, run_checks

QUICK = CheckLimits(cpu_s=0.5, wall_s=0.8, next_cpu_s=0.1, next_wall_s=0.3, total_s=2.0)
LOOPED = {
    "task_id": "t",
    "entry_point": "double",
    "declaration": "def double(x):\n",
    "test": "for x in range(6):\n    assert double(x) == 2 * x\n"
    "assert double(7) == 14\nassert double(8) == 15",
}
"""A right solution holds the first two; what goes wrong at 4 must not leave the loop's one held."""


async def judged(ctx: RolloutContext, attack: str, where: str = "x == 4", head: str = "") -> tuple[bool, ...]:
    body = attack.replace("\n", "\n        ")
    solution = (
        f"{head}\ndef double(x):\n    if {where}:\n        {body}\n        return -1\n    return 2 * x\n"
    )
    return (await run_checks(ctx.verify, LOOPED, solution, QUICK)).held


KILLS = {
    "kill all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "kill from a child": "import os\nif os.fork() == 0:\n    try:\n        os.kill(-1, 9)\n"
    "    finally:\n        os._exit(0)",
    "pidfd": "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
    "all processes": "import os\nwhile True:\n    try:\n        os.fork()\n"
    "    except OSError:\n        break\n"
    "import time; time.sleep(9)",
    "a child that holds the pipes": "import os, time\nif os.fork() == 0:\n"
    "    os.setsid(); time.sleep(30)\nos._exit(0)",
    "a program of its own": "import os, sys\nos.execv(sys.executable, ['python3', '-c', "
    "'import os; os.kill(os.getppid(), 9)'])",
    "a harness of its own": "import os, shutil\nos.rename('environments', 'moved')\n"
    "os.makedirs('environments/rewards/verdict')\n"
    "open('environments/rewards/verdict/harness.py', 'w').write('import os; os.kill(os.getppid(), 9)')\n"
    "os._exit(0)",
}


COSTS_MORE = ("all processes", "a child that holds the pipes", "a harness of its own")
"""They may fail the check that runs beside them, too."""


@pytest.mark.parametrize("name", KILLS)
async def test_attacking_the_judge_fails_the_check_it_happens_in_and_does_not_reach_the_judge(ctx, name: str):
    held = await judged(ctx, KILLS[name])
    assert held == (False, held[1] if name in COSTS_MORE else True, False)


REPLIES = {
    "two answers": 'b\'{"returned": 8}{"returned": 8}\'',
    "deep": "b'{\"returned\": ' + b'[' * 100_000",
    "endless": "b'x' * (64 << 20)",
    "an end of the test's loop": 'b\'{"raised": ["StopIteration"], "message": ""}\'',
}
RAW = """
import gc, io
def write(data):
    for found in gc.get_objects():
        if isinstance(found, io.BufferedWriter) and not found.closed and found.fileno() > 2:
            found.write(data + b"\\n"); found.flush()
    import time; time.sleep(0.2)
"""


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
async def test_a_forged_reply_is_no_answer(ctx, reply: str):
    assert not (await judged(ctx, f"write({reply})", head=RAW))[0]


EQUAL = "'__eq__': lambda self, other: True, '__hash__': int.__hash__"
FORGERIES = {
    "nan": "return float('nan')",
    "a long number": "return 10 ** 200_000",
    "many lists": "return [[]] * 9 ** 6",
    "an object": "return object()",
    "an object that equals everything": f"return type('Any', (), {{{EQUAL}}})()",
    "an int that equals everything": f"return type('Any', (int,), {{{EQUAL}}})(7)",
    "printed results": "for index in range(3): print('0' * 32, index, 1, flush=True)",
    "patched builtins": "import builtins\nbuiltins.AssertionError = type('Harmless', (BaseException,), {})",
    "frames of the caller": "import sys\nframe = sys._getframe()\nwhile frame:\n"
    "    for value in list(frame.f_locals.values()):\n"
    "        if hasattr(value, '_record'): value._record(0, True)\n"
    "    frame = frame.f_back",
}


@pytest.mark.parametrize("attack", FORGERIES.values(), ids=FORGERIES)
async def test_a_forged_value_fails_its_check_alone(ctx, attack: str):
    assert await judged(ctx, attack) == (False, True, False)


@pytest.mark.parametrize("path", ["mem", "environ", "fd/0", "cwd/../fd"])
async def test_the_judges_memory_and_files_are_closed(ctx, path: str):
    look = f"import os\nopen(f'/proc/{{os.getppid()}}/{path}', 'rb').read(1)\nreturn 8"
    assert not (await judged(ctx, look))[0]


async def test_the_hidden_test_is_in_no_command_line(ctx):
    lines = "(open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/cmdline'))"
    look = f"import glob\nreturn 8 if any(b'2 * x' in line for line in {lines}) else -1"
    assert not (await judged(ctx, look))[0]


async def test_a_module_that_the_solution_leaves_is_not_imported_by_the_test(ctx):
    task = {**LOOPED, "test": "double(0)\nimport statistics\nassert statistics.mean([2, 4]) == 99"}
    solution = "open('statistics.py', 'w').write('mean = lambda x: 99')\ndef double(x): return x\n"
    assert (await run_checks(ctx.verify, task, solution, QUICK)).held == (False,)


BUSY = {
    "in its group": "import os\nfor _ in range(200):\n    if os.fork() == 0:\n        while True: pass\n"
    "while True: pass",
    "in sessions of their own": "import os\nfor _ in range(60):\n    if os.fork() == 0:\n"
    "        os.setsid()\n        if os.fork(): os._exit(0)\n        while True: pass\nreturn 2 * x",
    "new ones for ever": "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n"
    "    try:\n        if os.fork() == 0:\n            os.setsid()\n            for _ in range(10**5): pass\n"
    "            os._exit(0)\n    except OSError: pass",
}


@pytest.mark.parametrize("attack", BUSY.values(), ids=BUSY)
async def test_processes_that_a_solution_keeps_busy_use_up_its_own_time(ctx, attack):
    async with asyncio.timeout(60):
        await judged(ctx, attack, where="True")
