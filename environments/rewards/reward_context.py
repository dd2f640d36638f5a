"""What a reward may use: the live sandbox, a fresh one for verification, and notes for people."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from environments.policy.second_models import AskedModel, nobody
from environments.rewards.artefacts import TakenFiles
from environments.rewards.judge import Judging
from environments.rewards.verification_time import off_the_clock, seconds_left
from environments.trajectory import Message
from tools.errors import ConfigError, IsolationError, SandboxError
from tools.plain_text import is_utf8
from tools.sandbox import Opening
from tools.sandbox.archive import ArchivedFile
from tools.sandbox.base import MAX_READ_BYTES, ExecResult, Sandbox
from tools.sandbox.layers import place, plain_files, size_on_disk, take
from tools.time_profile import timed

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Reward = float | Mapping[str, float]
"""A number, or named components whose sum is the reward."""

_OF_ROLLOUTS = frozenset({
    "sandbox", "state", "verify", "artefact", "keep", "files", "metrics", "notes", "messages", "turn_scores",
})  # fmt: skip
_SPARE_BYTES = 64 << 10
"""Of the fresh workspace, for itself and for what the command writes; artefacts may fill the rest."""
_KILLED = 137

USER_VOTE = "user_vote"
"""The metric of one turn that holds what a `SimulatedUser` voted in reply to it."""
_REASON_CHARS = 200
"""Of the reason that a rollout was ended for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoint:
    """Where the agent of one rollout calls its model: every turn of it is recorded there."""

    base_url: str
    """Of OpenAI's API, ends in `/v1`."""
    api_key: str = field(repr=False)
    """This rollout's alone."""
    model: str
    """The policy's name; the endpoint takes any."""

    @property
    def anthropic_base_url(self) -> str:
        """Of Anthropic's API, whose clients add `/v1/messages`."""
        return self.base_url.removesuffix("/v1")

    def client(self, **options: Any) -> "AsyncOpenAI":
        """A client of the `openai` package that asks this endpoint; `options` are its own."""
        # It loads slowly, and most rollouts need none.
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # noqa: PLC0415

        # Loading certificates takes 20 ms, and there is no TLS on loopback.
        options.setdefault("http_client", DefaultAsyncHttpxClient(verify=False, trust_env=False))
        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, **options)


