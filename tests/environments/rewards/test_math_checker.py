"""Mathematical answers: math-verify's own verdicts, and answers that hang it."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from math_verify import parse, verify

from tests.tables import cases
from tools.errors import ConfigError, RewardError
from turnwise.rewards import MathChecker

HANGS = r"9^{9^{9^{9}}}"
KNOWN = [
    (r"\frac{1}{2}", "0.5", True),
    ("1/2", "0.5", True),
    ("1,234", "1234", True),
    (r"50\%", "0.5", True),
    ("x + 1", "1 + x", True),
    (r"\{1, 2\}", r"\{2, 1\}", True),
    ("(1, 2)", "(2, 1)", False),
    ("3", "x = 3", True),
    (r"\sqrt{8}", r"2\sqrt{2}", True),
    ("4", "3", False),
    ("banana", "3", False),
    (r"so $\boxed{3}$ it is", "3", True),
    ("", "3", False),
]


@pytest.fixture(scope="module")
def checker():
    made = MathChecker(cpu_s=1)
    yield made
    made.close()


def programs():
    """The programs that this process has started and that still run."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            command = (stat.parent / "cmdline").read_bytes()
            if int(parent) == os.getpid() and state != "Z" and b"math_program.py" in command:
                yield int(stat.parent.name)


def in_delimiters(text):
    return text if "$" in text else f"${text}$"


@cases(("answer", "expected", "equal"), KNOWN, ids=range(len(KNOWN)))
async def test_a_verdict_is_that_of_math_verify(checker, answer, expected, equal):
    theirs = verify(parse(in_delimiters(expected)), parse(in_delimiters(answer)))
    assert (await checker.equal(answer, expected), theirs) == (equal, equal)


async def test_an_answer_that_hangs_its_check_is_not_equal_and_counted(checker):
    metrics = {}
    assert not await checker.equal(HANGS, "3", metrics)
    assert metrics == {"math_timeouts": 1.0}


async def test_many_checks_at_once_are_all_done_while_one_hangs(checker):
    answers = [*map(str, range(70)), HANGS]
    equal = await asyncio.gather(*(checker.equal(answer, "7") for answer in answers))
    assert [answer for answer, right in zip(answers, equal, strict=True) if right] == ["7"]


@cases("expected", ["", "{" * 10_000], ids=["empty", "hangs"])
async def test_an_expected_answer_that_cannot_be_read_is_no_verdict_on_the_agents(checker, expected):
    with pytest.raises(RewardError, match="cannot read the expected answer"):
        await checker.equal("3", expected)


async def test_a_check_whose_program_was_killed_is_done_again():
    others = set(programs())
    with contextlib.closing(MathChecker()) as checker:
        await checker.equal("3", "3")
        (program,) = set(programs()) - others
        os.kill(program, signal.SIGKILL)
        assert await checker.equal("3", "3")


async def test_a_checker_that_is_closed_or_forgotten_leaves_no_process_and_starts_again():
    others = set(programs())
    checker = MathChecker()
    assert await checker.equal("3", "3")
    checker.close()
    assert set(programs()) == others
    assert await checker.equal("3", "3")
    del checker
    gc.collect()
    assert set(programs()) == others


def test_a_checker_may_be_used_in_one_event_loop_after_another(checker):
    assert [asyncio.run(checker.equal("3", "3")) for _ in range(2)] == [True, True]


def test_a_check_ends_with_the_process_that_asked():
    code = f"""
import asyncio, os
from turnwise.rewards import MathChecker

async def ask():
    checker = MathChecker(cpu_s=50)
    await checker.equal("3", "3")
    hung = asyncio.ensure_future(checker.equal({HANGS!r}, "3"))
    await asyncio.sleep(0)
    print(checker._program._process.pid, flush=True)
    os._exit(0)

asyncio.run(ask())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    program = int(done.stdout)
    while Path(f"/proc/{program}/exe").exists():  # the test's own limit ends a wait for ever
        time.sleep(0.02)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("environments.rewards.math_checker.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package math_verify.*pip install 'turnwise\[math\]'"):
        MathChecker()
