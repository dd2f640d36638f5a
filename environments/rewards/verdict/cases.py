"""Test cases for an agent's code: it runs in fresh sandboxes, and its output is compared outside."""

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from environments.rewards.reward_context import MAX_VERIFIED_BYTES
from environments.rewards.verdict.frame import Verify
from environments.rewards.verification_time import one_verification
from tools.errors import RewardError
from tools.sandbox.base import ExecResult

_STARTED = "started\n"
_RUNNER = "run_case.py"
_RUNNER_TEXT = f"""
import importlib, json, os, sys
module, function, arguments = json.load(sys.stdin)
out = os.dup(1)
os.write(out, {_STARTED.encode()!r})
nothing = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(nothing, stream)
sys.path[:] = [os.getcwd(), *sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
sys.modules.pop(module.partition(".")[0], None)  # a module of Python that has the name of the agent's
result = getattr(importlib.import_module(module), function)(*arguments)
text = json.dumps(result).encode()
while text:
    text = text[os.write(out, text):]
os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """Results of test cases."""

    held: tuple[bool, ...]
    timed_out: int = 0
    """Number of cases that took too long and so do not hold."""

    @property
    def fraction(self) -> float:
        return sum(self.held) / len(self.held)


async def program_cases(
    verify: Verify,
    command: str | Sequence[str],
    cases: Sequence[tuple[str, str]],
    *,
    artefacts: Sequence[str],
    timeout_s: float = 10.0,
) -> CaseReport:
    """Run a program once per case, each time in a fresh sandbox.

    A case holds if the program ends with 0 and its output equals the expected one but for space at the ends
    of lines and empty lines at the end. Expected output is never in a sandbox.

    Args:
        verify: `ctx.verify`.
        command: The agent's program, as a shell string or an argv.
        cases: Standard input and expected standard output.
        artefacts: The agent's files that the program needs.
        timeout_s: Wall clock of one case; `--env.verify_timeout_s` limits all together.

    Raises:
        RewardError: if there are no cases, or an expected output has more than 2 MB.
        SandboxError: if a sandbox breaks, which the agent cannot cause.
    """
    run = partial(verify, command=command, artefacts=artefacts, timeout_s=timeout_s)
    return await _report(
        cases, lambda given: run(stdin=given.encode()), lambda text, right: _lines(text) == _lines(right)
    )


async def function_cases(
    verify: Verify,
    function: str,
    cases: Sequence[tuple[Sequence[Any], Any]],
    *,
    artefacts: Sequence[str] = (),
    timeout_s: float = 10.0,
    rel_tol: float = 1e-9,
) -> CaseReport:
    """Call the agent's Python function once per case, each time in a fresh sandbox.

    Arguments and results are JSON values; tuples become lists. An expected float is equal within `rel_tol`,
    an integer exactly, NaN to NaN, and no number to true or false. Output of the code is ignored.

    Args:
        verify: `ctx.verify`; Python 3 must be in its sandboxes.
        function: Its file in the workspace and its name there, `answer.py:double`.
        cases: Arguments and the expected result.
        artefacts: Other files of the agent that this file needs.
        timeout_s: Wall clock of one case; `--env.verify_timeout_s` limits all together.
        rel_tol: Allowed difference of floats, as a share of the larger one; where 0.0 is expected, the
            difference itself.

    Raises:
        RewardError: if there are no cases, no Python, `function` has another form, or an expected result has
            more than 2 MB as JSON.
        SandboxError: if a sandbox breaks, which the agent cannot cause.
    """
    path, _, name = function.rpartition(":")
    parts = path.removesuffix(".py").split("/")
    if not path.endswith(".py") or not name or not all(parts) or any("." in part for part in parts):
        raise RewardError(
            f"function_cases: {function!r:.100} is not a function; give its file as in the workspace, "
            f"without a dot in a name, and the function: answer.py:double"
        )
    run = partial(
        verify,
        command=["sh", "-c", f'exec python3 -I -X int_max_str_digits=0 "$VERIFIER/{_RUNNER}"'],
        artefacts=[path, *artefacts],
        files={_RUNNER: _RUNNER_TEXT},
        timeout_s=timeout_s,
    )

    async def call(arguments: Sequence[Any]) -> ExecResult:
        result = await run(stdin=json.dumps([".".join(parts), name, list(arguments)]).encode())
        if not result.text().startswith(_STARTED) and not result.timed_out:
            raise RewardError(
                f"the case of {function} did not start: exit code {result.exit_code}, "
                f"{result.stderr[-200:].decode('utf-8', 'replace').strip()!r}; is Python 3 in the sandbox?"
            )
        return result

    def equal(text: str, expected: str) -> bool:
        try:
            found = json.loads(text.removeprefix(_STARTED))
        except (ValueError, RecursionError):
            return False
        return _equal(found, json.loads(expected), rel_tol)

    return await _report([(given, json.dumps(expected)) for given, expected in cases], call, equal)


async def _report(
    cases: Sequence[tuple[Any, str]],
    run: Callable[[Any], Awaitable[ExecResult]],
    equal: Callable[[str, str], bool],
) -> CaseReport:
    if not cases:
        raise RewardError("there are no cases, so nothing of the agent's code is known")
    if any(len(_STARTED) + len(expected.encode()) > MAX_VERIFIED_BYTES for _, expected in cases):
        raise RewardError(
            f"an expected output is longer than the {MAX_VERIFIED_BYTES >> 20} MB that are read"
        )
    with one_verification():
        results = [await run(given) for given, _ in cases]
    held = tuple(
        result.exit_code == 0 and not result.timed_out and len(result.stdout) == result.stdout_total
        and equal(result.text(), expected)
        for result, (_, expected) in zip(results, cases, strict=True)
    )  # fmt: skip
    return CaseReport(held=held, timed_out=sum(result.timed_out for result in results))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _equal(result: Any, expected: Any, rel_tol: float) -> bool:
    if isinstance(expected, bool) or isinstance(result, bool):
        return result is expected
    if isinstance(expected, float) and isinstance(result, int | float):
        try:
            near = math.isclose(result, expected, rel_tol=rel_tol, abs_tol=0.0 if expected else rel_tol)
            return near or (math.isnan(result) and math.isnan(expected))
        except OverflowError:  # an integer beyond every float
            return False
    if isinstance(expected, list) and isinstance(result, list):
        lists = cast("list[Any]", result), cast("list[Any]", expected)
        same_length = len(lists[0]) == len(lists[1])
        return same_length and all(_equal(*pair, rel_tol) for pair in zip(*lists, strict=True))
    if isinstance(expected, dict) and isinstance(result, dict):
        ours, theirs = cast("dict[str, Any]", expected), cast("dict[str, Any]", result)
        return ours.keys() == theirs.keys() and all(_equal(theirs[k], ours[k], rel_tol) for k in ours)
    return result == expected
