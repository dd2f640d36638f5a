"""The warm interpreter of a verdict's sandbox: a program in it finds what it would find in a cold one."""

import json
import sys
from functools import partial

import pytest

from tests.tools.sandbox.conftest import NETWORKED
from tools.sandbox import Opening, open_sandbox
from tools.sandbox.inside.account import Configuration
from tools.sandbox.inside.warm import COMMAND, IMPORTS, can_be_warm
from tools.sandbox.local.backend import open_local

PROBE = """
import atexit, os, resource, signal, sys, threading
def line(name): return [line for line in open('/proc/self/status') if line.startswith(name)]
found = {
    'argv': [sys.argv, sys.orig_argv], 'flags': str(sys.flags), 'executable': sys.executable,
    'paths': [sys.path, sorted(sys.path_importer_cache), str(sys.meta_path)],
    'main': sorted(vars(sys.modules['__main__']).items(), key=str), 'modules': sorted(sys.modules),
    'environment': sorted(os.environ.items()), 'folder': [os.getcwd(), oct(os.umask(0o22))],
    'signals': [(each, signal.getsignal(each)) for each in signal.Signals], 'blocked': line('SigBlk'),
    'limits': [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if 'RLIMIT_' in name],
    'streams': [(each.encoding, each.errors, each.line_buffering, each.name) for each in
                (sys.stdin, sys.stdout, sys.stderr)],
    'descriptors': sorted(os.listdir('/proc/self/fd')), 'input': sys.stdin.read(),
    'threads': [threading.active_count(), atexit._ncallbacks()],
    'process': [os.getsid(0) == os.getpid(), os.getgroups(), line('Cap'), line('Seccomp')],
    'dumpable': os.stat('/proc/self/stat').st_uid == os.getuid(),
    'score': open('/proc/self/oom_score_adj').read(),
}
print(json.dumps(found, default=lambda each: str(each).split(' at 0x')[0]))
"""
IS_WARM = "import gc\nprint(gc.get_freeze_count() > 0)"


def program(code: str) -> tuple[str, ...]:
    return *COMMAND, f"{IMPORTS}\n{code}"


@pytest.fixture(params=["B", "C"])
def verdict(request):
    """Opens a sandbox of a verdict."""
    if request.param == "C":
        request.getfixturevalue("tier_c")
        opening = Opening("local", partial(open_local, tier="C"), NETWORKED, {})
    else:
        opening = open_sandbox("local")
    return lambda: opening.for_verifier({"check.py": b"pass"})


async def test_a_warm_program_finds_what_a_cold_one_finds(verdict):
    async with verdict() as warm, verdict() as cold:
        await cold.exec("true")
        found = [await each.exec(program(PROBE), stdin=b"given") for each in (warm, cold)]
    first, second = (
        json.loads(each.text().replace(sandbox.workdir.removesuffix("/work"), ""))
        for each, sandbox in zip(found, (warm, cold), strict=True)
    )
    assert {name: value for name, value in first.items() if value != second[name]} == {}


async def test_the_first_program_of_a_verdict_is_warm(verdict):
    async with verdict() as sandbox:
        assert (await sandbox.exec(program(IS_WARM))).text() == "True\n"


FIRST = {"another": ("true",), "a warm one": program("pass"), "a cold one": ("python3", "-c", "pass")}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
async def test_a_program_after_another_is_cold(first):
    async with open_sandbox("local").for_verifier({}) as sandbox:
        await sandbox.exec(first)
        assert (await sandbox.exec(program(IS_WARM))).text() == "False\n"


async def test_no_warm_interpreter_is_left_when_another_program_starts():
    async with open_sandbox("local").for_verifier({}) as sandbox:
        # The supervisor and this shell; 2 was the interpreter.
        assert (await sandbox.exec("echo /proc/[0-9]*")).text().split() == ["/proc/1", "/proc/3"]


@pytest.mark.parametrize("how", [{"env": {"A": "1"}}, {"cwd": "/tmp"}], ids=["variables", "folder"])
async def test_a_program_with_an_environment_of_its_own_is_cold(how):
    async with open_sandbox("local").for_verifier({}) as sandbox:
        assert (await sandbox.exec(program(IS_WARM), **how)).text() == "False\n"


async def test_a_long_program_is_run_whole():
    async with open_sandbox("local").for_verifier({}) as sandbox:
        assert (await sandbox.exec(program(f"{'#' * 100_000}\nprint('end')"))).text() == "end\n"


async def test_the_agents_sandbox_has_no_warm_interpreter():
    async with open_sandbox("local") as sandbox:
        assert (await sandbox.exec(program(IS_WARM))).text() == "False\n"


WITHOUT = {
    "files of a verifier": {"held": ""},
    "confinement": {"confine": "0"},
    "an untouched sandbox": {"shell_lost": "1"},
}


@pytest.mark.parametrize("change", [{}, *WITHOUT.values()], ids=["all", *WITHOUT])
def test_an_interpreter_is_warm_with_all_of_these_alone(change, monkeypatch, tmp_path):
    python = tmp_path / "python3"
    python.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    settings = {"held": "/verifier", "confine": "1", **change}
    config = Configuration(settings, {"PATH": f"/none:{tmp_path}"}, b"filter", [], [])
    assert can_be_warm(config) == (change == {})


ENDS = {"raise SystemExit(3)": 3, "raise ValueError": 1, "import os; os.kill(os.getpid(), 9)": 137, "pass": 0}


@pytest.mark.parametrize("code", ENDS)
async def test_a_warm_program_ends_with_the_code_of_a_cold_one(code):
    async with open_sandbox("local").for_verifier({}) as sandbox:
        assert (await sandbox.exec(program(code))).exit_code == ENDS[code]


async def test_a_warm_program_is_killed_at_its_limit():
    async with open_sandbox("local").for_verifier({}) as sandbox:
        result = await sandbox.exec(program("while True: pass"), timeout_s=0.3)
    assert (result.timed_out, result.exit_code) == (True, 137)
