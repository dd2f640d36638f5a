"""The program that judges a solution inside a fresh sandbox (`code_judge.py` starts it).

The judge holds the hidden test and evaluates every assertion itself; the solution server is another process,
which runs the untrusted solution and only answers calls with plain data. So a solution never sees the test,
cannot reach the records or the judge, and cannot return an object that claims to equal everything. What it
prints goes nowhere. A call that hangs, overflows the stack or kills its process costs that one assertion: the
server is started again for the next. A judge that did not come to its end has found nothing out.
Only the standard library is there when this runs.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

from environments.rewards.verdict.solution_server import LostAnswer, SolutionServer, read_request, report
from tools.sandbox.inside.kernel import hide_process

TEST_CPU_S = 10.0
"""Processor time of the judge, beside that of the solution."""


def main() -> None:
    """Evaluate the prepared test of the request against the solution, and report at the end."""
    # The workspace: from now on the solution could put a module there.
    del sys.path[0]
    # Same user as the solution: without this it could read the test and the nonce out of our memory.
    hide_process()
    request = read_request()
    namespace: dict[str, Any] = {"__name__": "hidden_test"}
    exec(compile(request["declaration"], "<declaration>", "exec"), namespace)  # trusted data
    prepared = compile(request["test"], "<test>", "exec")
    server = SolutionServer(request["solution"], request["entry_point"], request["limits"])
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
    times = {"slowest_s": server.slowest_s, "cpu_s": server.cpu_s}
    report(request["nonce"], "end", {"held": records.held(), "hung": server.hung, **times})


class Records:
    """What is known about each assertion so far."""

    def __init__(self, lost: Callable[[], int]) -> None:
        """`lost` counts the answers that never came: no test can have expected that."""
        self._lost = lost
        self._held: dict[int, bool] = {}

    def held(self) -> list[int]:
        return sorted(index for index, held in self._held.items() if held)

    def open(self, index: int) -> bool:
        """Whether there is anything left to learn: an assertion in a loop that failed once has failed."""
        return self._held.get(index, True)

    @contextlib.contextmanager
    def evaluating(self, *indices: int) -> Generator[None]:
        """Context manager: any exception inside counts as a failed assertion."""
        lost, held = self._lost(), False
        with contextlib.suppress(Exception, LostAnswer):
            yield
            held = self._lost() == lost
        self._record(indices, held)

    @contextlib.contextmanager
    def raising(self, index: int, kind: Any, *_: Any, **__: Any) -> Generator[SimpleNamespace]:
        """Context manager: an exception of this kind has to be raised inside."""
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
