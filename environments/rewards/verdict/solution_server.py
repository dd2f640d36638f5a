"""The process of a solution, which a judge starts, confines, calls, stops and restarts.

It answers calls with plain data and cannot reach the judge, although both run as the same user. Only the
standard library and the modules of the sandbox are available here.
"""

import builtins
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tools.sandbox.host.seccomp import without_peers
from tools.sandbox.inside.kernel import adopt_orphans, filter_calls, no_new_privileges
from tools.sandbox.inside.processes import kill_new, runnable, snapshot

MAX_REPLY_BYTES = 4 << 20
POLL_S = 0.02
START_S = 20.0
MAX_INT_DIGITS = 100_000
PYTHON = (sys.executable, "-E", "-s", "-S", "-m")
_ENDS_OF_LOOPS = (StopIteration, StopAsyncIteration)


def read_request() -> Any:
    sys.set_int_max_str_digits(MAX_INT_DIGITS)
    return json.load(sys.stdin)


def report(nonce: str, word: str, data: Any = None) -> None:
    print(nonce, word, json.dumps(data), flush=True)  # noqa: T201


class LostAnswer(BaseException):
    """The solution hung, died, or raised what no test can expect."""


class TookTooLong(LostAnswer):
    """A call exceeded its limits."""


class Spent:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_s, self._waited_s, self._started = _cpu_s(pid), _wait_s(pid), time.monotonic()
        self._is_alone = True

    def cpu_s(self) -> float:
        return _cpu_s(self._pid) - self._cpu_s

    def wall_s(self) -> float:
        """Wall clock without the time in which processes of others had the processors."""
        passed_s = time.monotonic() - self._started
        return passed_s - max(0.0, _wait_s(self._pid) - self._waited_s) if self._is_alone else passed_s

    def is_over(self, cpu_s: float, wall_s: float) -> bool:
        if time.monotonic() - self._started > wall_s:
            self._is_alone = self._is_alone and not runnable() - {self._pid}
        return self.cpu_s() > cpu_s or self.wall_s() > wall_s


class SolutionServer:
    def __init__(self, solution: str, entry_point: str, limits: Mapping[str, float]) -> None:
        adopt_orphans()  # to find processes that leave the solution's group
        self._opening = json.dumps([solution, entry_point]).encode() + b"\n"
        self._limits = dict(limits)
        self._left_s = limits["total_s"]
        self.process: subprocess.Popen[bytes] | None = None
        self.hung = False
        self.lost = 0
        self.slowest_s = 0.0
        self.cpu_s = 0.0
        _SERVERS.append(self)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*PYTHON, __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            # Here and not in the program, which the solution could replace.
            preexec_fn=_confine,  # this process has one thread
        )
        try:
            _talk(self.process, self._opening, cpu_s=START_S, wall_s=START_S)
        except (LostAnswer, OSError) as error:
            self.kill()
            raise LostAnswer(f"no process for the solution: {error}") from None

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the solution's function; changes that it makes to arguments are made here too."""
        graph = ObjectGraph(own=1)
        request = json.dumps(graph.encode([args, kwargs])).encode() + b"\n"
        try:
            reply = json.loads(self._exchange(request))
            if "lost" in reply:
                raise LostAnswer(reply["lost"])
            if "raised" not in reply:
                result, _, _ = graph.decode(reply["returned"])
                return result
            error = _exception(reply["raised"], str(reply["message"]))
        except (Exception, LostAnswer) as error:  # noqa: BLE001  # the solution's process may reply anything
            self.lost += 1
            raise LostAnswer(str(error)) from None
        raise error

    def kill(self) -> None:
        if self.process is not None:
            others = {each.process.pid for each in _SERVERS if each is not self and each.process}
            kill_new({each for each in snapshot() if each[0] in others})
            # Do not wait for the pipes to end: a process that left the group may hold them.
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process.wait()
            self.process = None
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # zombies count against the sandbox's limit
                    pass

    def _exchange(self, request: bytes) -> bytes:
        if self._left_s <= 0:
            raise LostAnswer("the time for the whole test is up")
        if self.process is None:
            self.start()
        process = cast("subprocess.Popen[bytes]", self.process)
        spent = Spent(process.pid)
        limits = {"cpu_s": self._limits["cpu_s"], "wall_s": min(self._limits["wall_s"], self._left_s)}
        reply, lost = b"", None
        try:
            reply = _talk(process, request, **limits)
        except (LostAnswer, OSError) as error:
            lost = error
        self._left_s -= spent.wall_s()
        self.slowest_s = max(self.slowest_s, spent.cpu_s())
        self.cpu_s += spent.cpu_s()
        if lost is None:
            return reply
        if isinstance(lost, TookTooLong):
            self.hung = True
            # After one hang, others must not use up the time of the whole test.
            self._limits.update(cpu_s=self._limits["next_cpu_s"], wall_s=self._limits["next_wall_s"])
        self.kill()
        raise LostAnswer(str(lost))


_SERVERS: list[SolutionServer] = []
"""Servers of this judge; ending one spares the others."""


def _confine() -> None:
    """Give up signals to, control over and memory of other processes, irrevocably.

    It needs no privilege, and child processes inherit it. On an architecture with unknown call numbers it is
    skipped.
    """
    if program := without_peers():
        no_new_privileges()
        filter_calls(program)


