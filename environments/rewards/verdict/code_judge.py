"""`CodeJudge`: judges Python functions that an agent repairs, by hidden tests and calls from outside."""

import asyncio
import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar, cast, get_args

from environments.rewards.artefacts import TakenFiles
from environments.rewards.reward_context import RolloutContext
from environments.rewards.verdict.frame import PROGRAMS, Verify, command_of, modules, run_program
from environments.rewards.verdict.prepared_test import prepare_test
from environments.rewards.verification_time import off_the_clock
from environments.trajectory import Turn
from tools.errors import DatasetError, RewardError
from tools.sandbox.base import MAX_READ_BYTES, NoSandbox, Sandbox
from tools.sandbox.layers import take

T = TypeVar("T")
Task = Mapping[str, Any]
"""One task in the schema of HumanEvalPack."""
REQUIRED_FIELDS = (
    "task_id", "prompt", "declaration", "canonical_solution", "buggy_solution", "entry_point", "test",
)  # fmt: skip
SERVER = (
    f"{PROGRAMS}.solution_server",
    "tools.sandbox.host.seccomp",
    "tools.sandbox.inside.kernel",
    "tools.sandbox.inside.processes",
)
MARGIN = 10.0
"""So many times what the right solution takes: solutions differ, and so do machines."""
STARVED_S = 30.0
"""Wall clock that the judge may take beyond the limits of the solution, to wait for processors."""
MAX_CALLS = 200
MAX_ANSWERS = 64
"""Kept of an item."""
MAX_NAMED = 20
_OBSERVER_PACKAGES = {
    f"{folder}/__init__.py": b""
    for folder in (
        "environments", "environments/rewards", "environments/rewards/verdict",
        "tools", "tools/sandbox", "tools/sandbox/inside",
    )
}  # fmt: skip
"""The agent may have left packages of these names."""
Unsound = Literal["drop", "refuse", "keep"]


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


