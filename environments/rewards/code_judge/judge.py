"""`CodeJudge`: what an environment asks about the solutions of its items, equal questions once."""

import asyncio
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, Literal, TypeVar, get_args

from environments.rewards.artefacts import TakenFiles
from environments.rewards.code_cases import Verify
from environments.rewards.code_judge.checks import (
    CheckLimits,
    CheckReport,
    Task,
    buggy_text,
    calls_fail,
    fixed_text,
    is_seen,
    note_calls,
    run_checks,
)
from environments.rewards.verification_time import off_the_clock
from environments.trajectory import Turn
from tools.errors import DatasetError, RewardError
from tools.sandbox.base import MAX_READ_BYTES, ExecResult, Sandbox
from tools.sandbox.host import transfer

T = TypeVar("T")

MAX_REPORTS = 16
"""Of an item, and of one kind."""
ROOMY = CheckLimits(cpu_s=5.0, wall_s=10.0, total_s=10.0)
"""For the right solution of a dataset's item, which sets the others' limits."""
MAX_NAMED = 20
Unsound = Literal["drop", "refuse", "keep"]
OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


class _Once(Generic[T]):
    """Answers by key: siblings write equal solutions, and only those wait for each other."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[asyncio.Lock, list[T]]] = {}

    async def get(self, key: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer, asked for where none is known; when the one who asks is cancelled the next one does."""
        if key not in self._entries and len(self._entries) >= MAX_REPORTS:
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


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known about one item."""

    reports: _Once[CheckReport] = field(default_factory=_Once[CheckReport])
    """By a hash of the solution."""
    compared: _Once[bool] = field(default_factory=_Once[bool])
    """Whether one of the noted calls failed, by the notes."""
    shown: _Once[bool] = field(default_factory=_Once[bool])
    """Whether commands showed a failure, by the commands, what came of them, and the files."""


class CodeJudge:
    """Judges the solutions of an environment's items, which have the schema of HumanEvalPack."""

    def __init__(self) -> None:
        self.learned_limits: dict[str, CheckLimits] = {}
        """What solutions may take, by `task_id`, with room for the right one; as learned of a dataset."""
        self._items: defaultdict[str, _Known] = defaultdict(_Known)

    async def check(self, verify: Verify, item_id: str, task: Task, solution: bytes) -> CheckReport:
        """The hidden checks of a solution, as `run_checks`; an equal one of a sibling is judged once."""
        digest = hashlib.sha256(solution).hexdigest()
        limits = self._limits(task)
        return await self._items[item_id].reports.get(
            digest, lambda: run_checks(verify, task, solution, limits)
        )

    async def shows_failure(
        self, verify: Verify, item_id: str, task: Task, turn: Turn, files: TakenFiles
    ) -> bool:
        """Whether a terminal command of the turn showed that the function fails as it was at the start.

        Found by running the commands again; see `note_calls`, `calls_fail` and `is_seen`. That happens once
        where siblings ran equal commands over equal files and saw the same.

        Args:
            verify: `ctx.verify` of the rollout, directly after the turn.
            item_id: Of the task.
            task: The task.
            turn: With its tool results.
            files: The agent's, as the commands left them.
        """
        known, limits = self._items[item_id], self._limits(task)
        commands = terminal_commands(turn)
        if not commands:
            return False
        text = "\n".join(result.content for result in turn.tool_results if result.exit_code is not None)
        rerun = partial(note_calls, verify, task, commands, workspace=files.workdir, limits=limits)

        async def shows() -> bool:
            original = await rerun()
            fail = partial(calls_fail, verify, task, original.notes, limits)
            if not original.notes or not await known.compared.get(original.notes, fail):
                return False
            return is_seen(text, original.output, (await rerun(is_right=True)).output)

        left = await transfer.take(files, ["."], max_bytes=MAX_READ_BYTES)
        digest = hashlib.sha256(repr((commands, text)).encode("utf-8", "backslashreplace"))
        for path, file in sorted(left.items()):
            digest.update(repr((path, file)).encode("utf-8", "backslashreplace"))
        return await known.shown.get(digest.hexdigest(), shows)

    async def learn(self, verify: Verify, task: Task) -> None:
        """Learns the limits of an item of a dataset where `sound_items` was not asked, as for a record."""
        if task["task_id"] not in self.learned_limits:
            await self._problem(task, verify)
            self.learned_limits.setdefault(task["task_id"], CheckLimits())

    async def sound_items(
        self,
        tasks: Mapping[str, Task],
        open_sandbox: OpenSandbox,
        unsound: Unsound,
        notify: Callable[[str], None],
    ) -> Mapping[str, Task]:
        """The items that can be judged: their right solution holds every check, the buggy one does not.

        Of those the limits are learned: solutions of an item get room for ten times the right one's time.

        Args:
            tasks: By their ids.
            open_sandbox: Opens one; only a dataset's own code runs in it.
            unsound: Whether the others are left out, refused, or kept.
            notify: Gets one line before the checks, and one that names the others.

        Raises:
            DatasetError: an item cannot be judged and is refused, or none can.
            SandboxError: a sandbox is broken.
        """
        notify(f"running the hidden checks of {len(tasks)} items against their own solutions")
        slots = asyncio.Semaphore(min(4, os.cpu_count() or 1))

        async def problem(task: Task) -> str:
            async with slots, open_sandbox() as sandbox:
                return await self._problem(task, _within(sandbox))

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

    async def _problem(self, task: Task, verify: Verify) -> str:
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

    def _limits(self, task: Task) -> CheckLimits:
        return self.learned_limits.get(task["task_id"], CheckLimits())


def terminal_commands(turn: Turn) -> Sequence[str]:
    """The commands that the turn ran in the terminal."""
    ran = {result.call_id for result in turn.tool_results if result.exit_code is not None}
    calls = [call for call in turn.message.tool_calls if call.name == "terminal" and call.id in ran]
    # They ran, so their arguments are objects with a command.
    return [str(json.loads(call.arguments)["command"]) for call in calls]


def _within(sandbox: Sandbox) -> Verify:
    """As `ctx.verify`, in a sandbox that is open already."""

    async def run(
        *,
        command: str | Sequence[str],
        artefacts: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
    ) -> ExecResult:
        assert not artefacts
        for name, data in (files or {}).items():
            await sandbox.write_file(name, data.encode() if isinstance(data, str) else data)
        return await sandbox.exec(command, stdin=stdin, timeout_s=timeout_s)

    return run
