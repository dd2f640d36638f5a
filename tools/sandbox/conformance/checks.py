"""What a check is, how it states a fact, and what it works with: sandboxes, and how the host sees them."""

import asyncio
import json
import os
import secrets
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

from tools.errors import IsolationError
from tools.sandbox import Opening, find_backend
from tools.sandbox.base import ExecResult, LimitOverrides, Sandbox, SandboxLimits
from tools.sandbox.inside.processes import running

Seen = TypeVar("Seen")

_POLL_S = 0.02
COUNT_PROCESSES = (
    'n=0; for f in /proc/[0-9]*/environ; do grep -qz "^HOME=$HOME$" $f 2>/dev/null && n=$((n+1)); done; '
    "echo $n"
)
"""Of the sandbox, even where the machine's can be seen: all have its home."""


class MissingError(Exception):
    """Something that the check needs is missing; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which sandboxes are checked; it can be sent to another process."""

    backend: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keywords of the backend's opener, such as `tier` or `image`."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    def open(
        self, *, options: Mapping[str, Any] | None = None, **limits: Unpack[LimitOverrides]
    ) -> AbstractAsyncContextManager[Sandbox]:
        """One sandbox of this kind."""
        opener: Callable[..., AbstractAsyncContextManager[Sandbox]] = find_backend(self.backend)
        return opener(replace(self.limits, **limits), **{**self.options, **(options or {})})

    def to_json(self) -> str:
        """The target as text, for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Target":
        """The target that `to_json` wrote."""
        fields = json.loads(text)
        limits = SandboxLimits(**fields["limits"])
        return cls(backend=fields["backend"], options=fields["options"], limits=limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One check's surroundings."""

    target: Target
    sandbox: Sandbox
    """Opened for this check alone."""
    crowd: int = 64
    """How many sandboxes a check about many of them opens."""
    passed_over: list[str] = field(default_factory=list[str])
    """What parts of the check were not about, because the sandbox does not give it."""

    def gives(self, name: str) -> bool:
        """Whether something is not in the sandbox's `lacks`; otherwise a part is passed over."""
        if name not in self.sandbox.record.lacks:
            return True
        self.passed_over.append(name)
        return False

    async def temporary(self) -> str:
        """The folder for temporary files inside."""
        return (await self.sandbox.exec("printf %s ${TMPDIR:-/tmp}")).text()

    def open(self, **limits: Unpack[LimitOverrides]) -> AbstractAsyncContextManager[Sandbox]:
        """Another sandbox of the same kind."""
        return self.target.open(**limits)

    def verification(self, files: Mapping[str, bytes]) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox of the same kind that holds a verifier's files.

        Raises:
            MissingError: the backend has no word for it.
        """
        opener = find_backend(self.target.backend)
        try:
            opening = Opening(self.target.backend, opener, self.target.limits, dict(self.target.options))
            return opening.for_verifier(files)
        except IsolationError as error:
            raise MissingError(str(error)) from None

    async def python(self, code: str, *arguments: str, timeout_s: float = 60.0) -> ExecResult:
        """Run Python inside.

        Raises:
            MissingError: the sandbox has no `python3`.
        """
        result = await self.sandbox.exec(["python3", "-c", code, *arguments], timeout_s=timeout_s)
        if result.exit_code == 127:
            raise MissingError("there is no python3 in the sandbox")
        return result

    async def host_program(
        self, scenario: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start one of `tools.sandbox.conformance.hosts` as a process of its own."""
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tools.sandbox.conformance.hosts",
            scenario, self.target.to_json(), *arguments,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **(env or {})},
        )  # fmt: skip

    async def ask_host_program(
        self, scenario: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Any:
        """Run one to its end; the JSON that it prints.

        Raises:
            RuntimeError: it failed.
        """
        process = await self.host_program(scenario, *arguments, env=env)
        out, err = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the host program {scenario} failed: {err.decode('utf-8', 'replace')[-800:]}")
        return json.loads(out)


def marker() -> str:
    """Seconds that no other process sleeps: `sleep MARKER` is found among all processes of this machine."""
    return f"{secrets.randbelow(10**6) + 10**6}.{secrets.randbelow(10**6):06}"


async def sleeper(sandbox: Sandbox, mark: str) -> int:
    """Leave `sleep MARK` running in a sandbox; its process id on the host.

    Raises:
        MissingError: processes of the sandbox cannot be seen from here.
    """
    await sandbox.exec(f"setsid sleep {mark} >/dev/null 2>&1 </dev/null &")
    found = await until(lambda: host_pids(mark), within_s=5)
    if not found:
        raise MissingError("processes of the sandbox cannot be seen from this process")
    return found[0]


def host_pids(mark: str) -> list[int]:
    """Processes of this machine that run `sleep MARK`."""
    wanted = f"sleep\0{mark}\0".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _reads(path, wanted)]