ROOMY = CheckLimits(cpu_s=5.0, wall_s=10.0, total_s=10.0)
"""For the right solution of a dataset's item, which sets the others' limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
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
        return sum(self.held) / len(self.held)


def buggy_text(task: Task) -> str:
    return task["prompt"] + task["buggy_solution"]


def fixed_text(task: Task) -> str:
    return task["prompt"] + task["canonical_solution"]


async def run_checks(
    verify: Verify, task: Task, solution: bytes | str, limits: CheckLimits | None = None
) -> CheckReport:
    """Judge a solution by the hidden test of a task.

    Every assertion counts once: see `prepare_test`. A solution that hangs, crashes or ends its process fails
    the assertions that this happened in; one that keeps the judge from its end fails all of them.

    Raises:
        DatasetError: the task's test cannot be read.
        RewardError: the harness itself failed, whatever the solution is.
    """
    limits = limits or CheckLimits()
    prepared, total = prepare_test(task["test"], task["task_id"])
    request = {
        # Where helpers that the test uses come from: the task, not the solution.
        "declaration": f"{task['declaration'].rstrip()}\n    pass\n",
        "entry_point": task["entry_point"],
        "test": prepared,
        "solution": "solution.py",
        "limits": asdict(limits),
    }
    files = {**modules(f"{PROGRAMS}.harness", *SERVER), "solution.py": solution}
    timeout_s = limits.total_s + STARVED_S
    report = await run_program(verify, command_of("harness"), request, files, timeout_s=timeout_s)
    if not report.ready and not report.result.timed_out:
        raise RewardError(f"task {task['task_id']!r}: the hidden checks did not start, {report.reason}")
    if report.end is None:
        # What the solution did to the judge, or made it do, is no proof of anything.
        return CheckReport(held=(False,) * total, hung=True, ended=False)
    held = tuple(index in report.end["held"] for index in range(total))
    times = {name: report.end[name] for name in ("hung", "slowest_s", "cpu_s")}
    return CheckReport(held=held, **times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
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
    total_s: float = 20.0,
    is_right: bool = False,
) -> Rerun:
    """How commands call the task's function as it was at the start, what comes of it, and what they print.

    They run once more, in a fresh sandbox with the agent's files and the original solution, each in the
    workspace. The notes are only a claim, since the commands could have written them.

    Args:
        verify: `ctx.verify` of the rollout, whose workspace has to be as the commands left it.
        task: The task.
        commands: Of one turn, in order; each runs in a shell of its own.
        workspace: The folder of the agent's sandbox, which the commands may name.
        limits: What a call of the task's function may take.
        total_s: Wall clock of all commands.
        is_right: Whether the function answers as the right solution does, in the same file.
    """
    request = {
        "commands": list(commands),
        "workspace": workspace,
        "entry_point": task["entry_point"],
        "solution": buggy_text(task),
        "right": fixed_text(task) if is_right else "",
        # In whole seconds, of a process, and of it in one call.
        "cpu_s": math.ceil(total_s / 2),
        "call_cpu_s": math.ceil(limits.cpu_s),
        "wall_s": total_s,
    }
    result = await verify(
        # With the environment of a verification, which keeps what the agent left from being imported.
        command=("python3", "-m", f"{PROGRAMS}.observer"),
        artefacts=["."],
        files={**_OBSERVER_PACKAGES, **modules(f"{PROGRAMS}.observer", *SERVER[2:])},
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
    `original` is what its commands print when they run once more, and `right` the same where the function
    answers as it should.
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
    files = {**modules(f"{PROGRAMS}.comparison", *SERVER), **solutions}
    timeout_s = limits.total_s * 2 + STARVED_S
    report = await run_program(verify, command_of("comparison"), request, files, timeout_s=timeout_s)
    if not report.ready and not report.result.timed_out:
        raise RewardError(f"task {task['task_id']!r}: the comparison did not start, {report.reason}")
    return bool(report.end)


class _Once:
    """Answers by key: siblings write equal solutions, and only those wait for each other."""

    def __init__(self) -> None:
        self._entries: dict[object, tuple[asyncio.Lock, list[Any]]] = {}

    async def get(self, key: object, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, asked for where none is known; when the one who asks is cancelled the next one does."""
        if key not in self._entries and len(self._entries) >= MAX_ANSWERS:
            del self._entries[next(iter(self._entries))]
        lock, answers = self._entries.setdefault(key, (asyncio.Lock(), []))
        with off_the_clock():
            await lock.acquire()
        try:
            if not answers:
                answers.append(await ask())
            return answers[0]
        finally:
            lock.release()


