import ast
import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from environments.rewards.verdict.code_judge import CheckLimits, run_checks
from environments.rewards.verdict.prepared_test import prepare_test
from tools.errors import DatasetError, RewardError
from tools.sandbox.base import ExecResult

HUMANEVALPACK = Path(__file__).with_name("humanevalpack.jsonl")
"""Every 16th task of HumanEvalPack (MIT licence), in Python."""
QUICK = CheckLimits(cpu_s=0.3, wall_s=0.8, next_cpu_s=0.1, next_wall_s=0.3, total_s=4.0)


def task(test: str, declaration: str = "def double(x):\n") -> dict[str, str]:
    return {"task_id": "t", "declaration": declaration, "entry_point": "double", "test": test}


THREE = task(
    "def check(f):\n    assert f(1) == 2\n    assert f(2) == 4\n    assert f(-1) == -2\n\ncheck(double)\n"
)


async def held(verify, solution: str, of=THREE, limits: CheckLimits | None = None) -> tuple[bool, ...]:
    return (await run_checks(verify, of, solution, limits)).held


async def test_every_assertion_counts_on_its_own(verify):
    assert await held(verify, "def double(x):\n    return 4 if x > 0 else 2 * x\n") == (False, True, True)


async def test_an_assertion_in_a_loop_must_hold_every_time(verify):
    looped = task("for x in range(5):\n    assert double(x) == 2 * x\n    assert double(x) >= x")
    assert await held(verify, "def double(x): return 2 * x if x != 3 else 5\n", looped) == (False, True)


async def test_an_assertion_that_is_never_reached_does_not_hold(verify):
    unreached = task("assert double(1) == 2\ny = double('no')\nassert double(2) == 4")
    assert await held(verify, "def double(x): return x * 2 if x != 'no' else 1 / 0\n", unreached) == (
        True,
        False,
    )


async def test_helpers_of_the_test_come_from_the_task(verify):
    declaration = "def same(a, b):\n    return a == b\n\n\ndef double(x):\n"
    uses_helper = task("assert same(double(2), 4)", declaration)
    assert await held(verify, "def same(a, b): return True\ndef double(x): return 0\n", uses_helper) == (
        False,
    )


async def test_arguments_that_the_solution_changes_are_changed_for_the_test(verify):
    changed = task(
        "xs = [1, [2]]\ninner = xs[1]\nout = double(xs)\n"
        "assert xs == [1, [2, 9]]\nassert inner == [2, 9]\nassert out is xs\n"
        "assert double([0, []]) == [0, [9]]"
    )
    solution = "def double(x):\n    x[1].append(9)\n    return x\n"
    assert await held(verify, solution, changed) == (True,) * 4


async def test_arguments_that_a_solution_changes_before_it_raises_are_changed_for_the_test(verify):
    changed = task("xs = []\ntry:\n    double(xs)\nexcept ValueError:\n    pass\nassert xs == [9]")
    assert await held(verify, "def double(x):\n    x.append(9)\n    raise ValueError\n", changed) == (True,)


@pytest.mark.parametrize("kind", ["Counter", "OrderedDict", "partial(defaultdict, int)"])
async def test_a_dictionary_of_another_kind_is_changed_as_any(verify, kind):
    imports = "from collections import Counter, OrderedDict, defaultdict\nfrom functools import partial\n"
    changed = task(f"{imports}given = ({kind})(a=2)\ndouble(given)\nassert given == {{'a': 2, 'b': 1}}")
    assert await held(verify, "def double(x): x['b'] = 1\n", changed) == (True,)


PLAIN = (
    "None",
    "(1, 'a', b'b', 2.5, 1j)",
    "{'k': [1, {2, 3}], (1, 2): frozenset([4])}",
    "float('inf')",
    "10 ** 5000",
    "'\\ud800'",
    "-0.0",
    "True",
    "range(9, 2, -3)",
    "{'a': 1}.keys()",
    "{'a': [1]}.values()",
    "{'a': [1]}.items()",
    "collections.deque([1, [2]])",
    "collections.deque([1], 2)",
    "bytearray(b'b')",
    "decimal.Decimal('1.50')",
    "fractions.Fraction(1, 3)",
)


