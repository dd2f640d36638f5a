"""Answers that are made to break, stall or fool what rewards are made of."""

# ruff: noqa: E501  # an attack is one line

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from tests.tables import cases
from turnwise.rewards import (
    MathChecker,
    boxed,
    code_block,
    exact_match,
    function_cases,
    has_tags,
    has_text,
    numeric_match,
    tagged,
)

LENGTH = 1_000_000
"""A step for each pair of characters would take hours: the tests' own limit ends it."""
UNITS = {
    "brace": "{",
    "box": "\\boxed{",
    "tag": "<answer>",
    "crossed_tags": "<think><answer></think>",
    "longer_fences": "\n````\n```",
    "surrogate": "\ud800",
    "digit": "9",
    "thousands": ",999",
    "growing_when_folded": "\u0390",
}
FUNCTIONS = {
    "has_text": has_text,
    "has_tags": lambda text: has_tags(text, "think", "answer"),
    "tagged": lambda text: tagged(text, "answer"),
    "boxed": boxed,
    "code_block": lambda text: code_block(text, "python"),
    "exact_match": lambda text: exact_match(text, "an answer"),
    "numeric_match": lambda text: numeric_match(text, 9),
}


@cases("unit", UNITS)
def test_a_million_characters_of_one_shape_take_no_longer_than_their_length(unit):
    text = (UNITS[unit] * LENGTH)[:LENGTH]
    for function in FUNCTIONS.values():
        function(text)


MATHEMATICS = {
    "tower": r"9^{9^{9^{9}}}",
    "parentheses": "(" * 3000,
    "memory": r"\left(10^{10^{8}}\right)!",
    "null": "\x00",
    "python": "__import__('os').kill(0, 9)",
}


async def test_no_mathematics_of_an_agent_is_a_failure_or_right():
    metrics = {}
    with contextlib.closing(MathChecker(cpu_s=1)) as checker:
        equal = await asyncio.gather(
            *(checker.equal(answer, "7", metrics) for answer in MATHEMATICS.values())
        )
    assert dict(zip(MATHEMATICS, equal, strict=True)) == dict.fromkeys(MATHEMATICS, False)
    assert 1 <= metrics["math_timeouts"] < len(MATHEMATICS)


def processes_of_checks():
    """Those of the mathematics program, its supervisors and its checks, whichever process started it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if (
                b"math_program.py" in path.read_bytes()
                and os.getsid(int(path.parent.name)) in programs_of_ours()
            ):
                yield int(path.parent.name)


def programs_of_ours():
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in children}


@pytest.mark.timeout(600)
async def test_checks_whose_processes_are_killed_are_done_again(soak):
    rng = random.Random(0)
    answers = {str(number): number == 1 for number in range(8)}
    with contextlib.closing(MathChecker()) as checker:
        for _ in range(20 if soak else 3):
            asked = [asyncio.ensure_future(checker.equal(answer, "1")) for answer in answers]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(list(processes_of_checks())), signal.SIGKILL)
            assert await asyncio.gather(*asked) == list(answers.values())


FORGERIES = {
    "prints_all": "import os\nfor d in range(3, 9):\n try: os.write(d, b'true\\n')\n except OSError: pass\nos._exit(0)",
    "equals_everything": "class Any(int):\n __eq__ = lambda *_: True\n __hash__ = int.__hash__\ndouble = lambda n: Any(5)",
    "reads_the_stack": "import sys\ndef double(n):\n f = sys._getframe()\n while f: found = f.f_locals.get('expected'); f = f.f_back\n return found",
    "endless_output": "def double(n): return 'x' * (1 << 22)",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_code_that_does_not_compute_holds_no_case(ctx, forgery):
    await ctx.sandbox.write_file("answer.py", FORGERIES[forgery].encode())
    report = await function_cases(ctx.verify, "answer.py:double", [((21,), 43)])
    assert report.held == (False,)


async def test_files_of_the_agent_take_no_place_of_the_judges(ctx):
    for name in ("json.py", "importlib.py", "run_case.py", "sitecustomize.py", "usercustomize.py"):
        await ctx.sandbox.write_file(name, b"import os\nos.write(1, b'started\\n43')\nos._exit(0)\n")
    await ctx.sandbox.write_file("answer.py", b"double = lambda n: 1\n")
    report = await function_cases(
        ctx.verify, "answer.py:double", [((21,), 43)], artefacts=["json.py", "importlib.py", "run_case.py"]
    )
    assert report.held == (False,)
