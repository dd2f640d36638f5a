"""The program that judges a solution inside a fresh sandbox (`checks.py` starts it).

The judge holds the hidden test and evaluates every assertion itself; the solution server is another process,
which runs the untrusted solution and only answers calls with plain data. So a solution never sees the test,
cannot reach the records or the judge, and cannot return an object that claims to equal everything. What it
prints goes nowhere. A call that hangs, overflows the stack or kills its process costs that one assertion: the
server is started again for the next.

Standard input of the judge is a JSON request. It prints `NONCE ready`, and at the end `NONCE end` with the
verdicts in one line: a judge that did not come to its end has found nothing out.
Only the standard library is there when this runs.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from types import SimpleNamespace
from typing import Any

from environments.rewards.code_judge.solution_server import (
    MAX_INT_DIGITS,
    LostAnswer,
    SolutionServer,
    WarmProcess,
)
from tools.sandbox.inside.kernel import hide_process

TEST_CPU_S = 10.0
"""Processor time of the judge, beside that of the solution."""


def main() -> None:
    """Judge by the request on standard input."""
    sys.set_int_max_str_digits(MAX_INT_DIGITS)
    # The workspace: from now on the solution could put a module there.
    del sys.path[0]
    # Before the test is read: the solution has this memory.
    warm = WarmProcess()
    judge(json.load(sys.stdin), warm)


def judge(request: Mapping[str, Any], warm: WarmProcess) -> None:
    """Evaluate the prepared test against the solution and report every assertion at the end."""
    # Same user as the solution: without this it could read the test and the nonce out of our memory.
    hide_process()
    namespace: dict[str, Any] = {"__name__": "hidden_test"}
    exec(compile(request["declaration"], "<declaration>", "exec"), namespace)  # trusted data
    prepared = compile(request["test"], "<test>", "exec")
    server = SolutionServer(request["solution"], request["entry_point"], request["limits"], warm)
    records = Records(lambda: server.lost)
    namespace[request["entry_point"]] = server.call
    namespace["__assertions__"] = records
    server.start()
    report(request["nonce"], "ready")
    # Of the test's own, which the solution has no part in: a loop without an end is no answer.
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)
    try:
        with contextlib.suppress(Exception, LostAnswer):  # assertions behind it were not reached
            exec(prepared, namespace)  # trusted data
    finally:
        server.kill()
    verdict = {"held": records.held(), "hung": server.hung}
    times = {"slowest_s": server.slowest_s, "cpu_s": server.cpu_s}
    report(request["nonce"], "end", {**verdict, **times})


def report(nonce: str, word: str, data: Any = None) -> None:
    """Print a line that only the holder of the nonce can write."""
    print(nonce, word, json.dumps(data), flush=True)  # noqa: T201


class Records:
    """What is known about each assertion so far."""

    def __init__(self, lost: Callable[[], int]) -> None:
        """`lost` counts the answers that never came: no test can have expected that."""
        self._lost = lost
        self._held: dict[int, bool] = {}

    def held(self) -> list[int]:
        """The assertions that were evaluated and held every time."""
        return sorted(index for index, held in self._held.items() if held)

    def open(self, index: int) -> bool:
        """Whether there is anything left to learn: an assertion in a loop that failed once has failed."""
        return self._held.get(index, True)

    @contextlib.contextmanager
    def evaluating(self, *indices: int) -> Generator[None]:
        """Around assertions: whatever is raised in it means that they do not hold."""
        lost = self._lost()
        try:
            yield
        except (Exception, LostAnswer):  # noqa: BLE001  # any failure of the solution's answer
            self._record(indices, False)
        else:
            self._record(indices, self._lost() == lost)

    @contextlib.contextmanager
    def raising(self, index: int, kind: Any, *_: Any, **__: Any) -> Generator[SimpleNamespace]:
        """Around what must raise an exception of the kind."""
        raised = SimpleNamespace(value=None, type=None)
        held = False
        try:
            yield raised
        except LostAnswer:
            pass
        except Exception as error:  # noqa: BLE001  # of another kind: it does not hold
            held = isinstance(error, kind)
            raised.value, raised.type = error, type(error)
        self._record((index,), held)

    def reached(self, index: int) -> AssertionError:
        """What to raise where the test must not come."""
        self._record((index,), False)
        return AssertionError("the test must not come here")

    def _record(self, indices: tuple[int, ...], held: bool) -> None:
        for index in indices:
            self._held[index] = held and self._held.get(index, True)


if __name__ == "__main__":
    main()
