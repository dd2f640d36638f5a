"""The program that runs tests of a repository in a fresh sandbox, each in a process of its own.

It forks at once. The child never has the secret words: it loads the repository, runs each test in a fork of
its own and reports what passed. The parent reads the words afterwards, from standard input, and nothing of
the repository is ever loaded in it. It prints the word of a test once the child's reports, the end of the
test's process and that of the child agree; a report that is not due voids them all. So code under test finds
no word in its memory. It shares a process with its test all the same, and can report in its place: see "What
a verdict is worth" in README.md.
"""

import base64
import ctypes
import functools
import inspect
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

READY = "ready"
"""Has a word, too: pytest is there, and what comes now is the tests' doing."""
END = "end"
"""Has a word, too: this program came to its end, whatever became of the tests."""
_FIRST = ("pytest_impl", {"tryfirst": True})
"""What `pytest.hookimpl` sets; it is found later."""
_SET_DUMPABLE = 4
_CHUNK = 1 << 16


def main() -> None:
    """Fork, and print the words of what passed."""
    readable, reports = os.pipe()
    requests, writable = os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        os.close(writable)
        _be_child(requests, reports)
    os.close(reports)
    os.close(requests)
    # The child has the same user: nothing of it may read this memory.
    if ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0):
        sys.exit("this process cannot hide its memory")
    request = json.load(sys.stdin)
    due = time.monotonic() + request["total_s"]
    words: Mapping[str, str] = request.pop("words")
    request["tests"] = tests = [each for each in words if each not in (READY, END)]
    try:
        with os.fdopen(writable, "wb") as pipe:
            pipe.write(json.dumps(request).encode())
    except BrokenPipeError:
        sys.exit(_exit_code(child) or 1)
    ledger = Ledger(lambda: print(words[READY], flush=True))  # noqa: T201
    is_over = _listen(readable, ledger, due)
    if is_over:
        os.kill(child, signal.SIGKILL)
    code = _exit_code(child)
    if not ledger.is_ready:
        sys.exit(code or 1)
    agreed = ledger.passed if is_over or (ledger.is_done and not code) else set[int]()
    for index in sorted(agreed & set(range(len(tests))) if not ledger.is_void else ()):
        print(words[tests[index]])  # noqa: T201
    print(words[END], flush=True)  # noqa: T201


def _listen(readable: int, ledger: "Ledger", due: float) -> bool:
    """Read reports until their end; whether it did not come in time."""
    unread = b""
    while not ledger.is_void and len(unread) < _CHUNK:
        left_s = due - time.monotonic()
        if left_s <= 0 or not select.select([readable], [], [], left_s)[0]:
            return True
        data = os.read(readable, _CHUNK)
        if not data:
            return False
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            ledger.add(line)
    ledger.is_void = True
    return True


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Ledger:
    """What was reported, in the one order that is possible; anything else makes it void.

    `ready`, then of each test `begun N`, at most once `passed N` and `ended N CODE`, and `done`.
    """

    def __init__(self, notify_ready: Callable[[], None]) -> None:
        self._notify_ready = notify_ready
        self.is_ready = self.is_done = self.is_void = False
        self.passed = set[int]()
        """Tests that reported it and whose processes then ended with 0."""
        self._begun = set[int]()
        self._open = self._reported = -1

    def add(self, line: bytes) -> None:
        """Take one report."""
        word, *numbers = line.split(b" ")
        values = [int(each) for each in numbers if each.removeprefix(b"-").isdigit() and len(each) < 9]
        due = {
            b"ready": not self.is_ready,
            b"begun": self.is_ready and self._open < 0 and values[:1] and values[0] not in self._begun,
            b"passed": values == [self._open] and self._reported < 0,
            b"ended": values[:1] == [self._open] and len(values) == 2,
            b"done": self.is_ready and self._open < 0,
        }
        if self.is_done or len(values) != len(numbers) or not due.get(word):
            self.is_void = True
        elif word == b"ready":
            self.is_ready = True
            self._notify_ready()
        elif word == b"begun":
            self._open = values[0]
            self._begun.add(self._open)
        elif word == b"passed":
            self._reported = self._open
        elif word == b"ended":
            if self._reported >= 0 and values[1] == 0:
                self.passed.add(self._open)
            self._open = self._reported = -1
        else:
            self.is_done = True