async def test_plain_data_passes_both_ways_unchanged(verify):
    lines = [f"assert repr(double({value})) == repr({value})" for value in PLAIN]
    imports = "import collections, decimal, fractions\n"
    assert await held(verify, "def double(x): return x\n", task(imports + "\n".join(lines))) == (
        (True,) * len(PLAIN)
    )


COSTLY = ("range(10 ** 9)", "range(10 ** 99)", "__import__('decimal').Decimal('1e999999999')")


@pytest.mark.parametrize("value", COSTLY)
async def test_a_result_that_would_cost_the_judge_much_fails_only_its_assertion(verify, value):
    solution = f"def double(x): return {value} if x == 2 else 2 * x\n"
    assert await held(verify, solution) == (True, False, True)


async def test_state_between_calls_is_kept(verify):
    counting = task("assert double(0) == 1\nassert double(0) == 2")
    assert await held(
        verify, "seen = []\ndef double(x):\n    seen.append(x)\n    return len(seen)\n", counting
    ) == (
        True,
        True,
    )


async def test_an_expected_exception_is_recognised(verify):
    expects = task(
        "def raises(kind):\n    try:\n        double(1)\n    except kind:\n        return True\n"
        "    return False\n\n"
        "assert raises(LookupError)\nassert not raises(Exception)"
    )
    solution = "class Own(KeyError): pass\ndef double(x): raise Own('x')\n"
    assert await held(verify, solution, expects) == (True, False)


DEATHS = (
    "raise SystemExit(0)",
    "raise KeyboardInterrupt",
    "import os; os._exit(0)",
    "return double(x)",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "import sys; sys.setrecursionlimit(10 ** 9); return double(x)",
    "import threading; threading.main_thread().join(0); raise GeneratorExit",
)


async def test_a_solution_that_dies_fails_only_that_assertion(verify, failing):
    async def only_that(death: str) -> bool:
        solution = f"def double(x):\n    if x == 2:\n        {death}\n    return 2 * x\n"
        return await held(verify, solution) == (True, False, True)

    assert await failing({death: death for death in DEATHS}, only_that) == []


async def test_a_solution_that_hangs_fails_only_that_assertion(verify, failing):
    async def only_that(hang: str) -> bool:
        solution = f"def double(x):\n    if x == 2:\n        {hang}\n    return 2 * x\n"
        report = await run_checks(verify, THREE, solution, QUICK)
        return (report.held, report.hung) == ((True, False, True), True)

    assert (
        await failing({"loop": "while True: pass", "sleep": "import time; time.sleep(1000)"}, only_that) == []
    )


async def test_a_solution_that_always_hangs_ends_within_the_time_of_the_whole_run(verify):
    many = task("\n".join(f"assert double({x}) == 0" for x in range(50)))
    limits = CheckLimits(cpu_s=0.2, wall_s=0.3, next_cpu_s=0.1, next_wall_s=0.2, total_s=1.0)
    report = await run_checks(verify, many, "def double(x):\n    while True: pass\n", limits)
    assert (sum(report.held), report.hung) == (0, True)


async def test_a_call_that_waits_for_processors_is_no_hang(verify):
    """Twice as long as it may take on the clock, for the processors are busy with others."""
    hog = [sys.executable, "-c", "while True: pass"]
    hogs = [await asyncio.create_subprocess_exec(*hog) for _ in range(6 * (os.cpu_count() or 1))]
    busy = "import time\ndef double(x):\n    end = time.process_time() + 0.2\n"
    busy += "    while time.process_time() < end: pass\n    return 2 * x\n"
    try:
        report = await run_checks(verify, THREE, busy, replace(QUICK, cpu_s=0.6, wall_s=0.6))
    finally:
        for process in hogs:
            process.kill()
            await process.wait()
    assert (report.held, report.hung) == ((True, True, True), False)


