"""The programs that judge calls of Python functions inside a fresh sandbox.

They evaluate assertions and compare results. The solution server is another process, which runs the untrusted
solution and only answers calls with plain data. So a solution never sees the test, cannot reach the judge,
and cannot return an object that claims to equal everything. A call that hangs or kills its process fails one
assertion, and the server is restarted for the next. Only the standard library is available here.
"""

import ast
import builtins
import contextlib
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

from environments.rewards.verdict.solution_server import (
    LostAnswer,
    SolutionProcess,
    SolutionServer,
    fork_solutions,
    read_request,
    report,
    serve,
)
from tools.sandbox.inside.kernel import hide_process

TEST_CPU_S = 10.0


def main(program: "Callable[..., None]", count: int) -> None:
    """Run a judge of `count` solutions, whose processes are forked before it knows anything secret."""
    processes = fork_solutions(count)
    if not processes:
        return serve()
    # Same user as the solution: without this it could read the test and the nonce out of our memory.
    hide_process()
    program(*processes)
    sys.stdout.flush()
    os._exit(0)


def judge_solution(process: SolutionProcess) -> None:
    request = read_request()
    namespace: dict[str, Any] = {"__name__": "hidden_test"}
    exec(compile(request["declaration"], "<declaration>", "exec"), namespace)  # trusted data
    prepared = compile(request["test"], "<test>", "exec")
    server = SolutionServer(process, request["solution"], request)
    records = Records(lambda: server.lost)
    namespace[request["entry_point"]] = server.call
    namespace["__assertions__"] = records
    server.start()
    report(request["nonce"], "ready")
    # The test's own endless loop would give no verdict.
    signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)
    try:
        with contextlib.suppress(Exception, LostAnswer):  # the assertions after it are not reached
            exec(prepared, namespace)  # trusted data
    finally:
        server.kill()
    times = {"slowest_s": server.slowest_s, "cpu_s": server.cpu_s}
    report(request["nonce"], "end", {"held": records.indices_held(), "hung": server.hung, **times})


class Records:
    """Results of the assertions; `prepared_test.py` writes the calls to it."""

    def __init__(self, count_lost: Callable[[], int]) -> None:
        self._count_lost = count_lost
        self._held: dict[int, bool] = {}

    def indices_held(self) -> list[int]:
        return sorted(index for index, held in self._held.items() if held)

    def open(self, index: int) -> bool:
        return self._held.get(index, True)

    @contextlib.contextmanager
    def evaluating(self, *indices: int) -> Generator[None]:
        """Context manager: any exception inside counts as a failed assertion."""
        lost, held = self._count_lost(), False
        with contextlib.suppress(Exception, LostAnswer):
            yield
            held = self._count_lost() == lost
        self._record(indices, held)

    @contextlib.contextmanager
    def raising(
        self, index: int, kind: Any, *, match: Any = None, check: Any = bool, **_: Any
    ) -> Generator[SimpleNamespace]:
        """Context manager: an exception of this kind, with this message, has to be raised inside."""
        raised = SimpleNamespace(value=None, type=None)
        held = False
        try:
            yield raised
        except LostAnswer:
            pass
        except Exception as error:  # noqa: BLE001  # one of another kind fails the assertion
            held = isinstance(error, kind) and bool(re.search(match or "", str(error)) and check(error))
            raised.value, raised.type = error, type(error)
        self._record((index,), held)

    def unreachable(self, index: int) -> AssertionError:
        self._record((index,), False)
        return AssertionError("the test must not come here")

    def _record(self, indices: tuple[int, ...], held: bool) -> None:
        for index in indices:
            self._held[index] = held and self._held.get(index, True)


# Calls that an agent's commands made, compared on the original and the right solution.

Kind = Literal["returned", "raised", "lost"]


class Outcome(NamedTuple):
    kind: Kind
    value: Any = None
    args: Any = None


class NotedCall(NamedTuple):
    arguments: str
    outcome: Outcome


def compare_calls(first: SolutionProcess, second: SolutionProcess) -> None:
    """Report whether a call behaves as noted on the original solution and differently on the right one."""
    request = read_request()
    limits = request["limits"]
    # The right solution is called first: when its time is up, the other one has some left.
    twice = {**limits, "total_s": limits["total_s"] * 2}
    original = SolutionServer(first, request["original"], {**request, "limits": twice})
    right = SolutionServer(second, request["right"], request)
    calls = list(parse_notes(request["notes"].splitlines()))[-request["max_calls"] :]
    try:
        # An error here is ours: nothing of either solution has run yet.
        right.start()
        original.start()
        report(request["nonce"], "ready")
        is_shown = any(shows_failure(call, original, right) for call in reversed(calls))
    finally:
        original.kill()
        right.kill()
    report(request["nonce"], "end", is_shown)


def parse_notes(lines: Iterable[str]) -> Iterator[NotedCall]:
    arguments: str | None = None
    for line in [*lines, "('called', "]:
        is_call = line.startswith("('called', ")
        if arguments is not None:
            match ("lost", None) if is_call else _literal(line):
                case ("lost" | "returned" | "raised" as kind, value):
                    yield NotedCall(arguments=arguments, outcome=Outcome(kind=kind, value=value))
                case _:
                    pass
        arguments = line if is_call else None


def shows_failure(call: NotedCall, original: SolutionServer, right: SolutionServer) -> bool:
    expected, found = _outcome(right, call.arguments), _outcome(original, call.arguments)
    if expected is None or found is None or expected.kind == "lost":
        return False
    return _is_as_noted(call.outcome, found) and not alike(expected, found)


def alike(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12)
        return same or (math.isnan(expected) and math.isnan(found))
    if type(expected) is type(found) and isinstance(expected, (list, tuple)):  # `Outcome` is a tuple
        pairs = cast("Sequence[Any]", expected), cast("Sequence[Any]", found)
        return len(pairs[0]) == len(pairs[1]) and all(map(alike, *pairs))
    if isinstance(expected, dict) and isinstance(found, dict):
        first, second = cast("Mapping[Any, Any]", expected), cast("Mapping[Any, Any]", found)
        return first.keys() == second.keys() and all(
            alike(value, second[key]) for key, value in first.items()
        )
    return bool(expected == found)


def _outcome(server: SolutionServer, arguments: str) -> Outcome | None:
    note = _literal(arguments)
    if not isinstance(note, tuple) or [type(each) for each in cast("Any", note)] != [str, tuple, dict]:
        return None
    _, args, kwargs = cast("Any", note)
    try:
        value = server.call(*args, **kwargs)
    except LostAnswer:
        return Outcome(kind="lost")
    except Exception as error:  # noqa: BLE001  # raised by the solution
        return Outcome(kind="raised", value=type(error).__name__)
    return Outcome(kind="returned", value=value, args=(args, kwargs))


def _is_as_noted(noted: Outcome, found: Outcome) -> bool:
    """Compare kinds and values: notes have no arguments, and a solution's own exception is renamed here."""
    if noted.kind != found.kind or noted.kind == "lost":
        return noted.kind == found.kind
    if noted.kind == "raised":
        return noted.value == found.value or not hasattr(builtins, str(noted.value))
    return alike(noted.value, found.value)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