class CodeJudge:
    """Judges the solutions of an environment's items, which have the schema of HumanEvalPack."""

    def __init__(self) -> None:
        self.learned_limits: dict[str, CheckLimits] = {}
        """What solutions may take, by `task_id`, with room for the right one; as learned of a dataset."""
        self._answers: defaultdict[str, _Once] = defaultdict(_Once)

    async def check(self, verify: Verify, item_id: str, task: Task, solution: bytes) -> CheckReport:
        """The hidden checks of a solution, as `run_checks`; an equal one of a sibling is judged once."""
        run = partial(run_checks, verify, task, solution, self.learned_limits.get(task["task_id"]))
        return await self._answers[item_id].get(hashlib.sha256(solution).digest(), run)

    async def shows_failure(
        self, verify: Verify, item_id: str, task: Task, turn: Turn, files: TakenFiles
    ) -> bool:
        """Whether a terminal command of the turn showed that the function fails as it was at the start.

        Found by running the commands again; see `note_calls`, `calls_fail` and `is_seen`. That happens once
        where siblings ran equal commands over equal files and saw the same.
        `verify` and `files` are the rollout's, directly after the turn.
        """
        once, limits = self._answers[item_id], self.learned_limits.get(task["task_id"], CheckLimits())
        ran = {result.call_id for result in turn.tool_results if result.exit_code is not None}
        calls = [each for each in turn.message.tool_calls if each.name == "terminal" and each.id in ran]
        if not calls:
            return False
        # They ran, so their arguments are objects with a command.
        commands = [str(json.loads(each.arguments)["command"]) for each in calls]
        text = "\n".join(result.content for result in turn.tool_results if result.exit_code is not None)
        rerun = partial(note_calls, verify, task, commands, workspace=files.workdir, limits=limits)

        async def shows() -> bool:
            original = await rerun()
            fail = partial(calls_fail, verify, task, original.notes, limits)
            calls = "calls", hashlib.sha256(original.notes.encode()).digest()
            if not original.notes or not await once.get(calls, fail):
                return False
            return is_seen(text, original.output, (await rerun(is_right=True)).output)

        left = await take(files, ["."], max_bytes=MAX_READ_BYTES)
        facts = repr((commands, text, sorted(left.items(), key=lambda each: each[0])))
        return await once.get(hashlib.sha256(facts.encode("utf-8", "backslashreplace")).hexdigest(), shows)

    async def learn(self, verify: Verify, task: Task) -> None:
        """Learns the limits of an item of a dataset where `sound_items` was not asked, as for a record."""
        if task["task_id"] not in self.learned_limits:
            await self._problem(verify, task)
            self.learned_limits.setdefault(task["task_id"], CheckLimits())

    async def sound_items(
        self,
        tasks: Mapping[str, Task],
        open_sandbox: Callable[[], AbstractAsyncContextManager[Sandbox]],
        unsound: Unsound,
        notify: Callable[[str], None],
    ) -> Mapping[str, Task]:
        """The items that can be judged: their right solution holds every check, the buggy one does not.

        Of those the limits are learned: solutions of an item get room for ten times the right one's time.

        Args:
            tasks: By their ids.
            open_sandbox: Opens a fresh one; only a dataset's own code runs in it.
            unsound: Whether the others are left out, refused, or kept.
            notify: Gets one line before the checks, and one that names the others.

        Raises:
            DatasetError: an item cannot be judged and is refused, or none can.
            SandboxError: a sandbox is broken.
        """
        notify(f"running the hidden checks of {len(tasks)} items against their own solutions")
        slots = asyncio.Semaphore(min(4, os.cpu_count() or 1))
        nobody = cast("Sandbox", NoSandbox())
        verify = RolloutContext(env="", item_id="", sandbox=nobody, fresh_sandbox=open_sandbox).verify

        async def problem(task: Task) -> str:
            async with slots:
                return await self._problem(verify, task)

        found = await asyncio.gather(*map(problem, tasks.values()))
        problems = {item_id: text for item_id, text in zip(tasks, found, strict=True) if text}
        if not problems:
            return tasks
        named = "; ".join(f"{item_id}: {text}" for item_id, text in islice(problems.items(), MAX_NAMED))
        line = f"{len(problems)} of {len(tasks)} items cannot be judged ({unsound}): {named}"
        if unsound == "refuse" or (unsound == "drop" and len(problems) == len(tasks)):
            raise DatasetError(f"{line}; --env.unsound_items is one of {', '.join(get_args(Unsound))}")
        notify(line)
        return {each: tasks[each] for each in tasks if unsound == "keep" or each not in problems}

    async def _problem(self, verify: Verify, task: Task) -> str:
        try:
            right = await run_checks(verify, task, fixed_text(task), ROOMY)
            if right.fraction == 1:
                limits = CheckLimits.beyond(right.slowest_s, right.cpu_s)
                self.learned_limits[task["task_id"]] = limits
                buggy = await run_checks(verify, task, buggy_text(task), limits)
                return "the buggy solution holds every check" if buggy.fraction == 1 else ""
        except (DatasetError, RewardError) as error:
            return str(error)
        return "its own solution fails a check" if right.ended else "its test does not end"