async def test_a_solution_that_no_process_can_be_started_for_is_no_wrong_one(verify):
    async def broken(*, files, **how):
        name = next(name for name in files if name.endswith("/solution_server.py"))
        cut = files[name].replace(
            b"def serve() -> None:\n", b"def serve() -> None:\n    raise SystemExit(1)\n"
        )
        files = {path: text for path, text in files.items() if path.endswith(".py")}
        return await verify(files={**files, name: cut}, **how)

    with pytest.raises(RewardError, match="no process for the solution"):
        await run_checks(broken, THREE, "def double(x):\n    return 2 * x\n")


def test_limits_have_room_for_a_right_solution():
    limits = CheckLimits.beyond(0.2, 3.0)
    assert (limits.cpu_s, limits.next_cpu_s, limits.total_s) == (2.0, 2.0, 30.0)
    assert CheckLimits.beyond(1e-5, 1e-4) == CheckLimits()


UNLOADABLE = (
    "",
    "def double(x)\n",
    "import nothing_of_this_name\n",
    "raise SystemExit\n",
    "double = 3\n",
    "\0",
    "def other(): pass",
)


async def test_a_solution_that_cannot_be_loaded_holds_nothing(verify, failing):
    async def holds_nothing(solution: str) -> bool:
        return not any(await held(verify, solution))

    assert await failing({text: text for text in UNLOADABLE}, holds_nothing) == []


async def test_the_solution_is_alone_with_the_harness():
    files_seen: set[str] = set()

    async def spy(*, command, files, stdin, timeout_s):
        files_seen.update(files)
        nonce = json.loads(stdin)["nonce"]
        return ExecResult(
            exit_code=0, stdout=f"{nonce} ready null\n".encode(), stderr=b"", stdout_total=0, stderr_total=0
        )

    await run_checks(spy, THREE, "text")
    compiled = {path for path in files_seen if "/__pycache__/" in path}
    assert {path.replace("/__pycache__", "").split(".")[0] + ".py" for path in compiled} < files_seen
    assert files_seen - compiled == {
        "solution.py",
        "environments/rewards/verdict/harness.py",
        "environments/rewards/verdict/solution_server.py",
        "tools/sandbox/host/seccomp.py",
        "tools/sandbox/inside/kernel.py",
        "tools/sandbox/inside/processes.py",
    }


async def test_a_harness_that_does_not_start_is_an_error_and_no_number(verify):
    with pytest.raises(RewardError, match="did not start, exit code 1"):
        await run_checks(
            verify, task("assert double(1)", declaration="def broken(:\n"), "def double(x): return 1"
        )


RAISES = "def double(x):\n    if x < 0:\n        raise ValueError(x)\n    return 2 * x\n"
EXPECTED = {
    "assert False in try": "try:\n    double(-1)\n    assert False\nexcept ValueError:\n    pass",
    "a message": "try:\n    double(-1)\n    assert False, 'no error'\nexcept ValueError:\n    pass",
    "assert 0": "try:\n    double(-1)\n    assert 0\nexcept ValueError:\n    pass",
    "else": "try:\n    double(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
    "raise": "try:\n    double(-1)\n    raise AssertionError('none')\nexcept ValueError:\n    pass",
    "bare except": "try:\n    double(-1)\n    assert False\nexcept:\n    pass",
    "a loop in try": "try:\n    for x in [-1]:\n        double(x)\n        assert False\n"
    "except Exception:\n    pass",
    "a try in a loop": "for x in [-1, -2]:\n    try:\n        double(x)\n        assert False\n"
    "    except ValueError:\n        continue",
    "after a try with return": "def check(f):\n    try:\n        f(-1)\n"
    "    except ValueError:\n        return\n    assert False\n\ncheck(double)",
    "pytest.raises": "import pytest\nwith pytest.raises(ValueError):\n    double(-1)",
    "raises with a match": "from pytest import raises\n"
    "with raises(ValueError, match='-1') as seen:\n    double(-1)",
    "if": "if double(1) != 2:\n    raise AssertionError",
}


