"""Runs the programs of this folder in fresh sandboxes: hidden tests, and calls that show a failure."""

import json
import marshal
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER, source_hash
from itertools import starmap
from pathlib import Path
from typing import Any

from environments.rewards.code_cases import Verify
from environments.rewards.code_judge.prepared_test import prepare_test
from tools.errors import RewardError
from tools.sandbox.base import ExecResult

Task = Mapping[str, Any]
"""One task in the schema of HumanEvalPack."""
REQUIRED_FIELDS = (
    "task_id",
    "prompt",
    "declaration",
    "canonical_solution",
    "buggy_solution",
    "entry_point",
    "test",
)

ROOT = Path(__file__).parents[3]
SERVER = (
    "environments.rewards.code_judge.solution_server",
    "tools.sandbox.host.seccomp",
    "tools.sandbox.inside.kernel",
    "tools.sandbox.inside.processes",
)
MARGIN = 10.0
"""So many times what the right solution takes: solutions differ, and so do machines."""
STARVED_S = 30.0
"""Wall clock that the judge may take beyond the limits of the solution, to wait for processors."""
MAX_CALLS = 200
RERUN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """How long a solution may take. Waiting for a processor counts nowhere: a busy machine makes no hang."""

    cpu_s: float = 0.25
    """Processor time of one call."""
    wall_s: float = 1.0
    """Wall clock of one call, for those that sleep."""
    next_cpu_s: float = 0.05
    """The limits of a call once another one has hung."""
    next_wall_s: float = 0.25
    total_s: float = 2.5
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
    ended: bool = True
    """Whether the test came to its end."""
    slowest_s: float = 0.0
    """Processor time of the slowest call."""
    cpu_s: float = 0.0
    """Processor time of all calls."""

    @property
    def fraction(self) -> float:
        """Held assertions by all assertions."""
        return sum(self.held) / len(self.held)


def buggy_text(task: Task) -> str:
    """The solution file at the start."""
    return task["prompt"] + task["buggy_solution"]


def fixed_text(task: Task) -> str:
    """The solution file as it should be."""
    return task["prompt"] + task["canonical_solution"]


async def run_checks(
    verify: Verify, task: Task, solution: bytes | str, limits: CheckLimits | None = None
) -> CheckReport:
    """Judge a solution by the hidden test of a task.

    Every assertion counts once: see `prepare_test`. A solution that hangs, crashes or ends its process fails
    the assertions that this happened in; one that keeps the judge from its end fails all of them.

    Args:
        verify: `ctx.verify`: runs the harness away from the agent's sandbox.
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
        # Where helpers that the test uses come from: the task, not the solution.
        "declaration": f"{task['declaration'].rstrip()}\n    pass\n",
        "entry_point": task["entry_point"],
        "test": prepared,
        "solution": "solution.py",
        "limits": asdict(limits),
    }
    result = await verify(
        command=_command("harness"),
        files={**_modules("harness", *SERVER), "solution.py": solution},
        stdin=json.dumps(request).encode(),
        timeout_s=limits.total_s + STARVED_S,
    )
    lines = [line.split(" ", 2) for line in result.text().splitlines()]
    reports = {word: data for key, word, data in (line for line in lines if len(line) == 3) if key == nonce}
    if "ready" not in reports and not result.timed_out:
        raise _not_started("the hidden checks", task, result)
    if "end" not in reports:
        # What the solution did to the judge, or made it do, is no proof of anything.
        return CheckReport(held=(False,) * total, hung=True, ended=False)
    end = json.loads(reports["end"])
    held = tuple(index in end["held"] for index in range(total))
    return CheckReport(held=held, hung=end["hung"], slowest_s=end["slowest_s"], cpu_s=end["cpu_s"])


_OBSERVER_PACKAGES = {
    f"{folder}/__init__.py": b""
    for folder in (
        "environments", "environments/rewards", "environments/rewards/code_judge",
        "tools", "tools/sandbox", "tools/sandbox/inside",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """What commands did when they ran once more."""

    notes: str
    """The calls of the task's function; empty where there was none."""
    output: str
    """What the commands printed to either stream, its middle cut."""


