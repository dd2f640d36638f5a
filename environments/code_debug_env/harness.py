"""The program that judges a solution inside a fresh sandbox: `python3 -I -S harness.py`.

Two processes of this one file. The judge holds the hidden test and evaluates every assertion itself; the
server (`harness.py serve …`) runs the untrusted solution and only answers calls with plain data. So a
solution never sees the test, cannot reach the records, and cannot return an object that claims to equal
everything. What it prints goes nowhere. A call that hangs, overflows the stack or kills its process costs
that one assertion: the server is started again for the next.

Standard input of the judge is a JSON request (see `hidden_checks.py`). It prints `NONCE ready`, then for
every assertion `NONCE index 1` when it first holds and `NONCE index 0` when it first fails, then
`NONCE hung` if a call had to be stopped.
Only the standard library is there when this runs.
"""

import builtins
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

MAX_REPLY_BYTES = 4 << 20
POLL_S = 0.02
PR_SET_DUMPABLE = 4


def main() -> None:
    """Judge, or serve when asked to."""
    sys.set_int_max_str_digits(0)
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), sys.argv[3])
    else:
        judge(json.load(sys.stdin))


def judge(request: Mapping[str, Any]) -> None:
    """Evaluate the prepared test against the solution and report each assertion."""
    # Same user as the solution: without this it could read the test and the nonce out of our memory.
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        sys.exit("cannot protect the judge's memory")
    namespace: dict[str, Any] = {"__name__": "hidden_test"}
    exec(compile(request["declaration"], "<declaration>", "exec"), namespace)  # trusted data
    prepared = compile(request["test"], "<test>", "exec")
    records = Records(request["nonce"])
    server = SolutionServer(request["solution"], request["entry_point"], request["limits"])
    namespace[request["entry_point"]] = server.call
    namespace["__assertions__"] = records
    records.say("ready")
    try:
        exec(prepared, namespace)  # trusted data
    except Exception as error:  # noqa: BLE001  # between assertions: those behind it were not reached
        print(f"the test stopped: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    finally:
        server.kill()
    if server.hung:
        records.say("hung")


class Records:
    """What is known about each assertion; it is reported at once, so that a lost process loses little."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._held: dict[int, bool] = {}

    def open(self, index: int) -> bool:
        """Whether there is anything left to learn: an assertion in a loop that failed once has failed."""
        return self._held.get(index, True)

    @contextmanager
    def evaluating(self, index: int) -> Generator[None]:
        """Around one assertion: whatever is raised in it means that it does not hold."""
        try:
            yield
        except Exception:  # noqa: BLE001  # any failure of the solution's answer
            self._record(index, False)
        else:
            self._record(index, True)

    def say(self, text: str) -> None:
        """Report a line that only the holder of the nonce can write."""
        print(self._nonce, text, flush=True)  # noqa: T201

    def _record(self, index: int, held: bool) -> None:
        if self._held.get(index) is not held:
            self._held[index] = held
            self.say(f"{index} {int(held)}")


class SolutionFailedError(Exception):
    """The solution gave no usable answer: it hung, died, or raised what no test can expect."""


class SolutionServer:
    """The solution's process, started when it is first needed and again after it was lost."""

    def __init__(self, solution: str, entry_point: str, limits: Mapping[str, float]) -> None:
        self._argv = [sys.executable, "-I", "-S", __file__, "serve", solution, entry_point]
        self._limits = dict(limits)
        self._deadline = time.monotonic() + limits["total_s"]
        self._process: subprocess.Popen[bytes] | None = None
        self.hung = False
        """Whether a call had to be stopped."""

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the solution's function; arguments that it changed are changed here too."""
        graph = ObjectGraph(own=1)
        reply = json.loads(self._exchange(json.dumps(graph.encode([args, kwargs])).encode() + b"\n"))
        if "raised" in reply:
            raise _exception(reply["raised"], str(reply["message"]))
        result, _, _ = graph.decode(reply["returned"])
        return result

    def kill(self) -> None:
        """End the process and everything in its group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _exchange(self, request: bytes) -> bytes:
        if time.monotonic() >= self._deadline:
            raise SolutionFailedError("the time for the whole test is up")
        process = self._process = self._process or self._start()
        if process.stdin is None or process.stdout is None:
            raise SolutionFailedError("no pipes")
        try:
            return self._talk(process.pid, process.stdin.fileno(), process.stdout.fileno(), request)
        except (SolutionFailedError, OSError) as error:
            self.kill()
            raise SolutionFailedError(str(error)) from None

    def _talk(self, pid: int, requests: int, replies: int, request: bytes) -> bytes:
        """Send one line and read one, without ever waiting longer than the limits."""
        started, spent, unread = time.monotonic(), _cpu_s(pid), b""
        while not unread.endswith(b"\n"):
            readable, writable, _ = select.select([replies], [requests] if request else [], [], POLL_S)
            if writable:
                request = request[os.write(requests, request) :]
            if readable:
                data = os.read(replies, 1 << 16)
                unread += data
                if not data or len(unread) > MAX_REPLY_BYTES:
                    raise SolutionFailedError("the process ended" if not data else "the reply is too long")
            now = time.monotonic()
            if (
                _cpu_s(pid) - spent > self._limits["cpu_s"]
                or now - started > self._limits["wall_s"]
                or now > self._deadline
            ):
                self.hung = True
                # One hang is enough to know; the others must not use up the time of the whole test.
                self._limits.update(cpu_s=self._limits["next_cpu_s"], wall_s=self._limits["next_wall_s"])
                raise SolutionFailedError("the call took too long")
        return unread

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process


def serve(solution: Path, entry_point: str) -> None:
    """Answer calls on standard input and output, which the solution itself does not get."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    module = ModuleType("solution")
    module.__file__ = str(solution)
    sys.modules["solution"] = module
    broken: BaseException | None = None
    try:
        exec(compile(solution.read_bytes(), "solution.py", "exec"), module.__dict__)  # sandboxed
    except BaseException as error:  # noqa: BLE001  # told to the judge on every call
        broken = error
    for line in requests:
        reply = _answer(lambda: getattr(module, entry_point), line) if broken is None else _raised(broken)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _answer(find: Callable[[], Callable[..., Any]], line: bytes) -> dict[str, Any]:
    graph = ObjectGraph(own=-1)
    args, kwargs = graph.decode(json.loads(line))
    try:
        returned = find()(*args, **kwargs)
        return {"returned": graph.encode([returned, args, kwargs])}
    except BaseException as error:  # noqa: BLE001  # told to the judge
        return _raised(error)


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # the solution's own __str__
        message = ""
    return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": message[:1000]}


def _exception(names: list[str], message: str) -> Exception:
    """The builtin exception nearest to what the solution raised, so that a test can expect it."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):
                return kind(message)
    return SolutionFailedError(f"{names[0]}: {message}")


class ObjectGraph:
    """Plain data as JSON and back, keeping which mutable objects are one and the same.

    Both sides of a call hold one: objects that came with the request are recognised in the reply and updated
    in place, as if the call had been made in one process.
    """

    def __init__(self, *, own: int) -> None:
        """`own` is 1 or -1: the sign of the numbers that this side gives to objects it has seen first."""
        self._own = own
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any) -> Any:
        """JSON for a value.

        Raises:
            TypeError: it is not plain data.
        """
        return self._encode(value, set())

    def decode(self, node: Any) -> Any:
        """The value of JSON that `encode` made on the other side.

        Raises:
            TypeError: the JSON is not of that form.
        """
        if not isinstance(node, list):
            return node
        kind, *rest = cast(list[Any], node)
        if kind in _ATOMS:
            return _ATOMS[kind](*rest)
        if kind in _IMMUTABLE:
            return _IMMUTABLE[kind]([self.decode(entry) for entry in rest[0]])
        number = rest[0]
        if kind == "ref":
            return self._objects[number]
        found: Any = self._objects.setdefault(number, _MUTABLE[kind]())
        if type(found) is not _MUTABLE[kind]:
            raise TypeError(f"object {number} is no {kind}")
        self._numbers[id(found)] = number
        entries = [self.decode(entry) for entry in rest[1]]
        found.clear()
        found.extend(entries) if kind == "list" else found.update(entries)
        return found

    def _encode(self, value: Any, sent: set[int]) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case complex():
                return ["complex", value.real, value.imag]
            case bytes() | bytearray():
                return ["bytes", value.hex()]
            case tuple() | frozenset() | Iterator():
                kind = next(kind for kind, plain in _IMMUTABLE_TYPES.items() if isinstance(value, plain))
                return [kind, self._encode_all(cast(Iterable[Any], value), sent)]
            case list() | set() | dict():
                return self._encode_mutable(cast(list[Any] | set[Any] | dict[Any, Any], value), sent)
            case _:
                raise TypeError(f"{type(value).__name__} is not plain data")

    def _encode_all(self, values: Iterable[Any], sent: set[int]) -> list[Any]:
        return [self._encode(value, sent) for value in values]

    def _encode_mutable(self, value: list[Any] | set[Any] | dict[Any, Any], sent: set[int]) -> Any:
        number = self._numbers.setdefault(id(value), self._own * (len(self._numbers) + 1))
        if number in sent:
            return ["ref", number]
        sent.add(number)
        self._objects[number] = value
        kind = next(kind for kind, plain in _MUTABLE.items() if isinstance(value, plain))
        return [kind, number, self._encode_all(value.items() if isinstance(value, dict) else value, sent)]


_ATOMS: Mapping[str, Callable[..., Any]] = {"complex": complex, "bytes": bytes.fromhex}
_IMMUTABLE: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "frozenset": frozenset,
    "iterator": iter,
}
_IMMUTABLE_TYPES: Mapping[str, type] = {"tuple": tuple, "frozenset": frozenset, "iterator": Iterator}
_MUTABLE: Mapping[str, type] = {"list": list, "set": set, "dict": dict}


def _cpu_s(pid: int) -> float:
    """Processor time of another process: on a busy machine a slow answer is no hang."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of the process, as in clock_getcpuclockid
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