@dataclass(slots=True, kw_only=True)
class RolloutContext(Judging):
    """One rollout, as the hooks of its environment see it."""

    env: str
    item_id: str
    item: Any = None
    """This rollout's own copy."""
    seed: int = 0
    """Of this rollout; 31 bits."""
    group_seed: int = 0
    """Equal among siblings: for what all of them start from; 31 bits."""
    state: Any = None
    """What `prepare` gave."""
    sandbox: Sandbox
    """The rollout's own sandbox, still open: same files, same processes; or one that refuses all."""
    fresh_sandbox: Callable[[], AbstractAsyncContextManager[Sandbox]]
    verify_timeout_s: float = 300.0
    """Wall clock of one `verify`."""
    artefacts_bytes: int = 0
    """Of the files that are kept of this rollout."""
    files: TakenFiles = field(init=False, repr=False)
    """The agent's files, kept as they are read, so that a record answers as its rollout did: `read_file`,
    `get_archive` and `paused` as of `sandbox`."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Numbers worth seeing in the record and the summary; they carry no credit."""
    turn_scores: list[Reward | None] = field(default_factory=list["Reward | None"])
    """What `score_turn` gave so far, one entry per finished act."""
    notes: dict[str, object] = field(default_factory=dict[str, object])
    """What one reward call wants to keep for the next one of the same rollout."""
    messages: tuple[Message, ...] = field(default=(), repr=False)
    """The conversation so far, this turn's replies included once there are any."""
    end_reason: str | None = None
    """What `end` was given first."""
    user_model: AskedModel = field(default_factory=nobody, repr=False)
    """Whose words those of a `SimulatedUser` are, and what it was asked so far."""
    summariser_model: AskedModel = field(default_factory=nobody, repr=False)
    """Which condensers ask to sum up, and what it was asked so far."""
    user_replies: dict[int, int] = field(default_factory=dict[int, int], repr=False)
    """How often each `SimulatedUser`, by its id, has replied."""
    agent_endpoint: AgentEndpoint | None = field(default=None, repr=False)
    is_over: bool = False
    """Whether the last turn was scored, so that nothing can be ended any more."""

    def __post_init__(self) -> None:
        self.files = TakenFiles(self.sandbox, self.artefacts_bytes)

    @property
    def endpoint(self) -> AgentEndpoint:
        """Where a recorded agent calls its model.

        Raises:
            ConfigError: the agent of our own loop plays, or the agent has not begun.
        """
        if self.agent_endpoint is None:
            raise ConfigError("ctx.endpoint exists only while a recorded agent runs (`play` or `agent`)")
        return self.agent_endpoint

    def end(self, reason: str) -> None:
        """End the rollout after this turn; of several reasons the first one is kept, of a long one its start.

        Raises:
            ConfigError: there is no turn yet or no more, or the reason is no text.
        """
        if not isinstance(reason, str) or not reason or not is_utf8(reason):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(f"ctx.end takes a reason in a few words, got {reason!r:.100}")
        if self.is_over or not self.messages:
            when = "after the last turn" if self.is_over else "before the first turn"
            raise ConfigError(f"ctx.end({reason!r:.100}) comes {when}; end a rollout while it runs")
        if self.end_reason is None:
            self.end_reason = reason[:_REASON_CHARS]

    async def artefact(
        self,
        path: str,
        make: Callable[[], Awaitable[bytes]] | None = None,
        *,
        max_bytes: int = MAX_READ_BYTES,
    ) -> bytes:
        """Returns a file of the agent's sandbox, which is kept: `credit --rewards` gets it from the record.

        Args:
            path: as of `Sandbox.read_file`; of each turn the last content counts.
            make: gives the content instead, such as a diff, which is kept under this path. It is not called
                again for a record, so it may use the sandbox.
            max_bytes: of a file.

        Raises:
            OSError: as of `Sandbox.read_file`; a record raises it as well.
            ConfigError: the rollout has no sandbox, or its record has no such file.
        """
        if make is not None:
            return await self.files.made(path, make)
        async with self.files.paused():
            return await self.files.read_file(path, max_bytes=max_bytes)

    async def keep(self, *paths: str) -> None:
        """Keeps files and folders of the agent's sandbox for people; one that cannot be read is not there."""
        async with self.files.paused():
            await take(self.files, paths, max_bytes=MAX_READ_BYTES)

    async def verify(  # noqa: PLR0913  # one call of the author's, all of it by keyword
        self,
        *,
        command: str | Sequence[str],
        artefacts: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        build: str | Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> ExecResult:
        """Run `command` in a fresh sandbox of the same kind.

        The agent's processes and its other files are not there, so it cannot have shadowed a module, left a
        `conftest.py` or kept a job that rewrites results. The verifier's files never enter the agent's
        sandbox; in the fresh one nothing can change, remove, rename or replace them. An artefact's own code
        still runs where the command runs it: imported into the process that judges, or run before or beside
        it, it can print and return what it likes. So compile with `build`, and judge from outside.

        Args:
            command: A shell string or an argv, run in the workspace. `VERIFIER` in its environment names a
                folder that holds `files` alone; `HOME` is an empty folder that cannot be written.
            artefacts: Files and folders copied over from the agent's sandbox; one that is missing, too large,
                or neither, is simply not there. A link is followed there, so it can lead only to the agent's
                files. Of a folder every plain file comes, whatever its name, but nothing of a `__pycache__`;
                links in it, FIFOs and devices do not. Name the smallest folder that will do, `src` rather
                than `.`.
            files: The verifier's own files, by their paths in the workspace; they win over artefacts,
                whatever stands in their way.
            stdin: Given to the command.
            timeout_s: Wall clock of the command, and once more of `build`.
            build: A command that runs before, in a sandbox of its own, with the artefacts and without
                `files`. Its success does not matter: `command` runs all the same, with what came out.
            outputs: What comes from there instead of the artefacts, and is named like them; without it, the
                artefacts as they are after the build.

        Raises:
            ConfigError: artefacts of a rollout that has no sandbox.
            SandboxError: a sandbox is broken. The agent cannot cause it to escape a bad result.
            IsolationError: the sandbox's backend cannot keep files from change.
        """
        own = {
            place(path, self.files.workdir): data.encode() if isinstance(data, str) else data
            for path, data in (files or {}).items()
        }
        if artefacts and not self.files.has_sandbox:
            raise ConfigError(
                "ctx.verify(artefacts=…) copies files out of the rollout's sandbox, and `sandbox` is 'none'; "
                "give what the agent wrote in `files`, or choose --env.sandbox local"
            )
        limit_s = seconds_left(self.verify_timeout_s)

        async def verified() -> ExecResult:
            source, paths = self.files, artefacts
            async with AsyncExitStack() as building:
                if build is not None:
                    taken = plain_files(await _taken(self.files, artefacts, {}), by_agent=True)
                    fresh = self._fresh_opening().beginning_with(taken)
                    source = await building.enter_async_context(fresh)
                    await source.exec(build, timeout_s=timeout_s)
                    paths = artefacts if outputs is None else outputs
                brought = plain_files(await _taken(source, paths, own), by_agent=True)
            async with self._fresh_opening().for_verifier(own).beginning_with(brought) as verifier:
                return await verifier.exec(command, stdin=stdin, timeout_s=timeout_s)

        with timed("ctx.verify"), off_the_clock():
            return await _within(limit_s, verified())

    def _fresh_opening(self) -> Opening:
        opening = self.fresh_sandbox()
        if isinstance(opening, Opening):
            return opening
        raise IsolationError(
            f"fresh_sandbox gave a {type(opening).__name__}, which cannot keep the verifier's files from "
            "change; give what open_sandbox returns"
        )


@dataclass(slots=True, kw_only=True)
class GroupContext(Judging):
    """A group whose rollouts are over, as `score_group` sees it: no sandbox is open any more."""

    env: str
    item_id: str
    item: Any = None
    group_seed: int = 0
    """31 bits; equal to that of the rollouts' contexts."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise ConfigError for what only a rollout that goes on has; `AttributeError` for anything else."""
        if name in _OF_ROLLOUTS:
            raise ConfigError(
                f"score_group has no ctx.{name}: the rollouts are over, and their sandboxes are closed; note "
                f"what it needs in ctx.metrics while they go on, and read it in trajectory.metrics"
            )
        raise AttributeError(f"a GroupContext has no attribute {name!r}")


async def _within(limit_s: float, verified: Coroutine[Any, Any, ExecResult]) -> ExecResult:
    """What it gives, or a result that is timed out: whatever held it up, nothing was proved."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await verified
    except TimeoutError:
        pass
    except SandboxError:  # of a sandbox that was closed while it was in use
        if not limit.expired():
            raise
    return ExecResult(
        exit_code=_KILLED, stdout=b"", stderr=b"", stdout_total=0, stderr_total=0, timed_out=True,
        duration_s=limit_s,
    )  # fmt: skip


async def _taken(
    sandbox: Sandbox | TakenFiles, paths: Sequence[str], own: Mapping[str, bytes]
) -> dict[str, ArchivedFile]:
    """What of these paths fits into a sandbox of the same kind, beside the verifier's own files."""
    if not paths:
        return {}
    files = {path: ArchivedFile(data=data) for path, data in own.items()}
    room = (sandbox.record.limits.disk_mb << 20) - size_on_disk(files) - _SPARE_BYTES
    return await take(sandbox, paths, max_bytes=max(0, room), beside=own)
