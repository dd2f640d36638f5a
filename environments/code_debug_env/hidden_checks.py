"""The hidden checks of a task: how many of its assertions a solution holds, each counted on its own."""

import ast
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tools.errors import DatasetError, RewardError
from tools.sandbox.base import ExecResult

HARNESS = Path(__file__).with_name("harness.py").read_text()
RECORDS = "__assertions__"


class Verify(Protocol):
    """`RolloutContext.verify`: runs a command in a fresh sandbox that holds only the given files."""

    async def __call__(
        self,
        *,
        command: str | Sequence[str],
        files: Mapping[str, bytes | str],
        stdin: bytes,
        timeout_s: float,
    ) -> ExecResult:
        """Run it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """How long a solution may take. Processor time counts, so that a busy machine makes no hang."""

    cpu_s: float = 1.0
    """Processor time of one call."""
    wall_s: float = 2.5
    """Wall clock of one call, for those that sleep."""
    next_cpu_s: float = 0.25
    """The limits of a call once another one has hung."""
    next_wall_s: float = 0.5
    total_s: float = 5.0
    """Wall clock of all calls together; those that find no time left fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Which assertions of a test held."""

    held: tuple[bool, ...]
    """One per assert statement, in the order of the text."""
    hung: bool = False
    """Whether a call had to be stopped because it did not come back."""

    @property
    def fraction(self) -> float:
        """Held assertions by all assertions."""
        return sum(self.held) / len(self.held)


async def run_checks(
    verify: Verify, task: Mapping[str, Any], solution: bytes | str, limits: CheckLimits | None = None
) -> CheckReport:
    """Judge a solution by the hidden test of a HumanEvalPack task.

    Every assert statement counts once: it holds when it was evaluated at least once and was true every time.
    A solution that hangs, crashes or ends its process fails the assertions that this happened in.

    Args:
        verify: Runs the harness away from the agent's sandbox.
        task: Needs `task_id`, `declaration`, `entry_point` and `test`.
        solution: The text of the whole solution file.
        limits: What one run may take.

    Raises:
        DatasetError: the task's test cannot be read.
        RewardError: the harness itself failed, whatever the solution is.
    """
    limits = limits or CheckLimits()
    prepared, total = prepare_test(task["test"], task["task_id"])
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        # Helpers that the test uses come from the task, not from the solution.
        "declaration": f"{task['declaration'].rstrip()}\n    pass\n",
        "entry_point": task["entry_point"],
        "test": prepared,
        "solution": "solution.py",
        "limits": {name: getattr(limits, name) for name in CheckLimits.__dataclass_fields__},
    }
    result = await verify(
        command=["python3", "-I", "-S", "harness.py"],
        files={"harness.py": HARNESS, "solution.py": solution},
        stdin=json.dumps(request).encode(),
        timeout_s=limits.total_s + 5.0,
    )
    lines = [line.split()[1:] for line in result.text().splitlines() if line.startswith(nonce)]
    if ["ready"] not in lines:
        said = result.stderr.decode("utf-8", "replace")[-500:].strip()
        raise RewardError(
            f"task {task['task_id']!r}: the hidden checks did not start, exit code {result.exit_code}: {said}"
        )
    verdicts = {int(line[0]): line[1] == "1" for line in lines if len(line) == 2}
    held = tuple(verdicts.get(index, False) for index in range(total))
    return CheckReport(held=held, hung=["hung"] in lines)


def prepare_test(test: str, task_id: str) -> tuple[str, int]:
    """The test with every assertion recorded on its own, and how many there are.

    Assertions of a true constant (`assert True`) say nothing and are dropped.

    Raises:
        DatasetError: the text is not Python, or asserts nothing.
    """
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError) as error:
        raise DatasetError(f"task {task_id!r}: the test is not Python: {error}") from None
    recorder = _AssertionRecorder()
    recorded = ast.fix_missing_locations(recorder.visit(tree))
    if recorder.count == 0:
        raise DatasetError(f"task {task_id!r}: the test has no assert statement")
    return ast.unparse(recorded), recorder.count


class _AssertionRecorder(ast.NodeTransformer):
    """Turns each `assert x` into code that records whether it held and goes on."""

    def __init__(self) -> None:
        self.count = 0

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return ast.Pass()
        index, self.count = self.count, self.count + 1
        template = f"if {RECORDS}.open({index}):\n    with {RECORDS}.evaluating({index}):\n        assert _"
        guarded = ast.parse(template).body[0]
        for inner in ast.walk(guarded):
            if isinstance(inner, ast.Assert):
                inner.test = node.test
        return guarded
