"""Whether tasks can be judged: the right solution has to hold every hidden check, the buggy one must not."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from environments.code_debug_env.hidden_checks import CheckLimits, declaration_of, program
from environments.code_debug_env.prepared_test import prepare_test
from environments.code_debug_env.workspace import buggy_text, fixed_text
from tools.errors import DatasetError
from tools.sandbox.base import Sandbox

BATCH = 16
BATCH_S = 300.0
MAX_NAMED = 20

OpenSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """What is wrong with which tasks, by their index."""

    unsolvable: tuple[int, ...]
    """Their own solution fails a check, or the checks cannot be read."""
    solved: tuple[int, ...]
    """The buggy solution holds every check."""
    limits: tuple[CheckLimits, ...] = ()
    """Of each task, with room for its right solution."""

    @property
    def unsound(self) -> frozenset[int]:
        """Those from which nothing can be learned."""
        return frozenset((*self.unsolvable, *self.solved))

    def describe(self, ids: Sequence[str]) -> str:
        """In one line, with the ids of the tasks."""
        kinds = (
            ("their own solution fails a check", self.unsolvable),
            ("the buggy solution holds every check", self.solved),
        )
        return "; ".join(f"{what}: {_named(ids, indices)}" for what, indices in kinds if indices)


class _Verdict(NamedTuple):
    right: bool
    """Whether it holds every assertion, as the next."""
    buggy: bool
    limits: CheckLimits


_UNREADABLE = _Verdict(right=False, buggy=False, limits=CheckLimits())


async def check_rows(tasks: Sequence[Mapping[str, Any]], open_sandbox: OpenSandbox) -> RowReport:
    """Run every task's test against its own two solutions, many in one sandbox and some side by side.

    Raises:
        DatasetError: the checks did not run.
        SandboxError: a sandbox is broken.
    """
    readable = {index: row for index, task in enumerate(tasks) if (row := _row(task)) is not None}
    indices = list(readable)
    slots = asyncio.Semaphore(min(4, os.cpu_count() or 1))

    async def checked(batch: Sequence[int]) -> list[_Verdict]:
        async with slots, open_sandbox() as sandbox:
            return await _check_batch(sandbox, [readable[index] for index in batch])

    batches = [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]
    results = [verdict for found in await asyncio.gather(*map(checked, batches)) for verdict in found]
    verdicts = dict(zip(indices, results, strict=True))
    return RowReport(
        unsolvable=tuple(i for i in range(len(tasks)) if not verdicts.get(i, _UNREADABLE).right),
        solved=tuple(index for index, each in verdicts.items() if each.right and each.buggy),
        limits=tuple(verdicts.get(index, _UNREADABLE).limits for index in range(len(tasks))),
    )


async def _check_batch(sandbox: Sandbox, rows: Sequence[Mapping[str, Any]]) -> list[_Verdict]:
    check = program("row_check", "harness", "solution_server", "confinement", "object_graph")
    for name, text in check.files.items():
        await sandbox.write_file(name, text.encode())
    result = await sandbox.exec(check.command, stdin=json.dumps(rows).encode(), timeout_s=BATCH_S)
    verdicts = [line.split() for line in result.text().splitlines()]
    if len(verdicts) != len(rows):
        said = result.stderr.decode("utf-8", "replace")[-300:].strip()
        raise DatasetError(f"the items could not be checked, exit code {result.exit_code}: {said}")
    return [
        _Verdict(right == "1", buggy == "1", CheckLimits.beyond(float(slowest_s), float(total_s)))
        for right, buggy, slowest_s, total_s in verdicts
    ]


def _row(task: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        test, assertions = prepare_test(task["test"], str(task["task_id"]))
    except DatasetError:
        return None
    return {
        "declaration": declaration_of(task),
        "entry_point": task["entry_point"],
        "test": test,
        "assertions": assertions,
        "right": fixed_text(task),
        "buggy": buggy_text(task),
    }


def _named(ids: Sequence[str], indices: Sequence[int]) -> str:
    named = ", ".join(ids[index] for index in indices[:MAX_NAMED])
    return named if len(indices) <= MAX_NAMED else f"{named} and {len(indices) - MAX_NAMED} more"
