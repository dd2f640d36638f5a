"""What a reward may use: the live sandbox, a fresh one for verification, and notes for people."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from tools.sandbox.archive import ArchivedFile
from tools.sandbox.base import ExecResult, Sandbox
from tools.sandbox.host import transfer

Reward = float | Mapping[str, float]
"""A number, or named components whose sum is the reward."""

_READ_ONLY = 0o444
_SPARE_BYTES = 64 << 10
"""Of the fresh workspace, for itself and for what the command writes; artefacts may fill the rest."""


@dataclass(slots=True, kw_only=True)
class RolloutContext:
    """Handed to `score_turn`, `compute_turn_rewards`, `compute_outcome` and `compute_reward`."""

    env: str
    item_id: str
    sandbox: Sandbox
    """The rollout's own sandbox, still open: same files, same processes."""
    fresh_sandbox: Callable[[], AbstractAsyncContextManager[Sandbox]]
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Numbers worth seeing in the record and the summary; they carry no credit."""
    turn_scores: list[Reward | None] = field(default_factory=list["Reward | None"])
    """What `score_turn` gave so far, one entry per finished turn."""
    notes: dict[str, object] = field(default_factory=dict[str, object])
    """What one reward call wants to keep for the next one of the same rollout."""

    async def verify(
        self,
        *,
        command: str | Sequence[str],
        artefacts: Sequence[str] = (),
        files: Mapping[str, bytes | str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
    ) -> ExecResult:
        """Run `command` in a fresh sandbox of the same kind.

        The agent's processes and its other files are not there, so it cannot have shadowed a module, left a
        `conftest.py` or kept a job that rewrites results. The verifier's files never enter the agent's
        sandbox; in the fresh one they are read-only. An artefact's own code still runs where the command runs
        it: a command that imports it into the process that judges gives it that process.

        Args:
            command: A shell string or an argv.
            artefacts: Files and folders copied over from the agent's sandbox; one that is missing, too large,
                or neither, is simply not there. A link is followed there, so it can lead only to the agent's
                files. Of a folder every plain file comes, whatever its name: links in it, FIFOs and devices
                do not. Name the smallest folder that will do, `src` rather than `.`.
            files: The verifier's own files; they win over artefacts, whatever stands in their way.
            stdin: Given to the command.
            timeout_s: Wall clock of the command.

        Raises:
            SandboxError: a sandbox is broken. The agent cannot cause it to escape a bad result.
        """
        workdir = self.sandbox.workdir
        own = {
            transfer.place(path, workdir): ArchivedFile(
                data=data.encode() if isinstance(data, str) else data, mode=_READ_ONLY
            )
            for path, data in (files or {}).items()
        }
        room = (self.sandbox.record.limits.disk_mb << 20) - transfer.size_on_disk(own) - _SPARE_BYTES
        brought = await transfer.take(self.sandbox, artefacts, max_bytes=max(0, room), beside=own)
        async with self.fresh_sandbox() as verifier:
            # First, while nothing of the agent's can be in their way or take their room.
            await transfer.put(verifier, own)
            await transfer.offer(verifier, brought)
            return await verifier.exec(command, stdin=stdin, timeout_s=timeout_s)
