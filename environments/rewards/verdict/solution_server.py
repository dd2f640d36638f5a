"""The process in which a judge runs an untrusted solution.

It answers calls with plain data and cannot reach the judge, although both run as the same user. The judge
forks it before it reads the test, so its memory holds no secret; a restart begins with another interpreter.
Only the standard library and the modules of the sandbox are available here.
"""

import builtins
import contextlib
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from tools.sandbox.host.seccomp import without_peers
from tools.sandbox.inside.kernel import adopt_orphans, filter_calls, no_new_privileges
from tools.sandbox.inside.processes import kill_new, runnable, snapshot

MAX_REPLY_BYTES = 4 << 20
POLL_S = 0.02
START_S = 20.0
MAX_INT_DIGITS = 100_000
PYTHON = (sys.executable, "-I", "-S", "-c")
_DESCRIPTORS = 4096
_FREE_FRAMES = 994
"""Stack frames that a solution can use, so that its recursion ends at one depth in every kind of process."""
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


class SolutionProcess(NamedTuple):
    pid: int
    requests: int
    replies: int


def fork_solutions(count: int) -> list[SolutionProcess]:
    """Fork processes that wait for a solution; return an empty list in them, which have to call `serve`."""
    found: list[SolutionProcess] = []
    for _ in range(count):
        process = _fork_confined()
        if process is None:
            return []
        found.append(process)
    return found


def _fork_confined() -> SolutionProcess | None:
    """Fork a confined process whose only open files are its pipes. The child returns None."""
    (stdin, requests), (replies, stdout) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(stdin)
        os.close(stdout)
        return SolutionProcess(pid, requests, replies)
    os.setsid()
    for number, fd in enumerate((stdin, stdout, os.open(os.devnull, os.O_RDWR))):
        os.dup2(fd, number)
    os.closerange(3, _DESCRIPTORS)
    if program := without_peers():  # on other architectures the numbers of system calls are unknown
        # Irrevocably, and inherited: no signals to other processes, no control over them or their memory.
        no_new_privileges()
        filter_calls(program)
    return None


class SolutionServer:
    def __init__(self, process: SolutionProcess, solution: str, request: Mapping[str, Any]) -> None:
        adopt_orphans()  # to find processes that leave the solution's group
        self._opening = json.dumps([solution, request["entry_point"]]).encode() + b"\n"
        self._restart = [*PYTHON, request["restart"]]
        self._limits: dict[str, float] = dict(request["limits"])
        self._left_s = self._limits["total_s"]
        self.process: SolutionProcess | None = process
        self.hung = False
        self.lost = 0
        self.slowest_s = 0.0
        self.cpu_s = 0.0
        _SERVERS.append(self)

    def start(self) -> None:
        if self.process is None:
            self.process = _fork_confined()
            if self.process is None:
                try:
                    os.execv(self._restart[0], self._restart)  # gives up the judge's memory
                finally:
                    os._exit(70)
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
            graph.decode(reply["given"])
            error = _exception(reply["raised"], graph.decode(reply["args"]))
        except (Exception, LostAnswer) as error:  # noqa: BLE001  # the solution's process may reply anything
            self.lost += 1
            raise LostAnswer(str(error)) from None
        raise error

    def kill(self) -> None:
        if self.process is not None:
            others = {each.process.pid for each in _SERVERS if each is not self and each.process}
            kill_new({each for each in snapshot() if each[0] in others})
            # Do not wait for the pipes to end: a process that left the group may hold them.
            os.close(self.process.requests)
            os.close(self.process.replies)
            pid, self.process = self.process.pid, None
            with contextlib.suppress(ChildProcessError):  # the end of another server's process reaped it
                os.waitpid(pid, 0)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # zombies count against the sandbox's limit
                    pass

    def _exchange(self, request: bytes) -> bytes:
        if self._left_s <= 0:
            raise LostAnswer("the time for the whole test is up")
        if self.process is None:
            self.start()
        process = cast("SolutionProcess", self.process)
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


def _talk(process: SolutionProcess, request: bytes, *, cpu_s: float, wall_s: float) -> bytes:
    _, requests, replies = process
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


