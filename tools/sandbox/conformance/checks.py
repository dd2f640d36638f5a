"""Declaring checks, stating facts, and the sandboxes and host programs that checks work with."""

import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
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
"""Counts the sandbox's processes by HOME, even where the host's are visible."""


class MissingError(Exception):
    """The check needs something that is missing; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The sandboxes to check; can be sent to another process as JSON."""

    backend: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the backend's opener, such as `tier` or `image`."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    def open(
        self, *, options: Mapping[str, Any] | None = None, **limits: Unpack[LimitOverrides]
    ) -> AbstractAsyncContextManager[Sandbox]:
        opener: Callable[..., AbstractAsyncContextManager[Sandbox]] = find_backend(self.backend)
        return opener(replace(self.limits, **limits), **{**self.options, **(options or {})})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Target":
        fields = json.loads(text)
        fields["limits"] = SandboxLimits(**fields["limits"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    target: Target
    sandbox: Sandbox
    crowd: int = 64
    """The number of sandboxes in a check with many of them."""
    passed_over: list[str] = field(default_factory=list[str])
    """Parts that were skipped because the sandbox lacks something."""

    def gives(self, name: str) -> bool:
        """Whether the sandbox's `lacks` does not contain a name; otherwise note a skipped part."""
        if name not in self.sandbox.record.lacks:
            return True
        self.passed_over.append(name)
        return False

    async def temporary(self) -> str:
        """Return the folder for temporary files inside."""
        return (await self.sandbox.exec("printf %s ${TMPDIR:-/tmp}")).text()

    def open(self, **limits: Unpack[LimitOverrides]) -> AbstractAsyncContextManager[Sandbox]:
        return self.target.open(**limits)

    def verification(self, files: Mapping[str, bytes]) -> AbstractAsyncContextManager[Sandbox]:
        """Return a sandbox that holds a verifier's files; raise MissingError if the backend cannot."""
        opener = find_backend(self.target.backend)
        try:
            opening = Opening(self.target.backend, opener, self.target.limits, dict(self.target.options))
            return opening.for_verifier(files)
        except IsolationError as error:
            raise MissingError(str(error)) from None

    async def python(self, code: str, *arguments: str, timeout_s: float = 60.0) -> ExecResult:
        result = await self.sandbox.exec(["python3", "-c", code, *arguments], timeout_s=timeout_s)
        if result.exit_code == 127:
            raise MissingError("there is no python3 in the sandbox")
        return result

    async def host_program(
        self, scenario: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tools.sandbox.conformance.hosts",
            scenario, self.target.to_json(), *arguments,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **(env or {})},
        )  # fmt: skip

    async def ask_host_program(
        self, scenario: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> Any:
        """Run a scenario to its end and return its JSON; raise RuntimeError if it fails."""
        process = await self.host_program(scenario, *arguments, env=env)
        out, err = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"the host program {scenario} failed: {err.decode('utf-8', 'replace')[-800:]}")
        return json.loads(out)


def marker() -> str:
    """Return a sleep time that identifies a `sleep` process on this machine."""
    return f"{secrets.randbelow(10**6) + 10**6}.{secrets.randbelow(10**6):06}"


async def sleeper(sandbox: Sandbox, mark: str) -> int:
    """Leave `sleep MARK` running in a sandbox and return its process id on the host.

    Raises:
        MissingError: if processes of the sandbox are not visible from here.
    """
    await sandbox.exec(f"setsid sleep {mark} >/dev/null 2>&1 </dev/null &")
    found = await until(lambda: host_pids(mark), within_s=5)
    if not found:
        raise MissingError("processes of the sandbox cannot be seen from this process")
    return found[0]


def host_pids(mark: str) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(int(path.parent.name))
    return found


def first_process_of(pid: int) -> int:
    """Return the host id of the process with which a sandbox ends.

    It is process 1 of the orphan's PID namespace, or without namespaces the parent of its supervisor.

    Raises:
        MissingError: if it is not visible from here.
    """
    if len(host_status(pid, "NSpid").split()) == 1:
        found = int(host_status(int(host_status(pid, "PPid")), "PPid"))
        if found not in running():
            raise MissingError(f"process {pid} has no supervisor below this process")
        return found
    namespace = Path(f"/proc/{pid}/ns/pid")
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        with suppress(OSError):
            found = int(path.parent.parent.name)
            if path.readlink() == namespace.readlink() and host_status(found, "NSpid").split()[-1] == "1":
                return found
    raise MissingError(f"no process 1 is visible for process {pid}")


def host_status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise MissingError(f"/proc has no line {name}")


@contextmanager
def host_file() -> Generator[tuple[Path, bytes]]:
    """Create a host file that everybody may read and change; yield it with its content."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path, secret = Path(folder, "secret"), secrets.token_hex(16).encode()
        path.write_bytes(secret)
        path.chmod(0o666)
        yield path, secret


async def until(look: Callable[[], Seen], *, within_s: float) -> Seen:
    """Poll until the result is true or the time is up, and return the last result."""
    deadline = time.monotonic() + within_s
    seen = look()
    while not seen and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        seen = look()
    return seen


CheckFunction = Callable[[Bench], Awaitable[None]]
CHECKS: dict[str, "Check"] = {}
"""Filled when the topic files are imported."""


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
"""Descriptions of the names in `SandboxRecord.lacks`."""


class CheckFailedError(AssertionError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    number: int
    """1 to 44 are Inspect's, later ones ours."""
    name: str
    claim: str
    run: CheckFunction | None = None
    """Raises if the claim does not hold; None for a check that no backend can pass."""
    limits: LimitOverrides = field(default_factory=LimitOverrides)
    needs: tuple[str, ...] = ()
    """Limits that must be enforced; otherwise the check is skipped."""
    gives: tuple[str, ...] = ()
    """The check is skipped if the sandbox lacks one of these."""
    missing: str | None = None
    """Reason why the protocol cannot express the check."""


def check(
    number: int,
    claim: str,
    *,
    name: str | None = None,
    needs: tuple[str, ...] = (),
    gives: tuple[str, ...] = (),
    **limits: Unpack[LimitOverrides],
) -> Callable[[CheckFunction], CheckFunction]:
    def declare(function: CheckFunction) -> CheckFunction:
        called = name or function.__name__
        CHECKS[called] = Check(
            number=number, name=called, claim=claim, run=function, limits=limits, needs=needs, gives=gives
        )
        return function

    return declare


def declare_missing(number: int, name: str, claim: str, reason: str) -> None:
    CHECKS[name] = Check(number=number, name=name, claim=claim, missing=reason)


def equal(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise CheckFailedError(f"{what}: got {_short(got)}, wanted {_short(wanted)}")


def holds(claim: str, condition: bool) -> None:
    if not condition:
        raise CheckFailedError(f"not true: {claim}")


@contextmanager
def raises(*kinds: type[Exception], what: str, naming: str = "") -> Generator[None]:
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds as error:
        holds(f"the message names {naming}", naming in str(error))
        return
    except Exception as error:
        raise CheckFailedError(f"{what}: got {type(error).__name__}: {error}; wanted {names}") from error
    raise CheckFailedError(f"{what}: got no error; wanted {names}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} … {text[-60:]} ({len(text)} characters)"
