"""The hidden checks of a task: how many of its assertions a solution holds, each counted on its own."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from environments.code_debug_env.prepared_test import prepare_test
from tools.errors import RewardError
from tools.sandbox.base import ExecResult

FOLDER = Path(__file__).parent
MARGIN = 10.0
"""So many times what the right solution takes: solutions differ, and so do machines."""
STARVED_S = 30.0
"""Wall clock that the judge may take beyond the limits of the solution, to wait for processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of this folder, as a fresh sandbox runs it."""

    command: tuple[str, ...]
    files: Mapping[str, str]


@cache
def program(name: str, *imported: str) -> Program:
    """A module to run, with those of this folder that it imports."""
    package = __package__ or ""
    folder = package.replace(".", "/")
    return Program(
        command=("python3", "-E", "-s", "-S", "-m", f"{package}.{name}"),
        files={
            f"{folder}/{module}.py": (FOLDER / f"{module}.py").read_text() for module in (name, *imported)
        },
    )


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
    """How long a solution may take. Waiting for a processor counts nowhere: a busy machine makes no hang."""

    cpu_s: float = 1.0
    """Processor time of one call."""
    wall_s: float = 2.5
    """Wall clock of one call, for those that sleep."""
    next_cpu_s: float = 0.25
    """The limits of a call once another one has hung."""
    next_wall_s: float = 0.5
    total_s: float = 5.0
    """Wall clock of all calls together; those that find no time left fail."""

    @classmethod
    def beyond(cls, slowest_s: float, total_s: float) -> "CheckLimits":
        """Limits with room for a right solution: its slowest call and all of them, in processor time."""
        limits = cls()
        cpu_s, next_cpu_s = max(limits.cpu_s, MARGIN * slowest_s), max(limits.next_cpu_s, MARGIN * slowest_s)
        return cls(
            cpu_s=cpu_s,
            wall_s=max(limits.wall_s, 2 * cpu_s),
            next_cpu_s=next_cpu_s,
            next_wall_s=max(limits.next_wall_s, 2 * next_cpu_s),
            total_s=max(limits.total_s, MARGIN * total_s),
        )


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

    Every assertion counts once: see `prepare_test`. A solution that hangs, crashes or ends its process fails
    the assertions that this happened in; one that keeps the judge from its end fails all of them.

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
    harness = program("harness", "solution_server", "confinement", "object_graph")
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "declaration": declaration_of(task),
        "entry_point": task["entry_point"],
        "test": prepared,
        "solution": "solution.py",
        "limits": asdict(limits),
    }
    result = await verify(
        command=harness.command,
        files={**harness.files, "solution.py": solution},
        stdin=json.dumps(request).encode(),
        timeout_s=limits.total_s + STARVED_S,
    )
    reports = {
        word: data
        for line in result.text().splitlines()
        for key, _, said in [line.partition(" ")]
        if key == nonce
        for word, _, data in [said.partition(" ")]
    }
    if "ready" not in reports:
        said = result.stderr.decode("utf-8", "replace")[-500:].strip()
        raise RewardError(
            f"task {task['task_id']!r}: the hidden checks did not start, exit code {result.exit_code}: {said}"
        )
    if "end" not in reports:
        # What the solution did to the judge, or made it do, is no proof of anything.
        return CheckReport(held=(False,) * total, hung=True)
    end = json.loads(reports["end"])
    held = tuple(index in end["held"] for index in range(total))
    return CheckReport(held=held, hung=end["hung"])


def declaration_of(task: Mapping[str, Any]) -> str:
    """Where helpers that the test uses come from: the task, not the solution."""
    return f"{task['declaration'].rstrip()}\n    pass\n"
