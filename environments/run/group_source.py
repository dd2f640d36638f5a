"""Where groups come from: an environment that is open in this process, or another that answers the same."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from environments.base_env import AgentEnv
from environments.containment.user_code import Watch
from environments.data.tasks import GroupTask
from environments.record.recorder import GroupLine, serialised
from environments.run.group_note import GroupNote, note_of
from environments.trajectory import CreditedGroup, TrajectoryGroup
from tools.waiting import to_the_end

Result = TypeVar("Result", covariant=True)


class GroupSource(Protocol[Result]):
    """Rolls out what it is asked for, many groups side by side; who asks plans, records and shows."""

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        """Return the first rollout of a task, which goes alone."""
        ...

    async def run(self, task: GroupTask) -> Result:
        """Return a group that ended; `task.rolled_out` is part of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group that ended, serialised where it did: all that who asked for it needs."""

    line: GroupLine
    note: GroupNote


def finished(credited: CreditedGroup, *, fingerprint: str | None, is_charted: bool = False) -> FinishedGroup:
    """Return a group as its line of the record and a note; it needs no file, and may run on any thread."""
    line = serialised(credited, fingerprint=fingerprint)
    return FinishedGroup(line=line, note=note_of(line.credited, is_charted=is_charted))


async def aged(env: AgentEnv, done: FinishedGroup) -> FinishedGroup:
    """Return the group without credit where its weights are too old by now, see `AgentEnv.aged`."""
    credited = env.aged(done.line.credited)
    if credited is done.line.credited:
        return done
    serialise = partial(finished, fingerprint=None, is_charted=done.note.shown is not None)
    return await asyncio.to_thread(serialise, credited)


class OwnGroups:
    """The groups of an environment that is open in this process."""

    def __init__(self, env: AgentEnv, watch: Watch) -> None:
        """Roll out with an open environment; `watch` is entered for each rollout."""
        self._env, self._watch = env, watch

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        """Return the first rollout of a task."""
        return await self._env.rollout_group(task, 1, watch=self._watch)

    async def run(self, task: GroupTask) -> CreditedGroup:
        """Return a group with its credit."""
        return await self._env.run_group(task, watch=self._watch)


class FinishedGroups:
    """The groups of another source, serialised off the event loop."""

    def __init__(
        self, source: GroupSource[CreditedGroup], *, fingerprint: str | None, is_charted: bool = False
    ) -> None:
        """Serialise for a record; with what charts show beside numbers where `is_charted`."""
        self._source, self._fingerprint, self._is_charted = source, fingerprint, is_charted

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        """Return the first rollout of a task."""
        return await self._source.first(task)

    async def run(self, task: GroupTask) -> FinishedGroup:
        """Return a group, its line and its note.

        A group that has ended is returned even to a caller that is cancelled meanwhile, whose part it then is
        to end once the group is recorded.
        """
        credited = await self._source.run(task)
        serialise = partial(finished, fingerprint=self._fingerprint, is_charted=self._is_charted)
        work = asyncio.ensure_future(asyncio.to_thread(serialise, credited))
        with suppress(asyncio.CancelledError):
            await to_the_end(work)
        return work.result()
