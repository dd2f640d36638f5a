"""The program that runs tasks' tests against their own solutions, each in a process of its own.

Only a dataset's own code runs here. Standard input is a JSON list of tasks; of each, a line says whether the
right solution holds every assertion and whether the buggy one does.
Only the standard library is there when this runs.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from environments.code_debug_env.harness import Records
from environments.code_debug_env.object_graph import ObjectGraph

MAX_BYTES = 1 << 30


def main() -> None:
    """Print `1 0` for a task that is as it should be."""
    del sys.path[0]
    for task in json.load(sys.stdin):
        right = holds_everything(task, "right", cpu_s=5)
        buggy = holds_everything(task, "buggy", cpu_s=1)
        print(int(right), int(buggy), flush=True)  # noqa: T201


def holds_everything(task: Mapping[str, Any], which: str, *, cpu_s: int) -> bool:
    """Whether every assertion holds for one of the task's solutions, within the time."""
    verdict, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if _judge(task, task[which], cpu_s):
                os.write(told, b"1")
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with os.fdopen(verdict, "rb") as end:
        return end.read() == b"1"


def _judge(task: Mapping[str, Any], solution: str, cpu_s: int) -> bool:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    signal.alarm(2 * cpu_s)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    module: dict[str, Any] = {"__name__": "solution"}
    exec(compile(solution, "solution.py", "exec"), module)  # sandboxed
    namespace: dict[str, Any] = {"__name__": "hidden_test"}
    exec(compile(task["declaration"], "<declaration>", "exec"), namespace)  # sandboxed
    records = Records(lambda: 0)
    namespace[task["entry_point"]] = _called_as_by_the_judge(module[task["entry_point"]])
    namespace["__assertions__"] = records
    with contextlib.suppress(Exception):
        exec(compile(task["test"], "<test>", "exec"), namespace)  # sandboxed
    return records.held() == list(range(task["assertions"]))


def _called_as_by_the_judge(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        near, far = ObjectGraph(own=1), ObjectGraph(own=-1)
        there = far.decode(json.loads(json.dumps(near.encode([args, kwargs]))))
        returned = function(*there[0], **there[1])
        return near.decode(json.loads(json.dumps(far.encode([returned, *there]))))[0]

    return call


if __name__ == "__main__":
    main()
