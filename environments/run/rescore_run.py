"""`rescore`: the groups of a record with rewards as the environment gives them now, into a new record."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from environments.base_env import AgentEnv
from environments.record.contents import Contents
from environments.record.origin import RunOrigin, differences
from environments.record.recorder import Recorder, new_record, read_groups
from environments.record.summary import counts, lines
from environments.record.totals import Spread, Tally
from environments.run.experiment import origin_of
from environments.run.progress import Progress
from environments.run.replay import Replay
from environments.run.watchdog import watchdog_of
from environments.trajectory import CreditedGroup
from tools.errors import RecordError, RunError, UsageError


@dataclass(slots=True, kw_only=True)
class Change:
    """What rescoring came to. Only `add` changes it."""

    before: Spread = field(default_factory=Spread)
    """Scores."""
    after: Spread = field(default_factory=Spread)
    rollouts: int = 0
    changed: int = 0
    """Rollouts whose rewards differ."""
    statuses: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    """Of the groups, before and after."""
    failures: Tally = field(default_factory=Tally)
    """Why rollouts and groups failed that had not."""

    def add(self, old: CreditedGroup, new: CreditedGroup) -> None:
        """Take one group in."""
        for status, credited in zip(self.statuses, (old, new), strict=True):
            status[credited.status] += 1
        self.before = self.before.merged(Spread.of(each.score for each in old.group.trajectories))
        self.after = self.after.merged(Spread.of(each.score for each in new.group.trajectories))
        left = {each.sibling: each for each in new.group.trajectories}
        failed = {each.sibling: each.error for each in new.group.failures}
        self.rollouts += len(old.group.trajectories)
        for each in old.group.trajectories:
            if each.sibling not in left:
                self._fail(failed.get(each.sibling, "it cannot be recorded"))
            else:
                self.changed += left[each.sibling].rewards != each.rewards
        if new.status == "failed" != old.status:
            self._fail(new.reason or "")

    def text(self) -> str:
        """A few lines for people."""
        before, after = self.statuses
        rows = [
            f"{before.total()} groups, {self.rollouts} rollouts: rewards of {self.changed} changed",
            f"mean score {_mean(self.before)} -> {_mean(self.after)}",
            f"groups     {counts(before)} -> {counts(after)}",
            *([f"failed now {lines(self.failures.counts())}"] if self.failures else []),
        ]
        return "\n".join(rows)

    def _fail(self, reason: str) -> None:
        self.failures = self.failures.merged(Tally.of([reason]))


def recorded_seed(contents: Contents) -> int | None:
    """The seed of the run that a record is of, where it says so.

    Raises:
        RecordError: it is of several, so that `ctx.group_seed` would not be what it was.
    """
    seeds = {facts["seed"] for facts in contents.origins.values() if "seed" in facts}
    if len(seeds) > 1:
        raise RecordError(f"it holds runs of seeds {', '.join(sorted(seeds))}; rescore each one's record")
    seed = next(iter(seeds), "")
    return int(seed) if seed.isdecimal() else None


async def rescore(env: AgentEnv, record: Path, contents: Contents, out: Path, console: Console) -> None:
    """Write every group of a record with new rewards and advantages; the new record is whole or not there.

    Raises:
        UsageError: a hook asks for what only a live rollout has, the record is not of this environment or
            its items, or the new record cannot be written.
        RunError: nothing could be scored.
    """
    progress = Progress(console)
    with watchdog_of(env, progress) as watchdog:
        async with env.loaded():
            with new_record(out, doing="rescore") as recorder, watchdog.armed():
                change = await _rewrite(env, record, contents, recorder, progress)
    console.print(Text(change.text()), soft_wrap=True)
    console.print(Text(str(out), style="bold"), soft_wrap=True)


async def _rewrite(
    env: AgentEnv, record: Path, contents: Contents, recorder: Recorder, progress: Progress
) -> Change:
    replay, change, now = Replay(env, progress.rollout), Change(), origin_of(env)
    for number, old in enumerate(read_groups(record), start=1):
        try:
            new = await replay.rescored(old)
        except UsageError as error:
            raise type(error)(f"{record}, line {number}: {error}") from None
        origin = _rescored_origin(now, old, contents.origins)
        recorder.explain({origin.fingerprint: origin.facts()})
        new = replace(new, group=replace(new.group, fingerprint=origin.fingerprint))
        change.add(old, await asyncio.to_thread(recorder.append, new))
    before, after = change.statuses
    if after.total() == after["failed"] > before["failed"]:
        raise RunError(
            f"every group of {record} failed, and no record was written: {lines(change.failures.counts())}"
        )
    return change


def _rescored_origin(
    now: RunOrigin, old: CreditedGroup, origins: Mapping[str, Mapping[str, str]]
) -> RunOrigin:
    """The experiment that a rescored group is of: its rollout was one, its rewards are another."""
    now = replace(now, policy=old.policy)
    before = old.group.fingerprint
    facts = None if before is None else origins.get(before)
    changed = ["unknown"] if facts is None else differences(facts, now.facts())
    came = {"rescored from": before or "unknown", "changed since": "; ".join(changed) or "nothing"}
    return replace(now, experiment={**now.experiment, **came})


def _mean(spread: Spread) -> str:
    return "-" if spread.mean is None else f"{spread.mean:.3f}"
