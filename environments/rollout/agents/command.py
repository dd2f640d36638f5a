"""Programs as agents: started for one rollout, on the host or in its sandbox, and ended with it."""

import asyncio
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from environments.rewards.reward_context import AgentEndpoint
from environments.rollout.agents.warm_starts import WarmProgram, WarmStarts
from tools.errors import ConfigError, IsolationError, RolloutError
from tools.json_input import read_json
from tools.sandbox.base import NoSandbox, Sandbox, listener, run_python
from tools.sandbox.host.ownership import end, guard_command, home_variables, own_folder
from tools.sandbox.host.warm_python import first_path

Where = Literal["host", "sandbox"]
PromptAs = Literal["argument", "stdin", "none"]
TrainThreads = Literal["all", "with_tools"]
_KEPT_BYTES = 16_384
_MAX_REPORT_BYTES = 16 * _KEPT_BYTES
_START_S = 30.0
_DRAIN_S = 1.0
"""Wait for buffered output after exit; a child may keep the pipe open."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that is the agent: `agent = Command(["python", "agent.py"])`.

    Its environment has only `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`,
    `TURNWISE_MODEL`, `PATH`, `LANG`, a `HOME`, and the variables of `env`. On the host it runs as our own
    user with its own `HOME`, `TMPDIR` and XDG folders; relative paths start at the working directory, and
    `python` is the interpreter that runs Turnwise. In the sandbox it starts in the workspace, Python is
    `python3`, and the endpoint is the only network.
    """

    argv: Sequence[str]
    _: KW_ONLY
    where: Where = "host"
    read_only: Sequence[str] = ()
    """Folders of the host that the sandbox shows at the same paths, such as a virtual environment."""
    prompt: PromptAs = "argument"
    """Receives the result of `format_prompt` as its last argument, on standard input, or not at all."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    train_threads: TrainThreads = "all"
    """`with_tools`: see `train_threads` of an environment."""
    share_home: bool = False
    """Whether home and XDG folders on the host are the user's, for a program that is logged in there."""
    warm: bool = False
    """Whether a Python program on the host is forked from an interpreter that has made its imports."""

    def __post_init__(self) -> None:
        argv: Any = self.argv
        if isinstance(argv, str) or not argv or not all(isinstance(each, str) for each in argv):
            raise ConfigError(
                f'Command takes a program and its arguments, ["python", "agent.py"], got {argv!r}'
            )
        chosen = (("where", Where), ("prompt", PromptAs), ("train_threads", TrainThreads))
        for name, choices in ((name, get_args(kind)) for name, kind in chosen):
            if getattr(self, name) not in choices:
                possible = ", ".join(map(repr, choices))
                raise ConfigError(f"Command has {name}={getattr(self, name)!r}; choose one of {possible}")
        if isinstance(self.read_only, str):
            raise ConfigError(
                f"Command has read_only={self.read_only!r}; give a tuple, ({self.read_only!r},)"
            )
        if self.read_only and self.where == "host":
            raise ConfigError("Command(read_only=…) lends folders to a sandbox; add where='sandbox'")
        if self.share_home and self.where == "sandbox":
            raise ConfigError("Command(share_home=True) shares a home of the host; add where='host'")
        if self.warm and self.where == "sandbox":
            raise ConfigError("Command(warm=True) shares imports of programs on the host; add where='host'")
        env: Any = self.env
        if not all(isinstance(each, str) for pair in env.items() for each in pair):
            raise ConfigError(f"Command has env={env!r:.200}; names and values are text")

    @property
    def lent(self) -> tuple[str, ...]:
        """`read_only`, and the folders of the interpreters that virtual environments among them link to."""
        settings = [Path(folder, "pyvenv.cfg") for folder in self.read_only]
        homes = [
            Path(line.partition("=")[2].strip()).parent
            for each in settings
            if each.is_file()
            for line in each.read_text().splitlines()
            if line.partition("=")[0].strip() == "home"
        ]
        bases = [str(home) for home in homes if not home.is_relative_to("/usr")]
        return tuple(dict.fromkeys([*self.read_only, *bases]))

    def refuse_missing(self, env: str) -> None:
        if self.where == "host" and shutil.which(self.argv[0], path=host_path()) is None:
            raise ConfigError(f"environment {env!r}: agent: there is no program {self.argv[0]!r} on the PATH")
        if self.warm and not self._is_python():
            raise ConfigError(
                f"environment {env!r}: agent: warm=True takes python SCRIPT, python -m MODULE, python -c "
                f"CODE or a script of Python, without -I, -E and -S; got {shlex.join(self.argv):.200}"
            )

    def _is_python(self) -> bool:
        try:
            first_path(self.argv, {"PATH": host_path()})
        except (ValueError, OSError):
            return False
        return True

    def environment(self, endpoint: AgentEndpoint) -> dict[str, str]:
        return {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "ANTHROPIC_BASE_URL": endpoint.anthropic_base_url,
            "ANTHROPIC_API_KEY": endpoint.api_key,
            "TURNWISE_MODEL": endpoint.model,
            **self.env,
        }

    def with_prompt(self, prompt: str) -> list[str]:
        return [*self.argv, prompt] if self.prompt == "argument" else list(self.argv)

    def warm_starts(self) -> WarmStarts | None:
        if self.where == "sandbox" or not self._is_python():
            return None
        return WarmStarts(self.argv, self.shared_environment, is_wanted=self.warm)

    def shared_environment(self, folder: str) -> dict[str, str]:
        """Return the variables on the host but those of the endpoint."""
        home = home_variables(folder, shares_home=self.share_home)
        lang = {"LANG": os.environ["LANG"]} if "LANG" in os.environ else {}
        return {"PATH": host_path(), **lang, **home, **self.env}

    def player(
        self, prompt: str, sandbox: Sandbox, starts: WarmStarts | None
    ) -> "HostPlayer | SandboxPlayer":
        if self.where == "host":
            return HostPlayer(self, prompt, starts)
        return SandboxPlayer(self, prompt, sandbox)


