"""An agent's code, judged by cases whose answers it never sees."""

import math
import sys

import pytest

from environments.rewards.reward_context import RolloutContext
from tests.tables import cases
from tools.errors import RewardError
from tools.sandbox import open_sandbox
from turnwise.rewards import CaseReport, function_cases, program_cases

ANSWER = b"""
def double(n):
    print("noise")
    return n * 2

def unit(_):
    return {"half": 0.1 + 0.2, "yes": True, "list": (1, 2)}

def half(_):
    return 1e9 + 0.5

def nan(_):
    return [float("nan"), 1]

def zero(_):
    return 0.1 + 0.2 - 0.3

def large(_):
    return 10**400

def deep(_):
    import os
    os.write(3, b"[" * 100_000)

def quits(_):
    raise SystemExit

def hangs(_):
    while True:
        pass

if __name__ == "__main__":
    print(int(input()) * 2, "")
    print()
"""


@pytest.fixture
async def verify():
    async with open_sandbox() as sandbox:
        await sandbox.write_file("answer.py", ANSWER)
        yield RolloutContext(env="e", item_id="i", sandbox=sandbox, fresh_sandbox=open_sandbox).verify


async def test_a_program_is_run_once_per_case_and_space_at_ends_does_not_count(verify):
    report = await program_cases(
        verify, ["python3", "answer.py"], [("2", "4\n"), ("3", "7"), ("x", "")], artefacts=["answer.py"]
    )
    assert report == CaseReport(held=(True, False, False))
    assert report.fraction == pytest.approx(1 / 3)


@cases(
    "written",
    ["sys.stderr.write('w' * 1_000_000); print(2)", "print('2' * 1_000_000)"],
    ids=["errors", "output"],
)
async def test_a_program_may_write_much(verify, written):
    expected = "2" if "stderr" in written else "2" * 1_000_000
    report = await program_cases(
        verify, ["python3", "-c", f"import sys; {written}"], [("", expected)], artefacts=[]
    )
    assert report.held == (True,)


async def test_an_expected_output_that_is_longer_than_what_is_read_is_refused(verify):
    with pytest.raises(RewardError, match="longer than the 2 MB"):
        await program_cases(verify, "true", [("", "x" * (2 << 20) + "y")], artefacts=[])
    with pytest.raises(RewardError, match="longer than the 2 MB"):
        await function_cases(verify, "answer.py:double", [((1,), "x" * (2 << 20))])


@cases(
    ("function", "expected", "held"),
    [
        ("double", 4, True),
        ("double", 4.0, True),
        ("double", 5, False),
        ("double", True, False),
        ("unit", {"half": 0.3, "yes": True, "list": [1, 2]}, True),
        ("unit", {"half": 0.3, "yes": 1, "list": [1, 2]}, False),
        ("unit", {"half": 0.3, "yes": True, "list": [1, 2, 3]}, False),
        ("half", 10**9, False),
        ("half", 1e9, True),
        ("zero", 0.0, True),
        ("zero", 1e-17, False),
        ("nan", [math.nan, 1], True),
        ("nan", [0.0, 1], False),
        ("large", 1.5, False),
        ("deep", [], False),
        ("quits", None, False),
        ("missing", None, False),
    ],
)
async def test_a_function_holds_a_case_when_it_returns_what_is_expected(verify, function, expected, held):
    report = await function_cases(verify, f"answer.py:{function}", [((2,), expected)])
    assert report.held == (held,)


async def test_integers_are_as_long_as_this_process_allows(verify):
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(6000)
    try:
        report = await function_cases(verify, "answer.py:double", [((10**5000,), 2 * 10**5000)])
    finally:
        sys.set_int_max_str_digits(before)
    assert report.held == (True,)


async def test_a_file_may_have_the_name_of_a_module_of_python():
    async with open_sandbox() as sandbox:
        await sandbox.write_file("operator.py", ANSWER)
        ctx = RolloutContext(env="e", item_id="i", sandbox=sandbox, fresh_sandbox=open_sandbox)
        assert (await function_cases(ctx.verify, "operator.py:double", [((2,), 4)])).held == (True,)


async def test_a_file_that_the_agent_did_not_write_holds_no_case(verify):
    assert (await function_cases(verify, "other.py:double", [((2,), 4)])).held == (False,)


async def test_a_call_that_hangs_costs_its_case_and_is_counted(verify):
    report = await function_cases(verify, "answer.py:hangs", [((2,), 4)], timeout_s=1)
    assert report == CaseReport(held=(False,), timed_out=1)


async def test_a_sandbox_without_python_is_no_verdict_on_the_code(verify):
    async def without_python(**arguments):
        return await verify(**{**arguments, "command": ["no-such-program"]})

    with pytest.raises(RewardError, match=r"did not start: exit code 127.*is Python 3 in the sandbox"):
        await function_cases(without_python, "answer.py:double", [((2,), 4)])


@cases(
    "function",
    ["double", "answer.py", "answer:double", "/abs/answer.py:double", "./answer.py:double", "a.b.py:double"],
)
async def test_a_function_is_named_with_its_file(verify, function):
    with pytest.raises(RewardError, match="is not a function"):
        await function_cases(verify, function, [((2,), 4)])


async def test_all_cases_together_have_the_limit_of_one_verification():
    async with open_sandbox() as sandbox:
        await sandbox.write_file("answer.py", ANSWER)
        ctx = RolloutContext(
            env="e", item_id="i", sandbox=sandbox, fresh_sandbox=open_sandbox, verify_timeout_s=1
        )
        report = await function_cases(ctx.verify, "answer.py:hangs", [([1], 1)] * 8)
    assert report == CaseReport(held=(False,) * 8, timed_out=8)
