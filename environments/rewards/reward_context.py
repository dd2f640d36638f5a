"""The contexts of hooks: the agent's files, verification in a fresh sandbox, metrics and notes."""

import asyncio
import errno
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from environments.policy.second_models import SecondModel, no_model
from environments.policy.text_scorer import TextScorer
from environments.rewards.judge import Judging
from environments.rewards.verification_time import off_the_clock, seconds_left
from environments.trajectory import Artefact, Message, ScoringModel, TextScore, Trajectory, parse_messages
from tools.errors import ConfigError, IsolationError, SandboxError
from tools.plain_text import is_utf8, utf8_text
from tools.sandbox import Opening
from tools.sandbox.archive import ArchivedFile, pack, unpack
from tools.sandbox.base import MAX_READ_BYTES, ExecResult, NoSandbox, Sandbox, SandboxRecord
from tools.sandbox.host.layout import WORKDIR
from tools.sandbox.layers import place, plain_files, size_on_disk, take
from tools.time_profile import measure

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Reward = float | Mapping[str, float]
"""A number, or named components that add up to the reward."""

_ROLLOUT_ONLY = frozenset({
    "sandbox", "state", "verify", "artefact", "keep", "files", "metrics", "notes", "messages", "turn_scores",
})  # fmt: skip
MAX_VERIFIED_BYTES = 2 << 20
_SPARE_BYTES = 64 << 10
_KILLED = 137

USER_VOTE = "user_vote"
"""The metric of a turn with the vote of a `SimulatedUser` on it."""
_REASON_CHARS = 200


class AgentFiles:
    """The agent's files; each content that is read is kept, the last one per path and turn."""

    def __init__(self, sandbox: Sandbox, max_bytes: int) -> None:
        self._sandbox, self._is_kept, self._left = sandbox, max_bytes > 0, max_bytes
        self._artefacts: dict[tuple[int | None, str, bool], Artefact] = {}
        self.has_sandbox = not isinstance(sandbox, NoSandbox)
        self.turn: int | None = 0
        self.contents: dict[str, bytes] = {}

    @property
    def workdir(self) -> str:
        return WORKDIR if isinstance(self._sandbox, NoSandbox) else self._sandbox.workdir

    @property
    def record(self) -> SandboxRecord:
        return self._sandbox.record

    def paused(self) -> AbstractAsyncContextManager[None]:
        return self._sandbox.paused()

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        with self._record_errors(Artefact(path=path), max_bytes):
            data = await self._sandbox.read_file(path, max_bytes=max_bytes)
        self._keep(Artefact(path=path), data)
        return data

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        folder = Artefact(path=path, is_folder=True)
        with self._record_errors(folder, max_bytes):
            archive = await self._sandbox.get_archive(path, max_bytes=max_bytes)
            archive = await asyncio.to_thread(_drop_bytecode, archive)
        self._keep(folder, bytes(archive))
        return archive

    async def make(self, path: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        data = await make()
        self._keep(Artefact(path=path), data)
        return data

    def add_to(self, trajectory: Trajectory, scored: Sequence[int]) -> Trajectory:
        ranks = sorted(scored)
        turns: dict[int | None, int] = {at: ranks.index(index) for at, index in enumerate(scored)}
        artefacts = (
            replace(each, turn=turns.get(turn, turn)) for (turn, _, _), each in self._artefacts.items()
        )
        return replace(trajectory, artefacts=tuple(artefacts), contents=self.contents)

    def _keep(self, artefact: Artefact, data: bytes) -> None:
        if not self._is_kept:
            return
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.contents and len(data) <= self._left:
            self._left -= len(data)
            self.contents[digest] = data
        self._record(replace(artefact, digest=digest if digest in self.contents else None, size=len(data)))

    def _record(self, artefact: Artefact) -> None:
        if self._is_kept:
            path = utf8_text(artefact.path)
            self._artefacts[self.turn, path, artefact.is_folder] = replace(
                artefact, path=path, turn=self.turn
            )

    @contextmanager
    def _record_errors(self, artefact: Artefact, max_bytes: int) -> Generator[None]:
        try:
            yield
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "EIO")
            self._record(replace(artefact, error=code, size=max_bytes if code == "EFBIG" else 0))
            raise


def _drop_bytecode(archive: bytes) -> bytes:
    files = unpack(archive)
    kept = {path: file for path, file in files.items() if "__pycache__" not in path.split("/")}
    return archive if len(kept) == len(files) else pack(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoint:
    """The address where the agent of one rollout calls its model; each call is recorded as a turn."""

    base_url: str
    """OpenAI's API; ends in `/v1`."""
    api_key: str = field(repr=False)
    """Valid for this rollout only."""
    model: str
    """The policy's name; the endpoint accepts any."""

    @property
    def anthropic_base_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    def client(self, **options: Any) -> "AsyncOpenAI":
        # The package loads slowly, and most rollouts need no client.
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # noqa: PLC0415

        # Loading certificates takes 20 ms, and there is no TLS on loopback.
        options.setdefault("http_client", DefaultAsyncHttpxClient(verify=False, trust_env=False))
        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, **options)


