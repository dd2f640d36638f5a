"""The program that finds out whether calls fail: it makes them on the original and on the right solution.

Standard input is a JSON request with the notes of `observer.py`. It prints `ready` and, when one of these
calls went as noted on the original solution and the right one does something else, `shown`.
Only the standard library is there when this runs.
"""

import ast
import builtins
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from environments.rewards.code_judge.solution_server import (
    MAX_INT_DIGITS,
    LostAnswer,
    SolutionServer,
    WarmProcess,
)

Kind = Literal["returned", "raised", "lost"]


class Outcome(NamedTuple):
    """What came of a call."""

    kind: Kind
    value: Any = None
    """What it returned, or the name of the exception."""
    args: Any = None
    """The arguments afterwards."""


class NotedCall(NamedTuple):
    """A call, and what came of it by the notes."""

    arguments: str
    outcome: Outcome


def main() -> None:
    """Compare the calls of the request, the last ones first: that is where a test stops."""
    sys.set_int_max_str_digits(MAX_INT_DIGITS)
    # Before the notes and the solutions are known: each has this memory.
    warm = WarmProcess(), WarmProcess()
    request = json.load(sys.stdin)
    limits, entry_point = request["limits"], request["entry_point"]
    # The right solution is asked first: when its time is up there is still some for the other.
    twice = {**limits, "total_s": limits["total_s"] * 2}
    original = SolutionServer(request["original"], entry_point, twice, warm[0])
    right = SolutionServer(request["right"], entry_point, limits, warm[1])
    calls = list(noted_calls(request["notes"].splitlines()))[-request["max_calls"] :]
    try:
        # What fails here is ours: nothing of either solution has run yet.
        right.start()
        original.start()
        print("ready", flush=True)  # noqa: T201
        if any(fails(call, original, right) for call in reversed(calls)):
            print("shown")  # noqa: T201
    finally:
        original.kill()
        right.kill()


def noted_calls(lines: Iterable[str]) -> Iterator[NotedCall]:
    """The calls of the notes; what cannot be read is no call."""
    arguments: str | None = None
    for line in lines:
        if line.startswith("('called', "):
            if arguments is not None:
                yield NotedCall(arguments=arguments, outcome=Outcome(kind="lost"))
            arguments = line
        elif arguments is not None:
            outcome = _noted_outcome(line)
            if outcome is not None:
                yield NotedCall(arguments=arguments, outcome=outcome)
            arguments = None
    if arguments is not None:
        yield NotedCall(arguments=arguments, outcome=Outcome(kind="lost"))


def fails(call: NotedCall, original: SolutionServer, right: SolutionServer) -> bool:
    """Whether the call goes as noted on the original, and otherwise on the right solution."""
    expected, found = _outcome(right, call.arguments), _outcome(original, call.arguments)
    if expected is None or found is None or expected.kind == "lost":
        return False
    return _as_noted(call.outcome, found) and not alike(expected, found)


def alike(expected: Any, found: Any) -> bool:
    """Whether two values are the same but for rounding."""
    if isinstance(expected, Outcome) and isinstance(found, Outcome):
        same_kind = expected.kind == found.kind
        return same_kind and alike(expected.value, found.value) and alike(expected.args, found.args)
    if isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=1e-9, abs_tol=1e-12)
        return same or (math.isnan(expected) and math.isnan(found))
    if type(expected) is not type(found):
        return bool(expected == found)
    if isinstance(expected, (list, tuple)):
        pairs = cast("Sequence[Any]", expected), cast("Sequence[Any]", found)
        return len(pairs[0]) == len(pairs[1]) and all(map(alike, *pairs))
    if isinstance(expected, dict):
        first, second = cast("Mapping[Any, Any]", expected), cast("Mapping[Any, Any]", found)
        return first.keys() == second.keys() and all(
            alike(value, second[key]) for key, value in first.items()
        )
    return bool(expected == found)


def _noted_outcome(line: str) -> Outcome | None:
    match _literal(line):
        case ("returned" | "raised" as kind, value):
            return Outcome(kind=kind, value=value)
        case _:
            return None


def _outcome(server: SolutionServer, arguments: str) -> Outcome | None:
    args, kwargs = _arguments(_literal(arguments))
    if args is None:
        return None
    try:
        value = server.call(*args, **kwargs)
    except LostAnswer:
        return Outcome(kind="lost")
    except Exception as error:  # noqa: BLE001  # what the solution raised
        return Outcome(kind="raised", value=type(error).__name__)
    return Outcome(kind="returned", value=value, args=(args, kwargs))


def _arguments(note: Any) -> tuple[Any, Any]:
    match note:
        case ("called", args, kwargs) if type(args) is tuple and type(kwargs) is dict:
            return cast("tuple[Any, Any]", (args, kwargs))
        case _:
            return None, None


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


if __name__ == "__main__":
    main()
