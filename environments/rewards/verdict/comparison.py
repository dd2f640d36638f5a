"""The program that finds out whether calls fail: it makes them on the original and on the right solution.

Its request has the notes of `observer.py`. At its end it prints whether one of these calls went as noted on
the original solution and the right one does something else.
Only the standard library is there when this runs.
"""

import ast
import builtins
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from environments.rewards.verdict.solution_server import LostAnswer, SolutionServer, read_request, report

Kind = Literal["returned", "raised", "lost"]


class Outcome(NamedTuple):
    kind: Kind
    value: Any = None
    """What it returned, or the name of the exception."""
    args: Any = None
    """The arguments afterwards."""


class NotedCall(NamedTuple):
    arguments: str
    outcome: Outcome


def main() -> None:
    """Compare the calls of the request, the last ones first: that is where a test stops."""
    request = read_request()
    limits, entry_point = request["limits"], request["entry_point"]
    # The right solution is asked first: when its time is up there is still some for the other.
    twice = {**limits, "total_s": limits["total_s"] * 2}
    original = SolutionServer(request["original"], entry_point, twice)
    right = SolutionServer(request["right"], entry_point, limits)
    calls = list(noted_calls(request["notes"].splitlines()))[-request["max_calls"] :]
    try:
        # What fails here is ours: nothing of either solution has run yet.
        right.start()
        original.start()
        report(request["nonce"], "ready")
        shown = any(fails(call, original, right) for call in reversed(calls))
    finally:
        original.kill()
        right.kill()
    report(request["nonce"], "end", shown)


def noted_calls(lines: Iterable[str]) -> Iterator[NotedCall]:
    """The calls of the notes; what cannot be read is no call."""
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


def fails(call: NotedCall, original: SolutionServer, right: SolutionServer) -> bool:
    """Whether the call goes as noted on the original, and otherwise on the right solution."""
    expected, found = _outcome(right, call.arguments), _outcome(original, call.arguments)
    if expected is None or found is None or expected.kind == "lost":
        return False
    return _as_noted(call.outcome, found) and not alike(expected, found)


def alike(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12)
        return same or (math.isnan(expected) and math.isnan(found))
    if type(expected) is type(found) and isinstance(expected, (list, tuple)):  # an `Outcome`, too
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
    except Exception as error:  # noqa: BLE001  # what the solution raised
        return Outcome(kind="raised", value=type(error).__name__)
    return Outcome(kind="returned", value=value, args=(args, kwargs))


def _as_noted(noted: Outcome, found: Outcome) -> bool:
    """Of the arguments nothing is noted; an exception of the solution's own has another name here."""
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
