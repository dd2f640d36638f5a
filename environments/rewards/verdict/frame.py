"""The frame of a verdict: the staged program, its sealed report, and whose fault it is that none came."""

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

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
PROGRAMS = __package__
"""The package of the programs that run in sandboxes, with the standard library alone."""
ISOLATED = ("python3", "-E", "-s", "-S")
"""Nothing that an agent left is imported at the start."""


class Verify(Protocol):
    """`ctx.verify`: runs a command in a fresh sandbox that holds only the named files."""

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
    """What a program of this package wrote between the start and the end of its judging."""

    result: ExecResult
    ready: bool
    """Whether judging began: a failure after it is due to what is judged."""
    end: Any
    """The last line, which only the holder of the nonce can write; `None`: it did not come to its end."""

    @property
    def reason(self) -> str:
        words = self.result.stderr.decode("utf-8", "replace")[-500:].strip()
        return f"exit code {self.result.exit_code}: {words}"


async def run_program(  # one run, all of it by keyword
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

    Args:
        verify: `ctx.verify`.
        command: that starts it.
        request: what it judges by; the nonce is added.
        files: the program's, and what it needs.
        timeout_s: wall clock.
    """
    nonce = secrets.token_hex(16)
    stdin = json.dumps({**request, "nonce": nonce}).encode()
    result = await verify(command=command, files=files, stdin=stdin, timeout_s=timeout_s)
    lines = [line.split(" ", 2) for line in result.text().splitlines()]
    words = {line[1]: line[2] for line in lines if len(line) == 3 and line[0] == nonce}
    return Report(result=result, ready="ready" in words, end=json.loads(words.get("end", "null")))


def command_of(program: str) -> tuple[str, ...]:
    """The argv of a program of this package; not by `-m`, which imports a third of what it does itself."""
    return (*ISOLATED, "-c", f"from {PROGRAMS}.{program} import main; main()")


@cache
def modules(*names: str) -> Mapping[str, bytes]:
    """The texts of modules, and their bytecode: Python would have to compile them in each sandbox."""
    files: dict[str, bytes] = {}
    for path in (f"{name.replace('.', '/')}.py" for name in names):
        text = files[path] = (ROOT / path).read_bytes()
        folder, _, name = path.rpartition("/")
        code = compile(text, path, "exec", dont_inherit=True, optimize=0)
        # PEP 552: the flags say that it is not compared with the source; another Python does not look at it.
        header = MAGIC_NUMBER + (0b01).to_bytes(4, "little") + source_hash(text)
        place = f"{folder}/__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
        files[place] = header + marshal.dumps(code)
    return files


class NoVerdict(Exception):
    """The tests gave none in a fresh machine, for a reason that is not known to be the agent's."""


@contextmanager
def fresh_machine() -> Generator[None]:
    """Context manager: what a fresh machine's own limits count in it is not shown to be the agent's doing.

    Raises:
        NoVerdict: in place of AgentCausedError; another fresh machine and the control decide.
    """
    try:
        yield
    except AgentCausedError as error:
        raise NoVerdict(str(error)) from error


class Control:
    """Whether the tests of one task give a verdict over the clean image. A positive answer is kept."""

    def __init__(self) -> None:
        self._running, self._has_verdict, self._ended = asyncio.Lock(), False, 0

    async def has_verdict(self, run: Callable[[], Awaitable[object]]) -> bool:
        """Run the tests, unless they gave a verdict before; callers that wait meanwhile share the answer."""
        ended = self._ended
        async with self._running:
            if not self._has_verdict and self._ended == ended:
                with suppress(NoVerdict):
                    await run()
                    self._has_verdict = True
                self._ended += 1
            return self._has_verdict


async def decide(run: Callable[[], Awaitable[T]], clean: Callable[[], Awaitable[T]], control: Control) -> T:
    """Return the verdict of `run` in a fresh machine, tried once more where it gives none or breaks.

    `clean` is the same without the agent's files, and `control` is shared by all verdicts of these tests.

    Raises:
        AgentCausedError: no verdict with the agent's files, and one without them.
        SandboxError: no verdict without them either, or two tries met a broken sandbox.
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
