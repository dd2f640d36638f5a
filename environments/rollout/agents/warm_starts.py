"""Starts of a Python command whose imports are made once per run."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Self

from tools.sandbox.host.ownership import cpu_seconds, own_folder
from tools.sandbox.host.warm_python import ProgramStart, WarmPython, read_imports
from tools.waiting import or_undo

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 4
_DEAR_START_S = 0.5
_KILL_S = 1.0
_MAX_LIST_BYTES = 1 << 20
_MODULES_FILE = "modules"
_PLAIN = "PATH", "LANG", "TMPDIR"
"""Variables, besides Python's own, of an interpreter that only measures how long imports take."""


class WarmProgram:
    """A program forked from a warm interpreter, with the interface of asyncio's `Process`."""

    def __init__(self, pid: int) -> None:
        self.pid, self._pidfd = pid, os.pidfd_open(pid)
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._pidfd, self._reap)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exit.set_result(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))


class WarmStarts:
    """Forks the programs of one command from an interpreter that has made their imports.

    Which these are is known once a program has ended by itself. Until then the interpreter makes none.
    """

    def __init__(
        self,
        argv: Sequence[str],
        make_environment: Callable[[str], Mapping[str, str]],
        *,
        is_wanted: bool = True,
    ) -> None:
        """`make_environment` gives the variables that all rollouts share, with a home in a folder."""
        self._argv, self._make_environment = argv, make_environment
        self._is_wanted, self._is_measured = is_wanted, is_wanted
        self._modules: Sequence[str] = ()
        self._pythons: list[asyncio.Task[WarmPython]] = []
        self._loading: WarmPython | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._is_loaded = self._has_waited = False
        self._closing = AsyncExitStack()
        self.printed = b""
        """What the imports print; the output of a program that is started cold begins with it."""

    async def __aenter__(self) -> Self:
        self._closing.push_async_callback(self._close_pythons)
        if self._is_wanted:
            self._env = self._make_environment(await self._closing.enter_async_context(own_folder()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def start(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: str, streams: Sequence[int]
    ) -> WarmProgram | None:
        """Start the program between two guards, or return None if it must be started as any other.

        `folder` belongs to the rollout: the guards remove it if this process ends first.
        """
        if not self._is_wanted:
            return None
        if not self._pythons or (self._modules and not self._is_loaded):
            self._is_loaded = bool(self._modules)
            differing = [each for each in {*env, *self._env} if env.get(each) != self._env.get(each)]
            self._pythons.append(asyncio.create_task(asyncio.to_thread(self._prepare, differing)))
        is_loaded = self._is_loaded
        try:
            python = await asyncio.shield(self._pythons[-1])
            written = None if is_loaded else str(Path(folder, _MODULES_FILE))
            program = ProgramStart(
                arguments=arguments, env=env, cwd=str(Path.cwd()), folder=folder, modules_file=written
            )
            fork = partial(python.fork, program, streams)
            return WarmProgram(await or_undo(asyncio.to_thread(fork), _end))
        except (OSError, ValueError) as error:
            if self._is_wanted:
                _LOG.warning("agent: warm=True is not used: %s", error)
            self._is_wanted = False
            return None

    def note_modules(self, folder: str) -> None:
        """Read the list of imported modules that a rollout's program wrote into its folder at its end."""
        if self._modules or not self._is_wanted:
            return
        try:
            with Path(folder, _MODULES_FILE).open("rb") as file:
                self._modules = file.read(_MAX_LIST_BYTES).decode(errors="replace").splitlines()
        except FileNotFoundError:
            if not self._has_waited:
                _LOG.warning(
                    "agent: warm=True waits for a program that ends by itself, which tells its imports; one "
                    "was ended, or called os._exit"
                )
            self._has_waited = True

    def note_first_request(self, pid: int) -> None:
        """Recommend warm starts if much CPU time until the first request of a run was spent on imports."""
        if self._is_measured:
            return
        self._is_measured = True
        with suppress(OSError):
            if (cpu_s := cpu_seconds(pid)) >= _DEAR_START_S:
                self._measuring = asyncio.create_task(self._measure_imports(cpu_s))

    async def _measure_imports(self, start_s: float) -> None:
        """Import in an interpreter of its own, without any key, what the program's code names."""
        with suppress(OSError, SyntaxError, ValueError):
            async with own_folder() as folder:
                given = self._make_environment(folder).items()
                kept = {name: value for name, value in given if name in _PLAIN or name.startswith("PYTHON")}
                env = {**kept, "HOME": folder}
                modules = await asyncio.to_thread(read_imports, self._argv, env)
                python = WarmPython(self._argv, env)
                try:
                    report = await asyncio.to_thread(python.load, modules, ())
                finally:
                    await asyncio.to_thread(python.close)
            if report.cpu_s >= _DEAR_START_S and not (report.threaded or report.opened):
                shares = min(report.cpu_s, start_s), start_s
                _LOG.warning(
                    "agent: imports are %.1f of %.1f CPU s of a start: Command(..., warm=True)", *shares
                )

    def _prepare(self, differing: Sequence[str]) -> WarmPython:
        """Start the interpreter, without the modules whose import reads what differs between rollouts.

        Raises:
            ValueError: if the imports leave something that forks cannot share.
        """
        late: set[str] = set()
        reasons = list[str]()
        for _ in range(_ATTEMPTS):
            modules = [each for each in self._modules if late.isdisjoint(_with_packages(each))]
            if self._modules and not modules:
                break
            self._loading = python = WarmPython(self._argv, self._env)
            try:
                report = python.load(modules, differing)
            except OSError:
                python.close()
                raise
            if not (report.threaded or report.opened or report.reads):
                if modules:
                    count = len(self._modules) - len(modules)
                    again = f"; {count} are imported by each rollout: {'; '.join(reasons)}" if count else ""
                    text = "agent: %d modules are imported once, in %.1f CPU s%s"
                    level = logging.WARNING if count else logging.INFO
                    _LOG.log(level, text, len(modules), report.cpu_s, again)
                self.printed = python.printed
                return python
            python.close()
            if report.threaded:
                raise ValueError(f"importing {report.threaded} leaves a second thread")
            if report.opened:
                raise ValueError(f"the imports leave {report.opened[0][1]} open")
            name, readers = next(iter(report.reads.items()))
            reasons.append(f"importing {readers[0]} reads {name}, which differs between rollouts")
            late |= {each for readers in report.reads.values() for each in readers}
        raise ValueError("; ".join(reasons))

    async def _close_pythons(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait({self._measuring})
        for preparing in self._pythons:
            while not preparing.done():  # a retry starts another interpreter
                if self._loading is not None:
                    self._loading.kill()
                await asyncio.wait({preparing}, timeout=_KILL_S)
            if not preparing.cancelled() and preparing.exception() is None:
                await asyncio.to_thread(preparing.result().close)


def _with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


async def _end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    await WarmProgram(pid).wait()