async def test_what_must_not_be_reached_holds_when_it_was_not(verify, failing):
    async def holds(test: str) -> bool:
        return await held(verify, RAISES, task(test)) == (True,)

    assert await failing(EXPECTED, holds) == []


OTHERWISE = {
    "returns": "def double(x): return 0",
    "exits": "def double(x): raise SystemExit",
    "dies": "def double(x): import os; os._exit(0)",
    "no Python": "def double(x)",
}
OF_EACH_FORM = ("bare except", "after a try with return", "pytest.raises", "if")


async def test_what_must_not_be_reached_does_not_hold_otherwise(verify, failing):
    cases = {
        f"{name}: {form}": (solution, EXPECTED[form])
        for name, solution in OTHERWISE.items()
        for form in (EXPECTED if name == "returns" else OF_EACH_FORM)
    }

    async def does_not_hold(case: tuple[str, str]) -> bool:
        return await held(verify, case[0], task(case[1])) == (False,)

    assert await failing(cases, does_not_hold) == []


async def test_an_exception_with_another_message_does_not_match(verify):
    solution = "def double(x): raise ValueError('other')"
    assert await held(verify, solution, task(EXPECTED["raises with a match"])) == (False,)


async def test_an_exception_that_the_check_of_raises_refuses_does_not_hold(verify):
    checked = task("with raises(OSError, check=lambda error: error.errno == 3):\n    double(1)")
    assert await held(verify, "def double(x): raise OSError(2, 'none')\n", checked) == (False,)


async def test_a_builtin_exception_keeps_its_arguments(verify):
    caught = task(
        "try:\n    double('x')\nexcept KeyError as error:\n    assert repr(error) == \"KeyError('x')\""
    )
    assert await held(verify, "def double(x): return {}[x]", caught) == (True,)


async def test_an_exception_of_the_system_keeps_the_name_of_its_file(verify):
    missing = task("with raises(FileNotFoundError, match='no/such'):\n    double('no/such')")
    assert await held(verify, "def double(x): return open(x)\n", missing) == (True,)


async def test_what_is_not_reached_because_the_test_stopped_before_does_not_hold(verify):
    stopped = task(f"double(None)\n{EXPECTED['assert False in try']}")
    assert await held(verify, RAISES, stopped) == (False,)


@pytest.mark.timeout(600)
async def test_humanevalpack_solutions_hold_everything_and_buggy_ones_do_not(verify):
    wrong: list[str] = []
    slots = asyncio.Semaphore(4)

    async def judge(line: str) -> None:
        item = json.loads(line)
        async with slots:
            right = await run_checks(verify, item, item["declaration"] + item["canonical_solution"])
            buggy = await run_checks(verify, item, item["declaration"] + item["buggy_solution"], QUICK)
        if right.fraction != 1 or buggy.fraction == 1:
            wrong.append(f"{item['task_id']}: {right.fraction} {buggy.fraction}")

    await asyncio.gather(*map(judge, HUMANEVALPACK.read_text().splitlines()))
    assert wrong == []


def test_a_test_without_assertions_is_refused():
    for text in ("def check(", "x = 1", "assert True, 'always'"):
        with pytest.raises(DatasetError, match="task 't'"):
            prepare_test(text, "t")


def test_the_prepared_test_is_python_with_one_record_per_assertion():
    prepared, total = prepare_test("assert a\nif b:\n    assert c\nassert True", "t")
    ast.parse(prepared)
    assert (total, prepared.count("evaluating(")) == (2, 2)