def host_path() -> str:
    """Return `PATH` for the host; `python` is the current interpreter even in an inactive environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


class HookPlayer:
    output = b""

    def __init__(self, play: Callable[[], Awaitable[Any]]) -> None:
        self._play = play

    async def listener(self) -> socket.socket | None:
        return None

    async def run(self, endpoint: AgentEndpoint) -> int | None:
        await self._play()
        return None


class HostPlayer:
    def __init__(self, command: Command, prompt: str, starts: WarmStarts | None) -> None:
        self._command, self._prompt, self._starts = command, prompt, starts
        self._head, self._tail = bytearray(), bytearray()
        self._pid = 0

    @property
    def output(self) -> bytes:
        return bytes(
            self._head + (b"\n[...]\n" if len(self._tail) > _KEPT_BYTES else b"") + self._tail[-_KEPT_BYTES:]
        )

    async def listener(self) -> socket.socket | None:
        return None

    async def run(self, endpoint: AgentEndpoint) -> int | None:
        async with own_folder() as folder:
            env = {**self._command.shared_environment(folder), **self._command.environment(endpoint)}
            try:
                return await self._run(env, folder)
            finally:
                if self._starts is not None:
                    self._starts.note_modules(folder)

    def note_first_request(self) -> None:
        if self._starts is not None:
            self._starts.note_first_request(self._pid)

    async def _run(self, env: Mapping[str, str], folder: str) -> int:
        # With a pipe of asyncio, a child that holds it open would delay the end.
        with tempfile.TemporaryFile() as stdin:
            stdin.write(self._prompt.encode() if self._command.prompt == "stdin" else b"")
            stdin.seek(0)
            ours, theirs = os.pipe()
            try:
                process = await self._start(env, folder, (stdin.fileno(), theirs, theirs))
            except BaseException:
                os.close(ours)
                raise
            finally:
                os.close(theirs)
        self._pid = process.pid
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0)
        )
        reading = asyncio.create_task(self._read(reader))
        try:
            return await process.wait()
        finally:
            await end(process)
            await asyncio.wait({reading}, timeout=_DRAIN_S)
            reading.cancel()
            transport.close()

    async def _start(
        self, env: Mapping[str, str], folder: str, streams: tuple[int, int, int]
    ) -> asyncio.subprocess.Process | WarmProgram:
        argv = self._command.with_prompt(self._prompt)
        if self._starts is not None:
            arguments = argv[len(self._command.argv) :]
            if warm := await self._starts.start(arguments, env, folder, streams):
                self._head += self._starts.printed
                return warm
        stdin, stdout, stderr = streams
        try:
            return await asyncio.create_subprocess_exec(
                *guard_command(argv, folder), stdin=stdin, stdout=stdout, stderr=stderr, env=env,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ConfigError(f"the agent {argv[0]!r} cannot be started: {error}") from error

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(1 << 16):
            room = max(0, _KEPT_BYTES - len(self._head))
            self._head += data[:room]
            self._tail += data[room:]
            if len(self._tail) > 4 * _KEPT_BYTES:
                del self._tail[: -_KEPT_BYTES - 1]


# Runs in the sandbox as the agent's user, in a fork of its supervisor: starts the agent, returns at once, and
# reports over a socket when it has ended. Without a report the agent was killed.
_RUNNER = r"""
import json, os, socket, subprocess, sys, threading
task = json.load(sys.stdin)
if child := os.fork():
    print(child)
    sys.stdout.flush()
    os._exit(0)
