"""Agents that are programs: started for one rollout, on the host or in its sandbox, and ended with it."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from environments.reward_context import AgentEndpoint
from tools.errors import ConfigError, IsolationError, RolloutError
from tools.sandbox.base import Sandbox, listener, run_python

Where = Literal["host", "sandbox"]
PromptAs = Literal["argument", "stdin", "none"]
_KEPT_BYTES = 16_384
"""Of a program's output, from its start and from its end."""
_START_S = 30.0
_LAST_WORDS_S = 1.0
"""For output that is on its way when a program has ended; a child of it may hold the pipe for ever."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that is the agent: `agent = Command(["python", "agent.py"])`.

    It gets `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`, `TURNWISE_MODEL`,
    `PATH`, `HOME`, `LANG`, what `env` names, and nothing else. On the host it has the rights of our own user;
    relative paths start at the working directory, and `python` is the interpreter that runs Turnwise. In the
    sandbox it starts in the workspace, and reaches no network but the endpoint.
    """

    argv: Sequence[str]
    _: KW_ONLY
    where: Where = "host"
    read_only: Sequence[str] = ()
    """Folders of the host that the sandbox shows at the same paths, such as a virtual environment."""
    prompt: PromptAs = "argument"
    """How it gets what `format_prompt` gives: as its last argument, on standard input, or not at all."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """More variables of its environment."""

    def __post_init__(self) -> None:
        """Raises ConfigError where nothing could be started like this."""
        argv: Any = self.argv
        if isinstance(argv, str) or not argv or not all(isinstance(each, str) for each in argv):
            raise ConfigError(
                f'Command takes a program and its arguments, ["python", "agent.py"], got {argv!r}'
            )
        for name, choices in (("where", get_args(Where)), ("prompt", get_args(PromptAs))):
            if getattr(self, name) not in choices:
                possible = ", ".join(map(repr, choices))
                raise ConfigError(f"Command has {name}={getattr(self, name)!r}; choose one of {possible}")
        if self.read_only and self.where == "host":
            raise ConfigError("Command(read_only=…) lends folders to a sandbox; add where='sandbox'")

    def environment(self, endpoint: AgentEndpoint) -> dict[str, str]:
        """The variables that name the endpoint, and those of `env`."""
        return {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "ANTHROPIC_BASE_URL": endpoint.anthropic_base_url,
            "ANTHROPIC_API_KEY": endpoint.api_key,
            "TURNWISE_MODEL": endpoint.model,
            **self.env,
        }

    def with_prompt(self, prompt: str) -> list[str]:
        """Program and arguments."""
        return [*self.argv, prompt] if self.prompt == "argument" else list(self.argv)


class HookPlayer:
    """The hook `play`, on the event loop or on a thread of its own."""

    output = b""

    def __init__(self, play: Callable[[], Awaitable[Any]]) -> None:
        self._play = play

    async def listener(self) -> socket.socket | None:
        """It reaches our loopback."""
        return None

    async def run(self, endpoint: AgentEndpoint) -> int | None:
        """Call it; it has `ctx.endpoint`."""
        await self._play()
        return None


class HostPlayer:
    """A command on the host, in a process group of its own."""

    def __init__(self, command: Command, prompt: str) -> None:
        self._command, self._prompt = command, prompt
        self._head, self._tail = bytearray(), bytearray()

    @property
    def output(self) -> bytes:
        """The start and the end of what it wrote."""
        return bytes(
            self._head + (b"\n[...]\n" if len(self._tail) > _KEPT_BYTES else b"") + self._tail[-_KEPT_BYTES:]
        )

    async def listener(self) -> socket.socket | None:
        """It reaches our loopback."""
        return None

    async def run(self, endpoint: AgentEndpoint) -> int | None:
        """Start it and wait for its end; cancelled, end its process group.

        Raises:
            ConfigError: it cannot be started.
        """
        command, pipe = self._command, asyncio.subprocess.PIPE
        argv = command.with_prompt(self._prompt)
        stdin = pipe if command.prompt == "stdin" else asyncio.subprocess.DEVNULL
        # `python` is the one that runs here, also where its environment is not activated.
        own = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        inherited = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        env = {"PATH": own, **inherited, **command.environment(endpoint)}
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"the agent {command.argv[0]!r} cannot be started: {error}") from error
        reading = asyncio.create_task(self._read(cast("asyncio.StreamReader", process.stdout)))
        try:
            if process.stdin is not None:
                process.stdin.write(self._prompt.encode())
                process.stdin.close()
            return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.wait({reading}, timeout=_LAST_WORDS_S)
            reading.cancel()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(1 << 16):
            room = max(0, _KEPT_BYTES - len(self._head))
            self._head += data[:room]
            self._tail += data[room:]
            if len(self._tail) > 4 * _KEPT_BYTES:
                del self._tail[: -_KEPT_BYTES - 1]


# Runs in the sandbox as the agent's user, in a fork of its supervisor: starts the agent, returns at once, and
# reports over a socket of its own when it has ended. A report that never comes is an agent that was killed.
_RUNNER = r"""
import json, os, socket, subprocess, sys
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
env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
head, tail, kept = b"", b"", task["kept"]
try:
    agent = subprocess.Popen(task["argv"], env={**env, **task["env"]}, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        agent.stdin.write(task["stdin"].encode())
        agent.stdin.close()
    except BrokenPipeError:
        pass
    while data := agent.stdout.read1(1 << 16):
        room = max(0, kept - len(head))
        head, tail = head + data[:room], (tail + data[room:])[-kept:]
    code = agent.wait()
    code = 128 - code if code < 0 else code
except OSError as error:
    head, code = str(error).encode(), 127
report.sendall(json.dumps([code, (head + tail).decode("utf-8", "replace")]).encode())
os._exit(0)
"""


class SandboxPlayer:
    """A command in the rollout's sandbox, which reaches the endpoint on a loopback of its own."""

    def __init__(self, command: Command, prompt: str, sandbox: Sandbox) -> None:
        self._command, self._prompt, self._sandbox = command, prompt, sandbox
        self.output = b""

    async def listener(self) -> socket.socket | None:
        """A socket that listens in the sandbox.

        Raises:
            IsolationError: its network is not its own.
        """
        return await listener_of(self._sandbox)

    async def run(self, endpoint: AgentEndpoint) -> int | None:
        """Start it and wait for its end; cancelled, end its process group.

        Raises:
            RolloutError: it does not start.
            SandboxError: the sandbox is broken.
        """
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
                reader, writer = await asyncio.open_connection(sock=sock, limit=8 * _KEPT_BYTES)
                report = await reader.read()
                writer.close()
            except BaseException:
                group = started.text().strip()
                await self._sandbox.exec(["kill", "-KILL", f"-{group}"], timeout_s=_START_S)
                raise
        return self._reported(report)

    def _reported(self, report: bytes) -> int:
        try:
            code, output = json.loads(report)
            self.output = str(output).encode()[: 2 * _KEPT_BYTES]
            return int(code)
        except (ValueError, TypeError):
            self.output = b"the agent was killed, and what watched it"
            return 137


async def listener_of(sandbox: Sandbox) -> socket.socket:
    """A socket that listens on the loopback of a sandbox, and is accepted here.

    Raises:
        IsolationError: the sandbox does not keep an agent off the network, or nothing can listen there.
    """
    if "network" in sandbox.record.lacks:
        tier, network = sandbox.record.tier, sandbox.record.limits.network
        raise IsolationError(
            f"agent: where='sandbox' promises no network but the endpoint, and this sandbox (tier {tier}, "
            f"network {network!r}) does not; tier B and Docker do, with --env.sandbox_network none"
        )
    return await listener(sandbox)
