"""The frame of a verdict: a staged program, its sealed report, and the cause of a missing verdict."""

import asyncio
import json
import marshal
import secrets
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tools.errors import AgentCausedError, SandboxError
from tools.sandbox.base import ExecResult
from tools.sandbox.inside.warm import COMMAND, IMPORTS

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
PROGRAMS = __package__
_PACKAGES = (
    "environments", "environments.rewards", PROGRAMS, "tools", "tools.sandbox", "tools.sandbox.host",
    "tools.sandbox.inside",
)  # fmt: skip


class Verify(Protocol):
    """`ctx.verify`."""

    async def __call__(
        self,
        *,
        command: str | Sequence[str],
        artefacts: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
    ) -> ExecResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    result: ExecResult
    ready: bool
    """Whether judging began, so that the judged code causes later failures."""
    end: Any

    @property
    def reason(self) -> str:
        words = self.result.stderr.decode("utf-8", "replace")[-500:].strip()
        return f"exit code {self.result.exit_code}: {words}"


async def run_program(
    verify: Verify,
    command: Sequence[str],
    request: Mapping[str, Any],
    files: Mapping[str, bytes | str],
    *,
    timeout_s: float,
) -> Report:
    """Run a program of this package in a fresh sandbox, and read its report.

    It prints `NONCE ready`, and `NONCE end` with a line of JSON. The nonce is in the request on standard
    input, which code under test cannot read.
    """
    nonce = secrets.token_hex(16)
    stdin = json.dumps({**request, "nonce": nonce}).encode()
    result = await verify(command=command, files=files, stdin=stdin, timeout_s=timeout_s)
    lines = [line.split(" ", 2) for line in result.text().splitlines()]
    words = {line[1]: line[2] for line in lines if len(line) == 3 and line[0] == nonce}
    return Report(result=result, ready="ready" in words, end=json.loads(words.get("end", "null")))


def program(module: str, call: str) -> tuple[str, ...]:
    """Return the command that runs `call` of a verdict module; a warm interpreter takes it if one waits."""
    # Packages are not searched for, which costs as much as their modules.
    return (
        *COMMAND,
        f"""{IMPORTS}
import os, sys, types
for name in {_PACKAGES}:
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [f"{{os.environ['VERIFIER']}}/{{name.replace('.', '/')}}"]
import {PROGRAMS}.{module} as program
program.{call}
""",
    )


@cache
def modules(*names: str) -> Mapping[str, bytes]:
    files: dict[str, bytes] = {}
    for path in (f"{name.replace('.', '/')}.py" for name in names):
        text = files[path] = (ROOT / path).read_bytes()
        folder, _, name = path.rpartition("/")
        code = compile(text, path, "exec", dont_inherit=True, optimize=0)
        # PEP 552: these flags disable the comparison with the source; another Python ignores the file.
        header = MAGIC_NUMBER + (0b01).to_bytes(4, "little") + source_hash(text)
        place = f"{folder}/__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
        files[place] = header + marshal.dumps(code)
    return files


class NoVerdict(Exception):
    """The tests gave no verdict in a fresh machine, and the agent is not known to be the cause."""


@contextmanager
def fresh_machine() -> Generator[None]:
    """Turn an AgentCausedError into NoVerdict: a fresh machine's limit does not prove the agent's fault."""
    try:
        yield
    except AgentCausedError as error:
        raise NoVerdict(str(error)) from error


class Control:
    """Whether the tests of one task give a verdict over the clean image."""

    def __init__(self) -> None:
        self._running, self._has_verdict, self._runs = asyncio.Lock(), False, 0

    async def has_verdict(self, run: Callable[[], Awaitable[object]]) -> bool:
        runs = self._runs
        async with self._running:
            if not self._has_verdict and self._runs == runs:
                with suppress(NoVerdict):
                    await run()
                    self._has_verdict = True
                self._runs += 1
            return self._has_verdict


async def decide(run: Callable[[], Awaitable[T]], clean: Callable[[], Awaitable[T]], control: Control) -> T:
    """Return the verdict of `run` in a fresh machine, retried once if it gives none or breaks.

    `clean` is the same without the agent's files, and `control` is shared by all verdicts of these tests.

    Raises:
        AgentCausedError: if there is a verdict without the agent's files only.
        SandboxError: if there is no verdict without them either, or two sandboxes broke.
    """
    missing = broken = 0
    while missing < 2:
        try:
            return await run()
        except NoVerdict:
            missing += 1
        except SandboxError:
            broken += 1
            if broken == 2:
                raise
    reason = "the tests give no verdict with the agent's files"
    try:
        has_verdict = await control.has_verdict(clean)
    except AgentCausedError as error:  # in a machine without an agent
        raise SandboxError(f"{reason}, and the control broke: {error}") from error
    if not has_verdict:
        raise SandboxError(f"{reason}, nor over the clean image")
    raise AgentCausedError(f"{reason}, and one over the clean image", cause="no_verdict")
