"""What a solution may try against the processes that its own was forked from."""

# ruff: noqa: E501  # a sabotage is one line

from environments.rewards.verdict.code_judge import run_checks
from tests.adversarial.test_forged_checks import LOOPED, QUICK, judged
from tests.adversarial.tiers import context, docker_engine, fresh, in_each_tier, tier_c  # noqa: F401  # fixtures
from tools.sandbox.base import NoSandbox

TRIES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
others = lambda: [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and int(pid) != os.getpid()]
def tries(action, *arguments):
    try: return action(*arguments)
    except Exception: pass
def overwrite(pid):
    for line in open(f'/proc/{pid}/maps').read().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split('-'))
        if ' rw-p ' in line:
            with open(f'/proc/{pid}/mem', 'r+b', 0) as file: file.seek(start); file.write(bytes(end - start))
def write_from(pid):
    class Part(ctypes.Structure): _fields_ = (('base', ctypes.c_void_p), ('size', ctypes.c_size_t))
    data = ctypes.create_string_buffer(1 << 16)
    ours, theirs = Part(ctypes.addressof(data), 1 << 16), Part(ctypes.addressof(libc), 1 << 16)
    libc.process_vm_writev(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
"""
SABOTAGES = {
    "memory": "for pid in others(): tries(overwrite, pid)",
    "memory by a call": "for pid in others(): tries(write_from, pid)",
    "a tracer": "for pid in others(): libc.ptrace(16, pid, 0, 0); libc.ptrace(0x4206, pid, 0, 0)",
    "descriptors": "for pid in others():\n for fd in tries(os.listdir, f'/proc/{pid}/fd') or range(3, 64): tries(lambda: open(f'/proc/{pid}/fd/{fd}', 'wb', 0).write(b'{}\\n'))\nos.closerange(3, 64)",
    "modules": "import builtins\nfor name, module in [*sys.modules.items()]:\n if name not in ('builtins', '__main__', 'solution'): tries(vars(module).clear)\nsys.modules.clear()",
    "files that Python loads": "import site\nfor folder in ('.', os.environ['HOME'], os.environ['VERIFIER'], site.getusersitepackages(), *sys.path):\n tries(os.makedirs, folder)\n for name in ('usercustomize.py', 'sitecustomize.py', 'json.py', 'forged.pth'): tries(lambda: open(f'{folder}/{name}', 'w').write('import os; os._exit(0)'))",
    "a thread": "import threading\nthreading.Thread(target=lambda: [tries(overwrite, pid) for _ in range(1 << 20) for pid in others()]).start()",
    "a child": "if os.fork() == 0:\n os.setsid()\n while True: [tries(overwrite, pid) for pid in others()]",
}  # fmt: skip
IN_EACH_TIER = ("memory", "descriptors", "a child")


@in_each_tier(SABOTAGES, IN_EACH_TIER)
async def test_the_check_after_a_sabotage_has_its_cold_verdict(fresh, case):  # noqa: F811
    held = await judged(context(fresh, NoSandbox()), f"{case}\nos._exit(0)", head=TRIES)
    assert held == (False, True, False)


FINDS = """
import re
def double(x):
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            start, end = (int(each, 16) for each in line.split()[0].split('-'))
            if ' rw' in line:
                memory.seek(start)
                if re.search(rb'name_of_the_hidde[n]_test', memory.read(end - start)): return 1
    return 2
"""


@in_each_tier({"own memory": FINDS}, ["own memory"])
async def test_the_memory_of_a_solution_never_held_the_test(fresh, case):  # noqa: F811
    task = {
        **LOOPED,
        "test": "name_of_the_hidden_test = double(0)\nassert double(0) == 1\nassert double(0) == 2",
    }
    report = await run_checks(context(fresh, NoSandbox()).verify, task, case, QUICK)
    assert report.held == (False, True)