def _be_child(requests: int, reports: int) -> None:
    """Run the tests, and end; errors before there is pytest are for people."""
    try:
        _run_tests(requests, reports)
    except BaseException:  # noqa: BLE001  # nothing of the parent's may run here
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _run_tests(requests: int, reports: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    with os.fdopen(requests, "rb") as pipe:
        request = json.load(pipe)
    standard = [each for each in sys.path if "-packages" not in each]
    installed = [each for each in sys.path if "-packages" in each]
    lent = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    sys.path[:] = [*standard, *lent, *installed]

    import pytest  # noqa: PLC0415  # of the folders above

    os.write(reports, b"ready\n")
    os.dup2(nowhere, 2)
    for path in request["deleted"]:
        Path(path).unlink(missing_ok=True)
    for path, (data, mode) in request["written"].items():
        if Path(path).is_dir():
            shutil.rmtree(path)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(base64.b64decode(data))
        Path(path).chmod(mode)
    # Behind the standard library and in front of what else is installed.
    roots = [str(path) for path in (Path.cwd() / "src", Path.cwd()) if path.is_dir()]
    path = [*standard, *roots, *lent, *installed]
    os.environ.update(PYTHONPATH=":".join([*roots, *lent]), PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    files = {test.partition("::")[0] for test in request["tests"]}
    pytest.main(
        [
            *sorted(file for file in files if Path(file).is_file()),
            *("--rootdir=.", "--import-mode=append", "--continue-on-collection-errors"),
            *("-p", "no:cacheprovider", "-o", "addopts="),
        ],
        plugins=[Reporter(request["tests"], reports, request["test_s"], path)],
    )
    os.write(reports, b"done\n")


class Reporter:
    """A plugin of pytest: runs the tests that were asked for, and reports which of them pass."""

    def __init__(self, tests: list[str], output: int, test_s: float, path: list[str]) -> None:
        from _pytest.runner import runtestprotocol  # noqa: PLC0415  # before anything could replace it

        self._path = path
        self._left = {test: index for index, test in enumerate(tests)}
        self._output, self._test_s = output, test_s

        def passes(item: Any) -> bool:
            ended = _ends_of(item)
            reports = runtestprotocol(item, log=False, nextitem=None)
            return len(reports) == 3 and all(each.outcome == "passed" for each in reports) and len(ended) == 1

        self._passes = passes

    def pytest_load_initial_conftests(self) -> None:
        """The repository is importable from here on; plugins that it brings were not looked for."""
        sys.path[:] = self._path

    setattr(pytest_load_initial_conftests, *_FIRST)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Only those that were asked for, each once."""
        items[:] = {each.nodeid: each for each in items if each.nodeid in self._left}.values()

    def pytest_runtest_protocol(self, item: Any) -> bool:
        """Run a test in a fork, which cannot do anything to the next one."""
        index = self._left[item.nodeid]
        os.write(self._output, b"begun %d\n" % index)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.setsid()
                if self._passes(item):
                    os.write(self._output, b"passed %d\n" % index)
                    code = 0
            finally:
                os._exit(code)
        ends = os.pidfd_open(pid)
        select.select([ends], [], [], self._test_s)
        os.killpg(pid, signal.SIGKILL)
        os.close(ends)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(self._output, b"ended %d %d\n" % (index, code))
        return True

    setattr(pytest_runtest_protocol, *_FIRST)


def _ends_of(item: Any) -> list[bool]:
    """Gets an entry when the function of a test comes to its end: not when it raises, and no other way."""
    function, ended = item.obj, list[bool]()

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        ended.append(True)

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> None:
        await function(*args, **kwargs)
        ended.append(True)

    item.obj = awaited if inspect.iscoroutinefunction(function) else plain
    return ended


if __name__ == "__main__":
    main()
