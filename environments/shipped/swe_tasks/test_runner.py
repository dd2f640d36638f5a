"""The program that runs tests of a repository in a fresh sandbox, each test in a separate process.

It forks at once. The child loads the repository, runs each test in another fork and reports the passing ones.
The parent loads nothing of the repository, and reads the nonce after the fork. It prints the numbers of
tests with a report that agrees with the exit of their processes and of the child; an unexpected report voids
all. So code under test finds no nonce in its memory. It still shares a process with its test, and can report
in its place: see "What a verdict is worth" in README.md.
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
_BEGIN, _DONE = b"ready\n", b"done\n"
_TEST = re.compile(rb"begun (\d{1,6})\n(passed \1\n)?ended \1 (-?\d+)\n")
_MOST_BYTES = 1 << 24
_SET_DUMPABLE = 4


def main() -> None:
    (readable, reports), (requests, writable) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(readable)
        os.close(writable)
        _be_child(requests, reports)
    os.close(reports)
    os.close(requests)
    # The child has the same user and must not read this memory.
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
            print(nonce, "ready null", flush=True)  # noqa: T201
            pipe.close()  # the repository's code begins now
    if is_over := bool(data):  # the time is up, or the report too long
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not is_ready:
        sys.exit(code or 1)
    passed = _read_report(report.removeprefix(_BEGIN), is_over=is_over) if is_over or not code else ()
    print(nonce, "end", json.dumps(sorted(passed)))  # noqa: T201


def _read_report(report: bytes, *, is_over: bool) -> set[int]:
    """Return the numbers of the passing tests, none for a malformed report."""
    tests = list(_TEST.finditer(report))
    rest = report[tests[-1].end() :] if tests else report
    is_due = rest == _DONE or (is_over and (not rest or rest.startswith(b"begun ")))
    numbers = {int(each[1]) for each in tests}
    if not is_due or len(numbers) < len(tests) or report != b"".join(each[0] for each in tests) + rest:
        return set()
    return {int(each[1]) for each in tests if each[2] and each[3] == b"0"}


def _be_child(requests: int, reports: int) -> None:
    try:
        _run_tests(requests, reports)
    except BaseException:  # noqa: BLE001  # the parent's code must not run here
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

    import pytest  # noqa: PLC0415  # from the folders above

    os.write(reports, b"ready\n")
    pipe.read()  # wait until the parent has printed it
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
    # After the standard library and before other installed packages.
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
    def __init__(self, tests: list[str], output: int, test_s: float, path: list[str]) -> None:
        from _pytest.runner import runtestprotocol  # noqa: PLC0415  # before the repository could replace it

        self._path = path
        self._left = {test: index for index, test in enumerate(tests)}
        self._output, self._test_s = output, test_s

        def passes(item: Any) -> bool:
            is_xfail, returns = item.get_closest_marker("xfail") is not None, _count_returns(item)
            reports = runtestprotocol(item, log=False, nextitem=None)
            if is_xfail:  # SWE-bench lists these among the passing ones
                return all(each.passed or hasattr(each, "wasxfail") for each in reports)
            return len(reports) == 3 and all(each.passed for each in reports) and len(returns) == 1

        self._passes = passes

    def pytest_load_initial_conftests(self) -> None:
        """Make the repository importable, after pytest has looked for plugins."""
        sys.path[:] = self._path

    setattr(pytest_load_initial_conftests, *_FIRST)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = {each.nodeid: each for each in items if each.nodeid in self._left}.values()

    def pytest_runtest_protocol(self, item: Any) -> bool:
        """Run a test in a fork, so that it cannot change the next one."""
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


def _count_returns(item: Any) -> list[bool]:
    function, returns = item.obj, list[bool]()

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        returns.append(True)

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> None:
        await function(*args, **kwargs)
        returns.append(True)

    item.obj = awaited if inspect.iscoroutinefunction(function) else plain
    return returns


if __name__ == "__main__":
    main()