os.setsid()
nowhere = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(nowhere, fd)
report = socket.create_connection(("127.0.0.1", task["port"]))
env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
head, tail, kept = b"", b"", task["kept"]
try:
    agent = subprocess.Popen(task["argv"], env={**env, **task["env"]}, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        agent.stdin.write(task["stdin"].encode())
        agent.stdin.close()
    except BrokenPipeError:
        pass
    def read():
        global head, tail
        while data := agent.stdout.read1(1 << 16):
            room = max(0, kept - len(head))
            head, tail = head + data[:room], (tail + data[room:])[-kept:]
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    code = agent.wait()
    reading.join(1)
    code = 128 - code if code < 0 else code
except OSError as error:
    head, code = str(error).encode(), 127
report.sendall(json.dumps([code, (head + tail).decode("utf-8", "replace")]).encode())
os._exit(0)
"""


class SandboxPlayer:
    def __init__(self, command: Command, prompt: str, sandbox: Sandbox) -> None:
        self._command, self._prompt, self._sandbox = command, prompt, sandbox
        self.output = b""

    async def listener(self) -> socket.socket | None:
        return await listener_of(self._sandbox)

    async def run(self, endpoint: AgentEndpoint) -> int | None:
        """Run the command; when cancelled, end its process group."""
        command = self._command
        with await listener_of(self._sandbox) as listening:
            listening.setblocking(False)
            task = {
                "port": listening.getsockname()[1],
                "argv": command.with_prompt(self._prompt),
                "env": command.environment(endpoint),
                "stdin": self._prompt if command.prompt == "stdin" else "",
                "kept": _KEPT_BYTES,
            }
            started = await run_python(
                self._sandbox, _RUNNER, stdin=json.dumps(task).encode(), timeout_s=_START_S
            )
            if started.exit_code or not started.text().strip().isdigit():
                raise RolloutError(f"the agent cannot be started in its sandbox: {started.stderr[-500:]!r}")
            try:
                async with asyncio.timeout(_START_S):
                    sock, _ = await asyncio.get_running_loop().sock_accept(listening)
                reader, writer = await asyncio.open_connection(sock=sock)
                try:
                    report = await reader.readexactly(_MAX_REPORT_BYTES)
                except asyncio.IncompleteReadError as whole:
                    report = whole.partial
                writer.close()
            except BaseException:
                group = started.text().strip()
                await self._sandbox.exec(["kill", "-KILL", f"-{group}"], timeout_s=_START_S)
                raise
        return self._parse_report(report)

    def _parse_report(self, report: bytes) -> int:
        try:
            code, output = read_json(report)
            self.output = str(output).encode()[: 2 * _KEPT_BYTES]
            return min(max(int(code), 0), 255)
        except (ValueError, TypeError, OverflowError):
            self.output = b"the agent and the process that watches it were killed"
            return 137


async def listener_of(sandbox: Sandbox) -> socket.socket:
    """Return a socket on the loopback of a sandbox whose connections this process accepts."""
    if isinstance(sandbox, NoSandbox):
        raise ConfigError(
            "agent: where='sandbox' needs one, and `sandbox` is 'none'; choose --env.sandbox local"
        )
    if sandbox.record.limits.network != "none":
        raise IsolationError(
            "agent: where='sandbox' promises no network but the endpoint; set --env.sandbox_network none"
        )
    if "network" in sandbox.record.lacks:
        raise IsolationError(
            f"agent: where='sandbox' promises no network but the endpoint, which tier {sandbox.record.tier} "
            f"cannot keep an agent from; use tier B or --env.sandbox docker"
        )
    return await listener(sandbox)