def _talk(process: "subprocess.Popen[bytes]", request: bytes, *, cpu_s: float, wall_s: float) -> bytes:
    requests, replies = (cast(Any, pipe).fileno() for pipe in (process.stdin, process.stdout))
    os.set_blocking(requests, False)
    os.set_blocking(replies, False)
    spent, unread = Spent(process.pid), b""
    while not unread.endswith(b"\n"):
        readable, writable, _ = select.select([replies], [requests] if request else [], [], POLL_S)
        if writable:
            request = request[os.write(requests, request) :]
        if readable:
            data = os.read(replies, 1 << 16)
            unread += data
            if not data or len(unread) > MAX_REPLY_BYTES:
                raise LostAnswer("the process ended" if not data else "the reply is too long")
        if spent.is_over(cpu_s, wall_s):
            raise TookTooLong("the call took too long")
    return unread


def _exception(names: list[str], message: str) -> Exception:
    """Return the nearest builtin of the exception that the solution raised."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in _ENDS_OF_LOOPS:
            with contextlib.suppress(TypeError):
                return kind(message)
    raise LostAnswer(f"{names[0]}: {message}")


def _cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of the process, as in clock_getcpuclockid
    except OSError:
        return 0.0


def _wait_s(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


# The process itself.


def serve() -> None:
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    with contextlib.suppress(OSError):
        # The OOM killer shall take this process and not the judge.
        Path("/proc/self/oom_score_adj").write_text("1000")
    path, entry_point = json.loads(requests.readline())
    solution = Path(path)
    module = ModuleType("solution")
    module.__file__ = str(solution)
    sys.modules["solution"] = module
    broken: BaseException | None = None
    # From here on the solution runs.
    replies.write(b"{}\n")
    replies.flush()
    try:
        exec(compile(solution.read_bytes(), "solution.py", "exec"), module.__dict__)  # sandboxed
    except BaseException as error:  # noqa: BLE001  # reported to every call
        broken = error
    for line in requests:
        reply = _answer(getattr(module, entry_point, None), line) if broken is None else _loss(broken)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _answer(function: Any, line: bytes) -> dict[str, Any]:
    graph = ObjectGraph(own=-1)
    args, kwargs = graph.decode(json.loads(line))
    if not callable(function):
        return _loss(TypeError("there is no such function"))
    try:
        returned: Any = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  # compared by the judge
        return {"raised": [kind.__name__ for kind in type(error).__mro__], "message": _message(error)}
    try:
        return {"returned": graph.encode([returned, args, kwargs])}
    except BaseException as error:  # noqa: BLE001  # not plain data, or an iterator that raises
        return _loss(error)


def _loss(error: BaseException) -> dict[str, Any]:
    return {"lost": f"{type(error).__name__}: {_message(error)}"}


def _message(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except Exception:  # noqa: BLE001  # the solution's own __str__
        return ""


class ObjectGraph:
    """Plain data as JSON and back, with the identity of mutable objects.

    Each side of a call has one: it recognises objects of the request in the reply and updates them in place.
    """

    def __init__(self, *, own: int) -> None:
        """Set the sign, 1 or -1, of the numbers of objects that this side sees first."""
        self._own = own
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def encode(self, value: Any, sent: set[int] | None = None) -> Any:
        sent = set() if sent is None else sent
        match value:
            case None | bool() | int() | float() | str():
                return value
            case complex():
                return ["complex", value.real, value.imag]
            case bytes() | bytearray():
                return ["bytes", value.hex()]
            case tuple() | frozenset() | Iterator():
                kind = next(kind for kind, (plain, _) in _IMMUTABLE.items() if isinstance(value, plain))
                return [kind, [self.encode(each, sent) for each in cast(Iterable[Any], value)]]
            case list() | set() | dict():
                found = cast(list[Any] | set[Any] | dict[Any, Any], value)
                number = self._numbers.setdefault(id(found), self._own * (len(self._numbers) + 1))
                if number in sent:
                    return ["ref", number]
                sent.add(number)
                self._objects[number] = found
                kind = next(kind for kind, plain in _MUTABLE.items() if isinstance(found, plain))
                entries = found.items() if isinstance(found, dict) else found
                return [kind, number, [self.encode(each, sent) for each in entries]]
            case _:
                raise TypeError(f"{type(value).__name__} is not plain data")

    def decode(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        kind, *rest = cast(list[Any], node)
        if kind in _ATOMS:
            return _ATOMS[kind](*rest)
        if kind in _IMMUTABLE:
            return _IMMUTABLE[kind][1]([self.decode(entry) for entry in rest[0]])
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


_ATOMS: Mapping[str, Callable[..., Any]] = {"complex": complex, "bytes": bytes.fromhex}
_IMMUTABLE: Mapping[str, tuple[type, Callable[[list[Any]], Any]]] = {
    "tuple": (tuple, tuple),
    "frozenset": (frozenset, frozenset),
    "iterator": (Iterator, iter),
}
_MUTABLE: Mapping[str, type] = {"list": list, "set": set, "dict": dict}


if __name__ == "__main__":
    sys.set_int_max_str_digits(MAX_INT_DIGITS)
    del sys.path[0]
    serve()