async def note_calls(  # noqa: PLR0913  # one run, all of it by keyword
    verify: Verify,
    task: Task,
    commands: Sequence[str],
    *,
    workspace: str,
    limits: CheckLimits,
    total_s: float = RERUN_S,
    is_right: bool = False,
) -> Rerun:
    """How commands call the task's function as it was at the start, what comes of it, and what they print.

    They run once more, in a fresh sandbox with the agent's files and the original solution, each in the
    workspace. The notes are only a claim, since the commands could have written them.

    Args:
        verify: `ctx.verify` of the rollout, whose workspace has to be as the commands left it.
        task: Needs `entry_point`, `prompt` and `buggy_solution`.
        commands: Of one turn, in order; each runs in a shell of its own.
        workspace: The folder of the agent's sandbox, which the commands may name.
        limits: What a call of the task's function may take.
        total_s: Wall clock of all commands, without that in which they wait for a processor.
        is_right: Whether the function answers as the right solution does, in the same file.

    Raises:
        SandboxError: a sandbox is broken.
    """
    request = {
        "commands": list(commands),
        "workspace": workspace,
        "entry_point": task["entry_point"],
        "solution": buggy_text(task),
        "right": fixed_text(task) if is_right else "",
        "cpu_s": limits.cpu_s,
        "wall_s": 2 * limits.wall_s,
        "total_s": total_s,
        "starved_s": STARVED_S / 2,
    }
    result = await verify(
        # With the environment of a verification, which keeps what the agent left from being imported.
        command=("python3", "-m", f"{__package__}.observer"),
        artefacts=["."],
        files={**_OBSERVER_PACKAGES, **_modules("observer", *SERVER[2:])},
        stdin=json.dumps(request).encode(),
        timeout_s=total_s + STARVED_S,
    )
    notes = result.text()
    return Rerun(
        notes=notes if "('called', " in notes else "", output=result.stderr.decode("utf-8", "replace")
    )


def is_seen(text: str, original: str, right: str) -> bool:
    """Whether the text that an agent was shown has a line that only the failure prints.

    Or, where a failure prints nothing of its own, it lacks what would have been printed without one.

    Args:
        text: The results of the commands.
        original: What they printed when they ran once more.
        right: What they printed when the function answered as it should.
    """
    seen, failing, passing = (
        set(map(str.strip, each.splitlines())) - {""} for each in (text, original, right)
    )
    if failing - passing:
        return not seen.isdisjoint(failing - passing)
    return bool(passing - failing) and seen.isdisjoint(passing - failing)


async def calls_fail(verify: Verify, task: Task, notes: str, limits: CheckLimits) -> bool:
    """Whether one of the noted calls goes as noted on the original, and the right solution does otherwise.

    The calls are made in a sandbox where nothing of the agent's runs. So whatever forges the notes has to
    know a call that fails, and how it does.

    Raises:
        RewardError: the comparison itself failed.
        SandboxError: a sandbox is broken.
    """
    request = {
        "notes": notes,
        "max_calls": MAX_CALLS,
        "entry_point": task["entry_point"],
        "original": "original.py",
        "right": "right.py",
        "limits": asdict(limits),
    }
    solutions = {"original.py": buggy_text(task), "right.py": fixed_text(task)}
    result = await verify(
        command=_command("comparison"),
        files={**_modules("comparison", *SERVER), **solutions},
        stdin=json.dumps(request).encode(),
        timeout_s=limits.total_s * 2 + STARVED_S,
    )
    words = result.text().split()
    if "ready" not in words and not result.timed_out:
        raise _not_started("the comparison", task, result)
    return "shown" in words


def _command(program: str) -> tuple[str, ...]:
    # Not by `-m`, which imports a third of what the program itself does.
    start = f"from {__package__}.{program} import main; main()"
    return ("python3", "-E", "-s", "-S", "-c", start)


@cache
def _modules(*names: str) -> Mapping[str, bytes]:
    """The texts of a module of this folder, and of others, as a fresh sandbox gets them."""
    paths = [f"{name.replace('.', '/')}.py" for name in (f"{__package__}.{names[0]}", *names[1:])]
    texts = {path: (ROOT / path).read_bytes() for path in paths}
    return texts | dict(starmap(_compiled, texts.items()))


def _compiled(path: str, text: bytes) -> tuple[str, bytes]:
    """What Python would have to compile again in each sandbox; one of another version does not look at it."""
    folder, _, name = path.rpartition("/")
    code = compile(text, path, "exec", dont_inherit=True, optimize=0)
    # PEP 552: the flags say that it is not compared with the source.
    header = MAGIC_NUMBER + (0b01).to_bytes(4, "little") + source_hash(text)
    place = f"{folder}/__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
    return place, header + marshal.dumps(code)


def _not_started(what: str, task: Task, result: ExecResult) -> RewardError:
    reason = result.stderr.decode("utf-8", "replace")[-500:].strip()
    return RewardError(
        f"task {task['task_id']!r}: {what} did not start, exit code {result.exit_code}: {reason}"
    )
