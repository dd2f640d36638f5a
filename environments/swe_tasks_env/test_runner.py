"""The program that runs tests of a repository in a fresh sandbox, each in a process of its own.

Standard input is a JSON request, read before any code of the repository is there: files to write and to
delete, and a secret word for each test. It prints the word of a test when that has passed: the test function
came to its end, and pytest reports set-up, call and tear-down as passed. So code under test that ends the
process, prints a summary, or replaces pytest's reports has nothing to print. It is in the same process as its
test all the same: see "What a verdict is worth" in README.md.
"""

import base64
import functools
import inspect
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

READY = "ready"
"""Has a word, too: pytest is there, and what comes now is the tests' doing."""
_FIRST = ("pytest_impl", {"tryfirst": True})
"""What `pytest.hookimpl` sets; it is found later."""


def main() -> None:
    """Write, delete, and run."""
    request = json.load(sys.stdin)
    output = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    standard = [each for each in sys.path if "-packages" not in each]
    installed = [each for each in sys.path if "-packages" in each]
    lent = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    sys.path[:] = [*standard, *lent, *installed]

    import pytest  # noqa: PLC0415  # of the folders above

    words: Mapping[str, str] = request["words"]
    os.write(output, f"{words[READY]}\n".encode())
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
    files = {test.partition("::")[0] for test in words} - {READY}
    pytest.main(
        [
            *sorted(file for file in files if Path(file).is_file()),
            *("--rootdir=.", "--import-mode=append", "--continue-on-collection-errors"),
            *("-p", "no:cacheprovider", "-o", "addopts="),
        ],
        plugins=[Proofs(words, output, request["test_s"], path)],
    )


class Proofs:
    """A plugin of pytest: runs the tests that have a word, and prints those of the ones that passed."""

    def __init__(self, words: Mapping[str, str], output: int, test_s: float, path: list[str]) -> None:
        from _pytest.runner import runtestprotocol  # noqa: PLC0415  # before anything could replace it

        self._path = path
        self._is_known = words.__contains__

        def judge(item: Any, write: Callable[[int, bytes], int] = os.write) -> None:
            ended = _ends_of(item)
            reports = runtestprotocol(item, log=False, nextitem=None)
            if len(reports) == 3 and all(each.outcome == "passed" for each in reports) and len(ended) == 1:
                write(output, f"{words[item.nodeid]}\n".encode())

        self._judge = judge
        self._test_s = test_s

    def pytest_load_initial_conftests(self) -> None:
        """The repository is importable from here on; plugins that it brings were not looked for."""
        sys.path[:] = self._path

    setattr(pytest_load_initial_conftests, *_FIRST)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Only those that were asked for."""
        items[:] = [each for each in items if self._is_known(each.nodeid)]

    def pytest_runtest_protocol(self, item: Any) -> bool:
        """Run a test in a fork, which cannot do anything to the next one."""
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                self._judge(item)
            finally:
                os._exit(0)
        ends = os.pidfd_open(pid)
        select.select([ends], [], [], self._test_s)
        os.killpg(pid, signal.SIGKILL)
        os.close(ends)
        os.waitpid(pid, 0)
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
