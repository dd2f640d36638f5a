"""The program that runs tests of a repository in a fresh sandbox, each in a process of its own.

It forks at once. The child loads the repository, runs each test in a fork of its own and reports what passed.
The parent, which loads nothing of the repository, reads the nonce only then. It prints the numbers of those
whose reports agree with how their processes and the child ended; a report that is not due voids all. So code
under test finds no nonce in its memory. It shares a process with its test all the same, and can report in its
place: see "What a verdict is worth" in the README.md of `swe_tasks`.
"""

import base64
import ctypes
import functools
import inspect
import json
import os
import re
import select
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

_FIRST = ("pytest_impl", {"tryfirst": True})
"""What `pytest.hookimpl` sets; it is found later."""
_BEGIN, _DONE = b"ready\n", b"done\n"
_TEST = re.compile(rb"begun (\d{1,6})\n(passed \1\n)?ended \1 (-?\d+)\n")
_MOST_BYTES = 1 << 24
_SET_DUMPABLE = 4


def main() -> None:
    """Fork, and print what passed."""
    (readable, reports), (requests, writable) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        os.close(writable)
        _be_child(requests, reports)
    os.close(reports)
    os.close(requests)
    # The child has the same user: nothing of it may read this memory.
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    request = json.load(sys.stdin)
    due, nonce = time.monotonic() + request["total_s"], request.pop("nonce")
    pipe = os.fdopen(writable, "wb", 0)
    with suppress(BrokenPipeError):
        pipe.write(json.dumps(request).encode() + b"\n")
    report, data, is_ready = b"", b"-", False
    while data and len(report) < _MOST_BYTES:
        if not select.select([readable], [], [], max(0.0, due - time.monotonic()))[0]:
            break
        report += (data := os.read(readable, 1 << 16))
        if not is_ready and (is_ready := report.startswith(_BEGIN)):
            print(nonce, "ready null", flush=True)  # noqa: T201  # pytest is imported
            pipe.close()  # what may end this program begins now
    if is_over := bool(data):  # it takes too long, or says too much
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not is_ready:
        sys.exit(code or 1)
    passed = _agreed(report.removeprefix(_BEGIN), is_over=is_over) if is_over or not code else ()
    print(nonce, "end", json.dumps(sorted(passed)))  # noqa: T201


def _agreed(report: bytes, *, is_over: bool) -> set[int]:
    """Return the numbers of the tests that passed; none if the report has a form that no honest run gives."""
    tests = list(_TEST.finditer(report))
    rest = report[tests[-1].end() :] if tests else report
    is_due = rest == _DONE or (is_over and (not rest or rest.startswith(b"begun ")))
    numbers = {int(each[1]) for each in tests}
    if not is_due or len(numbers) < len(tests) or report != b"".join(each[0] for each in tests) + rest:
        return set()
    return {int(each[1]) for each in tests if each[2] and each[3] == b"0"}


def _be_child(requests: int, reports: int) -> None:
    """Run the tests and exit; a traceback is printed if pytest cannot be imported."""
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
    pipe = os.fdopen(requests, "rb")
    request = json.loads(pipe.readline())
    standard = [each for each in sys.path if "-packages" not in each]
    installed = [each for each in sys.path if "-packages" in each]
    lent = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    sys.path[:] = [*standard, *lent, *installed]

    import pytest  # noqa: PLC0415  # of the folders above

    os.write(reports, b"ready\n")
    pipe.read()  # until that is printed
    pipe.close()
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
    """Return a list that gets an entry when the test's function returns, and in no other way."""
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