@dataclass(slots=True, kw_only=True)
class RolloutContext(Judging):
    """One rollout as its hooks see it."""

    env: str
    item_id: str
    item: Any = None
    """A copy for this rollout alone."""
    seed: int = 0
    """Differs between siblings; 31 bits."""
    group_seed: int = 0
    """Equal among siblings, to draw their common start from; 31 bits."""
    state: Any = None
    """The value that `prepare` returned."""
    sandbox: Sandbox
    """The open sandbox; without one, an object that refuses every call."""
    fresh_sandbox: Callable[[], AbstractAsyncContextManager[Sandbox]]
    verify_timeout_s: float = 300.0
    artefacts_bytes: int = 0
    files: AgentFiles = field(init=False, repr=False)
    """The agent's files: `read_file`, `get_archive` and `paused` of `sandbox`, with the contents kept to
    score the record again."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Numbers for the record and the summary, without credit."""
    turn_scores: list[Reward | None] = field(default_factory=list["Reward | None"])
    """Results of `score_turn`, one per finished act."""
    notes: dict[str, object] = field(default_factory=dict[str, object])
    """Values for later hooks of the same rollout."""
    text_scorer: TextScorer = field(default_factory=TextScorer, repr=False)
    messages: tuple[Message, ...] = field(default=(), repr=False)
    """The conversation so far, with the replies to this turn."""
    end_reason: str | None = None
    """The first reason given to `end`."""
    user_model: SecondModel = field(default_factory=no_model, repr=False)
    summariser_model: SecondModel = field(default_factory=no_model, repr=False)
    user_replies: dict[int, int] = field(default_factory=dict[int, int], repr=False)
    """Number of replies by the id of each `SimulatedUser`."""
    agent_endpoint: AgentEndpoint | None = field(default=None, repr=False)
    is_over: bool = False
    """Whether the last turn was scored, after which `end` fails."""

    def __post_init__(self) -> None:
        self.files = AgentFiles(self.sandbox, self.artefacts_bytes)

    @property
    def endpoint(self) -> AgentEndpoint:
        """The address where a recorded agent calls its model. Raises: ConfigError: if none runs."""
        if self.agent_endpoint is None:
            raise ConfigError("ctx.endpoint exists only while a recorded agent runs (`play` or `agent`)")
        return self.agent_endpoint

    def end(self, reason: str) -> None:
        """End the rollout after this turn; only the first reason counts, cut to 200 characters.

        Raises:
            ConfigError: if no turn is running, or the reason is not text.
        """
        if not isinstance(reason, str) or not reason or not is_utf8(reason):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(f"ctx.end takes a reason in a few words, got {reason!r:.100}")
        if self.is_over or not self.messages:
            when = "after the last turn" if self.is_over else "before the first turn"
            raise ConfigError(f"ctx.end({reason!r:.100}) comes {when}; end a rollout while it runs")
        if self.end_reason is None:
            self.end_reason = reason[:_REASON_CHARS]

    async def policy_logprob(
        self, text: str, context: str | Sequence[Any] | None = None, *, by: ScoringModel = "policy"
    ) -> TextScore:
        """Return the log-probabilities that the policy gives to `text` as the next assistant message.

        The policy's renderer writes the context with the rollout's tools, as a prompt of its own, and ends it
        where the policy begins to sample. The text's tokens follow: the text is tokenised on its own, and
        neither the chat format's tokens nor the end of the turn count. `total` is the sum in nats, at
        temperature 1; `logprobs` has each token, `tokens` their number, `weight_version` the weights.

        Args:
            text: What the policy might say, such as the right answer.
            context: The conversation before it, as text or messages; by default this rollout's so far, with
                the replies to this turn, whole. Append a message to ask for an answer:
                `[*ctx.messages, {"role": "user", "content": "The answer?"}]`.
            by: Whose they are: `reference` is the model of `--reference.base_url`.

        Raises:
            ConfigError: if the policy cannot score text, or the text is empty.
            ContextOverflow: if context and text exceed the model's window.
            PolicyError: if the model server failed after all retries; never a number.
        """
        if not isinstance(text, str) or not text or not is_utf8(text):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(f"ctx.policy_logprob takes a text, got {text!r:.100}")
        messages = self.messages if context is None else parse_messages(context, "ctx.policy_logprob")
        return await self.text_scorer.score(messages, text, by)

    async def artefact(
        self,
        path: str,
        make: Callable[[], Awaitable[bytes]] | None = None,
        *,
        max_bytes: int = MAX_READ_BYTES,
    ) -> bytes:
        """Return a file of the agent's sandbox, and keep it for `credit --rewards`.

        Args:
            path: The file, as in `Sandbox.read_file`; the last content of each turn is kept.
            make: Makes another content for this path, such as a diff. It may use the sandbox, since it is not
                called for a record.
            max_bytes: Size limit of the file.

        Raises:
            OSError: if `Sandbox.read_file` raised it, also for a record.
            ConfigError: if the rollout has no sandbox, or its record has no such file.
        """
        if make is not None:
            return await self.files.make(path, make)
        async with self.files.paused():
            return await self.files.read_file(path, max_bytes=max_bytes)

    async def keep(self, *paths: str) -> None:
        """Keep files and folders of the agent's sandbox for people to look at."""
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

        The agent's processes and other files are absent: it cannot have shadowed a module, left a
        `conftest.py` or kept a job that rewrites results. The verifier's files never enter the agent's
        sandbox, and cannot be changed in the fresh one. Code in an artefact still runs if the command runs
        it, and can then print and return anything. So compile with `build`, and judge from outside.

        Args:
            command: A shell string or an argv, run in the workspace. The variable `VERIFIER` names a folder
                that holds `files` alone; `HOME` is an empty, read-only folder.
            artefacts: Files and folders copied from the agent's sandbox; missing and too large ones are
                skipped, links followed. Folders bring plain files outside of `__pycache__`. Name the
                smallest folder that will do, `src` rather than `.`.
            files: The verifier's files, by their paths in the workspace; they replace artefacts.
            stdin: Standard input of the command.
            timeout_s: Wall clock of the command, and separately of `build`.
            build: A command that runs first in another sandbox, with the artefacts and without `files`. Even
                if it fails, `command` runs with its output.
            outputs: Files and folders copied from the build's sandbox; by default the artefacts.

        Raises:
            ConfigError: if artefacts are named and the rollout has no sandbox.
            SandboxError: if a sandbox breaks, which the agent cannot use to escape a bad result.
            IsolationError: if the backend cannot keep files from change.
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

        async def run() -> ExecResult:
            source, paths = self.files, artefacts
            async with AsyncExitStack() as building:
                if build is not None:
                    taken = plain_files(await _take_fitting(self.files, artefacts, {}), by_agent=True)
                    fresh = self._fresh_opening().beginning_with(taken)
                    source = await building.enter_async_context(fresh)
                    await source.exec(build, timeout_s=timeout_s)
                    paths = artefacts if outputs is None else outputs
                brought = plain_files(await _take_fitting(source, paths, own), by_agent=True)
            async with self._fresh_opening().for_verifier(own).beginning_with(brought) as verifier:
                return await verifier.exec(
                    command, stdin=stdin, timeout_s=timeout_s, max_output_bytes=MAX_VERIFIED_BYTES
                )

        with measure("ctx.verify"), off_the_clock():
            return await _run_within(limit_s, run())

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
    """A finished group in `score_group`; its sandboxes are closed."""

    env: str
    item_id: str
    item: Any = None
    group_seed: int = 0

    def __getattr__(self, name: str) -> NoReturn:
        if name in _ROLLOUT_ONLY:
            raise ConfigError(
                f"score_group has no ctx.{name}: the rollouts are over, and their sandboxes are closed; note "
                f"what it needs in ctx.metrics while they go on, and read it in trajectory.metrics"
            )
        raise AttributeError(f"a GroupContext has no attribute {name!r}")


async def _run_within(limit_s: float, run: Coroutine[Any, Any, ExecResult]) -> ExecResult:
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await run
    except TimeoutError:
        pass
    except SandboxError:  # closed by the limit while it was in use
        if not limit.expired():
            raise
    return ExecResult(
        exit_code=_KILLED, stdout=b"", stderr=b"", stdout_total=0, stderr_total=0, timed_out=True,
        duration_s=limit_s,
    )  # fmt: skip


async def _take_fitting(
    sandbox: Sandbox | AgentFiles, paths: Sequence[str], own: Mapping[str, bytes]
) -> dict[str, ArchivedFile]:
    if not paths:
        return {}
    files = {path: ArchivedFile(data=data) for path, data in own.items()}
    room = (sandbox.record.limits.disk_mb << 20) - size_on_disk(files) - _SPARE_BYTES
    return await take(sandbox, paths, max_bytes=max(0, room), beside=own)
