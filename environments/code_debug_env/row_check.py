"""The program that runs tasks' tests against their own solutions, each in a process of its own.

Only a dataset's own code runs here. Standard input is a JSON list of tasks; of each, a line says whether the
right solution holds every assertion, whether the buggy one does, and the processor time of the right one:
that of its slowest call, and of all.
Only the standard library is there when this runs.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from environments.code_debug_env.harness import Records
from environments.code_debug_env.object_graph import ObjectGraph

MAX_BYTES = 1 << 30


def main() -> None:
    """Print `1 0 0.002 0.011` for a task that is as it should be."""
    del sys.path[0]
    for task in json.load(sys.stdin):
        right = times_of(task, "right", cpu_s=5)
        buggy = times_of(task, "buggy", cpu_s=1)
        slowest_s, total_s = right or (0.0, 0.0)
        print(int(right is not None), int(buggy is not None), slowest_s, total_s, flush=True)  # noqa: T201


def times_of(task: Mapping[str, Any], which: str, *, cpu_s: int) -> tuple[float, float] | None:
    """Of a solution of the task the slowest call and all; `None` unless every assertion holds in time."""
    verdict, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            times = _judge(task, task[which], cpu_s)
            if times is not None:
                os.write(told, json.dumps([max(times, default=0.0), sum(times)]).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with os.fdopen(verdict, "rb") as end:
        said = end.read()
    return tuple(json.loads(said)) if said else None


def _judge(task: Mapping[str, Any], solution: str, cpu_s: int) -> list[float] | None:
    """The processor time of each call; `None` unless every assertion holds."""
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
    times: list[float] = []
    namespace[task["entry_point"]] = _called_as_by_the_judge(module[task["entry_point"]], times)
    namespace["__assertions__"] = records
    with contextlib.suppress(Exception):
        exec(compile(task["test"], "<test>", "exec"), namespace)  # sandboxed
    return times if records.held() == list(range(task["assertions"])) else None


def _called_as_by_the_judge(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        near, far = ObjectGraph(own=1), ObjectGraph(own=-1)
        there = far.decode(json.loads(json.dumps(near.encode([args, kwargs]))))
        started = time.process_time()
        try:
            returned = function(*there[0], **there[1])
        finally:
            times.append(time.process_time() - started)
        return near.decode(json.loads(json.dumps(far.encode([returned, *there]))))[0]

    return call


if __name__ == "__main__":
    main()