def first_process_of(pid: int) -> int:
    """The process that a sandbox ends with, by its id on the host.

    It is process 1 of the PID namespace that an orphan lives in; without one, the parent of the supervisor,
    which adopts orphans.

    Raises:
        MissingError: it cannot be found from here.
    """
    if len(host_status(pid, "NSpid").split()) == 1:
        found = int(host_status(int(host_status(pid, "PPid")), "PPid"))
        if found not in running():
            raise MissingError(f"process {pid} has no supervisor below this process")
        return found
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        found = int(path.parent.parent.name)
        try:
            same = path.readlink() == Path(f"/proc/{pid}/ns/pid").readlink()
            status = Path(f"/proc/{found}/status").read_text()
        except OSError:
            continue
        if same and _field(status, "NSpid").split()[-1] == "1":
            return found
    raise MissingError(f"no process 1 is visible for process {pid}")


def host_status(pid: int, name: str) -> str:
    """A line of `/proc/PID/status` as the host sees it."""
    return _field(Path(f"/proc/{pid}/status").read_text(), name)


async def until(look: Callable[[], Seen], *, within_s: float) -> Seen:
    """Look again and again until there is something, or the time is up; what was seen last."""
    deadline = time.monotonic() + within_s
    seen = look()
    while not seen and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        seen = look()
    return seen


def _reads(path: Path, wanted: bytes) -> bool:
    try:
        return path.read_bytes() == wanted
    except OSError:
        return False


def _field(status: str, name: str) -> str:
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise MissingError(f"/proc has no line {name}")


CheckFunction = Callable[[Bench], Awaitable[None]]
CHECKS: dict[str, "Check"] = {}
"""Every check by its name, filled when the topic files are imported."""


LACKING: Mapping[str, str] = {
    "disk_mb": "no file system bounds the workspace: it is counted now and then",
    "file_modes": "the modes and times of the user's own files can be changed by path",
    "hidden_processes": "names and arguments of the host's processes can be read",
    "host_files": "files of the host are open as far as their modes allow",
    "kernel_doors": "privileges can be gained from setuid programs, and no call is filtered",
    "network": "the host's network is within reach",
    "oom_score": "in a shortage of memory an agent can make its processes as dear as the host's",
    "own_tmp": "/tmp and /dev/shm are closed; TMPDIR names the folder for temporary files",
    "system_calls": "no system call is filtered: their numbers for this processor are not known",
    "verifier_files": "a verifier's files are files of the agent's user",
    "unix_sockets": "UNIX sockets cannot be made: by path they would lead to the user's services",
}
"""What a sandbox may list in `SandboxRecord.lacks`, in words."""


class CheckFailedError(AssertionError):
    """A sandbox fails the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim about a sandbox."""

    number: int
    """From 1: Inspect's own 44, then ours."""
    name: str
    claim: str
    """One line in words."""
    run: CheckFunction | None = None
    """Raises when the claim does not hold; `None` for a check that no backend can pass, see `missing`."""
    limits: LimitOverrides = field(default_factory=LimitOverrides)
    """Of the sandbox that it gets."""
    needs: tuple[str, ...] = ()
    """Limits that have to be enforced; where one is not, the check is skipped."""
    gives: tuple[str, ...] = ()
    """What all of it is about; if the sandbox lacks one, the check is skipped."""
    missing: str | None = None
    """Why the protocol has nothing to check."""


def check(
    number: int,
    *,
    needs: tuple[str, ...] = (),
    gives: tuple[str, ...] = (),
    **limits: Unpack[LimitOverrides],
) -> Callable[[CheckFunction], CheckFunction]:
    """Declare a function as a check; its name is the check's, the first line of its docstring the claim."""

    def declare(function: CheckFunction) -> CheckFunction:
        claim = (function.__doc__ or "").strip().partition("\n")[0]
        name = function.__name__
        CHECKS[name] = Check(
            number=number, name=name, claim=claim, run=function, limits=limits, needs=needs, gives=gives
        )
        return function

    return declare


def declare_missing(number: int, name: str, claim: str, reason: str) -> None:
    """Declare a check that the protocol has no words for."""
    CHECKS[name] = Check(number=number, name=name, claim=claim, missing=reason)


def equal(what: str, got: object, wanted: object) -> None:
    """State that two values are the same.

    Raises:
        CheckFailedError: they are not.
    """
    if got != wanted:
        raise CheckFailedError(f"{what}: got {_short(got)}, wanted {_short(wanted)}")


def holds(claim: str, condition: bool) -> None:
    """State a fact.

    Raises:
        CheckFailedError: it is not.
    """
    if not condition:
        raise CheckFailedError(f"not true: {claim}")


@contextmanager
def raises(*kinds: type[Exception], what: str) -> Generator[None]:
    """State that the block raises one of these errors.

    Raises:
        CheckFailedError: it raises nothing, or something else.
    """
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds:
        return
    except Exception as error:
        raise CheckFailedError(f"{what}: got {type(error).__name__}: {error}; wanted {names}") from error
    raise CheckFailedError(f"{what}: got no error; wanted {names}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} … {text[-60:]} ({len(text)} characters)"