def _exception(names: list[str], args: Iterable[Any]) -> Exception:
    """Return the nearest builtin of the exception that the solution raised."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in _ENDS_OF_LOOPS:
            with contextlib.suppress(TypeError):
                return kind(*args)
    raise LostAnswer(names[0])


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
    if _count_free_frames() > _FREE_FRAMES:
        serve()
        return
    sys.set_int_max_str_digits(MAX_INT_DIGITS)
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


def _count_free_frames(count: int = 0) -> int:
    try:
        return _count_free_frames(count + 1)
    except RecursionError:
        return count


def _answer(function: Any, line: bytes) -> dict[str, Any]:
    graph = ObjectGraph(own=-1)
    args, kwargs = graph.decode(json.loads(line))
    if not callable(function):
        return _loss(TypeError("there is no such function"))
    try:
        returned: Any = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  # compared by the judge
        names, own = [kind.__name__ for kind in type(error).__mro__], ["tuple", [_message(error)]]
        if type(error).__module__ == "builtins":
            with contextlib.suppress(Exception):  # arguments that are not plain data
                own = graph.encode(error.__reduce__()[1])  # `args` of an OSError lacks the file
        given = None
        with contextlib.suppress(Exception):
            given = graph.encode([args, kwargs])
        return {"raised": names, "args": own, "given": given}
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
            case bytes():
                return ["bytes", value.hex()]
            case range():
                return ["range", value.start, value.stop, value.step]
            case tuple() | frozenset() | Iterator() | KeysView() | ValuesView() | ItemsView():
                kind = next(kind for kind, (plain, _) in _IMMUTABLE.items() if isinstance(value, plain))
                return [kind, [self.encode(each, sent) for each in cast(Iterable[Any], value)]]
            case list() | set() | dict() | deque() | bytearray():
                found = cast(list[Any] | set[Any] | dict[Any, Any] | deque[Any] | bytearray, value)
                number = self._numbers.setdefault(id(found), self._own * (len(self._numbers) + 1))
                if number in sent:
                    return ["ref", number]
                sent.add(number)
                self._objects[number] = found
                kind = next(kind for kind, plain in _MUTABLE.items() if isinstance(found, plain))
                entries = found.items() if isinstance(found, dict) else found
                more = (found.maxlen,) if isinstance(found, deque) else ()
                return [kind, number, [self.encode(each, sent) for each in entries], *more]
            case _ if type(value).__module__ in ("decimal", "fractions"):  # not imported without need
                kind = type(value).__name__.lower()
                return [kind, str(value)] if kind == "decimal" else [kind, *value.as_integer_ratio()]
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
        found: Any = self._objects.setdefault(number, _MUTABLE[kind]([], *rest[2:]))
        if not isinstance(found, _MUTABLE[kind]):
            raise TypeError(f"object {number} is no {kind}")
        self._numbers[id(found)] = number
        entries = [self.decode(entry) for entry in rest[1]]
        found.clear()
        if kind in ("set", "dict"):
            found.update(dict(entries) if kind == "dict" else entries)  # a Counter counts pairs
        else:
            found.extend(entries)
        return found


# What would cost the judge much is refused.


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MAX_REPLY_BYTES:
        raise ValueError("a range with too many numbers")
    return found


def _decimal(text: str) -> Any:
    found = import_module("decimal").Decimal(text)
    if found.is_finite() and abs(found.adjusted()) > MAX_INT_DIGITS:
        raise ValueError("a decimal with too many digits")
    return found


def _fraction(above: int, below: int) -> Any:
    return import_module("fractions").Fraction(int(above), int(below))


_ATOMS: Mapping[str, Callable[..., Any]] = {
    "complex": complex,
    "bytes": bytes.fromhex,
    "range": _range,
    "decimal": _decimal,
    "fraction": _fraction,
}
_IMMUTABLE: Mapping[str, tuple[type, Callable[[list[Any]], Any]]] = {
    "tuple": (tuple, tuple),
    "frozenset": (frozenset, frozenset),
    "iterator": (Iterator, iter),
    "keys": (KeysView, lambda entries: dict.fromkeys(entries).keys()),
    "values": (ValuesView, lambda entries: dict(enumerate(entries)).values()),
    "items": (ItemsView, lambda entries: dict(entries).items()),
}
_MUTABLE: Mapping[str, type] = {kind.__name__: kind for kind in (list, set, dict, deque, bytearray)}
