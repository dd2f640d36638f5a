"""`CodeJudge`: judges repaired Python functions by hidden tests."""

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

from environments.rewards.reward_context import AgentFiles, RolloutContext
from environments.rewards.verdict.frame import PROGRAMS, Report, Verify, modules, program, run_program
from environments.rewards.verdict.prepared_test import prepare_test
from environments.rewards.verification_time import off_the_clock
from environments.trajectory import Turn
from tools.errors import DatasetError, RewardError
from tools.sandbox.base import MAX_READ_BYTES, NoSandbox, Sandbox
from tools.sandbox.layers import take

T = TypeVar("T")
Task = Mapping[str, Any]
REQUIRED_FIELDS = (
    "task_id", "prompt", "declaration", "canonical_solution", "buggy_solution", "entry_point", "test",
)  # fmt: skip
HARNESS = (
    f"{PROGRAMS}.harness",
    f"{PROGRAMS}.solution_server",
    "tools.sandbox.host.seccomp",
    "tools.sandbox.inside.kernel",
    "tools.sandbox.inside.processes",
)
MARGIN = 10.0
STARVED_S = 30.0
"""Wall clock for the judge to wait for processors."""
MAX_CALLS = 200
MAX_ANSWERS = 64
MAX_NAMED = 20
Unsound = Literal["drop", "refuse", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """Time limits of a solution, without the time in which it waits for a processor."""

    cpu_s: float = 0.25
    wall_s: float = 1.0
    next_cpu_s: float = 0.05
    """Limits of each call after one that hung."""
    next_wall_s: float = 0.25
    total_s: float = 2.5

    @classmethod
    def beyond(cls, slowest_s: float, total_s: float) -> "CheckLimits":
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    held: tuple[bool, ...]
    """One entry per assert statement, in order."""
    hung: bool = False
    ended: bool = True
    slowest_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def fraction(self) -> float:
        return sum(self.held) / len(self.held)


def buggy_text(task: Task) -> str:
    return task["prompt"] + task["buggy_solution"]


def right_text(task: Task) -> str:
    return task["prompt"] + task["canonical_solution"]


async def run_checks(
    verify: Verify, task: Task, solution: bytes | str, limits: CheckLimits | None = None
) -> CheckReport:
    """Judge a solution by the hidden test of a task.

    A solution that hangs or crashes fails the assertion at hand; if the judge cannot finish, all fail.
    """
    limits = limits or CheckLimits()
    prepared, total = prepare_test(task["test"], task["task_id"])
    request = {
        # Helpers that the test uses come from the task, not from the solution.
        "declaration": f"{task['declaration'].rstrip()}\n    pass\n",
        "entry_point": task["entry_point"],
        "test": prepared,
        "solution": "solution.py",
        "limits": asdict(limits),
    }
    report = await _run_harness(
        verify, "judge_solution, 1", task, request, {"solution.py": solution}, limits.total_s
    )
    if report.end is None:
        # The solution has broken the judge, so no assertion is proven.
        return CheckReport(held=(False,) * total, hung=True, ended=False)
    held = tuple(index in report.end["held"] for index in range(total))
    times = {name: report.end[name] for name in ("hung", "slowest_s", "cpu_s")}
    return CheckReport(held=held, **times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    notes: str
    output: str


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
    """Run the commands of a turn again over the original solution; note its calls and the output.

    The notes are only a claim, since the commands could have written them. With `is_right` the function
    answers as the right solution does.
    """
    request = {
        "commands": list(commands),
        "workspace": workspace,
        "entry_point": task["entry_point"],
        "solution": buggy_text(task),
        "right": right_text(task) if is_right else "",
        # Whole seconds of a process, and of one call in it.
        "cpu_s": math.ceil(total_s / 2),
        "call_cpu_s": math.ceil(limits.cpu_s),
        "wall_s": total_s,
    }
    result = await verify(
        command=program("observer", "main()"),
        artefacts=["."],
        files=modules(f"{PROGRAMS}.observer", *HARNESS[3:]),
        stdin=json.dumps(request).encode(),
        timeout_s=total_s + STARVED_S,
    )
    notes = result.text()
    return Rerun(
        notes=notes if "('called', " in notes else "", output=result.stderr.decode("utf-8", "replace")
    )


def is_seen(text: str, original: str, right: str) -> bool:
    """Whether the text that the agent saw has a line that only the failure prints.

    If a failure prints no such line, the text must lack a line of the right output. `original` and `right`
    are the outputs over the original and the right function.
    """
    seen, failing, passing = (
        set(map(str.strip, each.splitlines())) - {""} for each in (text, original, right)
    )
    if failing - passing:
        return not seen.isdisjoint(failing - passing)
    return bool(passing - failing) and seen.isdisjoint(passing - failing)


async def calls_fail(verify: Verify, task: Task, notes: str, limits: CheckLimits) -> bool:
    """Whether a noted call behaves as noted on the original, and differently on the right solution.

    The calls are repeated without the agent's code, so a forged note only counts if it is true.
    """
    request = {
        "notes": notes,
        "max_calls": MAX_CALLS,
        "entry_point": task["entry_point"],
        "original": "original.py",
        "right": "right.py",
        "limits": asdict(limits),
    }
    solutions = {"original.py": buggy_text(task), "right.py": right_text(task)}
    report = await _run_harness(verify, "compare_calls, 2", task, request, solutions, limits.total_s * 2)
    return bool(report.end)


async def _run_harness(  # one run
    verify: Verify,
    call: str,
    task: Task,
    request: Mapping[str, Any],
    solutions: Mapping[str, bytes | str],
    total_s: float,
) -> Report:
    """Run a call of the harness: the program, and the number of its solutions."""
    command = program("harness", f"main(program.{call})")
    request = {**request, "restart": program("harness", "main(program.judge_solution, 0)")[-1]}
    files = {**modules(*HARNESS), **solutions}
    report = await run_program(verify, command, request, files, timeout_s=total_s + STARVED_S)
    if not report.ready and not report.result.timed_out:
        raise RewardError(f"task {task['task_id']!r}: the harness ({call}) did not start, {report.reason}")
    return report


class _AnswerCache:
    def __init__(self) -> None:
        self._entries: dict[object, tuple[asyncio.Lock, list[Any]]] = {}

    async def get(self, key: object, ask: Callable[[], Awaitable[T]]) -> T:
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
    def __init__(self) -> None:
        self.learned_limits: dict[str, CheckLimits] = {}
        """Limits by `task_id`."""
        self._answers: defaultdict[str, _AnswerCache] = defaultdict(_AnswerCache)

    async def check(self, verify: Verify, item_id: str, task: Task, solution: bytes) -> CheckReport:
        run = partial(run_checks, verify, task, solution, self.learned_limits.get(task["task_id"]))
        return await self._answers[item_id].get(hashlib.sha256(solution).digest(), run)

    async def shows_failure(
        self, verify: Verify, item_id: str, task: Task, turn: Turn, files: AgentFiles
    ) -> bool:
        """Whether a terminal command of the turn showed that the original function fails."""
        once, limits = self._answers[item_id], self.learned_limits.get(task["task_id"], CheckLimits())
        ran = {result.call_id for result in turn.tool_results if result.exit_code is not None}
        calls = [each for each in turn.message.tool_calls if each.name == "terminal" and each.id in ran]
        if not calls:
            return False
        # These calls ran, so their arguments are objects with a command.
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
        """Measure the limits of an item unless `sound_items` did, which rescoring a record skips."""
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
        """Return the items whose right solution passes every check, and whose buggy one does not."""
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
            right = await run_checks(verify, task, right_text(task), ROOMY)
            if right.fraction == 1:
                limits = CheckLimits.beyond(right.slowest_s, right.cpu_s)
                self.learned_limits[task["task_id"]] = limits
                buggy = await run_checks(verify, task, buggy_text(task), limits)
                return "the buggy solution holds every check" if buggy.fraction == 1 else ""
        except (DatasetError, RewardError) as error:
            return str(error)
        return "its own solution fails a check" if right.ended else "its test does not end"
