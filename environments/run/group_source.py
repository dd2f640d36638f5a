"""Where groups come from, and what a run counts by of each: a note, and groups lost in a row."""

import asyncio
import logging
import textwrap
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Protocol

from environments.base_env import AgentEnv
from environments.credit import recorded_params
from environments.record.diagnosis import REFUSED, Cause, cause_of, diagnosis_by
from environments.record.group_line import decode_group
from environments.record.origin import is_outage
from environments.record.recorder import GroupLine, serialise
from environments.record.summary import CHARTED_TURNS
from environments.record.totals import Summary
from environments.rollout.boundary import failure_of
from environments.rollout.containment.hook_calls import InFlight, Watch
from environments.rollout.items.tasks import GroupTask, PastGroup, past_group
from environments.run.worker_pool import StoppedError, groups_at_once
from environments.trajectory import CreditedGroup, Failure, StopReason, Trajectory, TrajectoryGroup
from environments.wire.payloads import Package, Shape, only_exact, pack
from tools.errors import RewardError, WireError
from tools.plain_text import shorten
from tools.waiting import to_the_end

MAX_SAMPLES = 16
MAX_VALUES = 10_000
TEXT_CHARS = 1000
logger = logging.getLogger(__name__)


class ShownGroups:
    """What charts show of groups beside their numbers."""

    def __init__(self) -> None:
        self.histograms: defaultdict[str, list[float]] = defaultdict(list)
        """Scores, and by turn rewards and, where there is credit, advantages."""
        self.samples: list[dict[str, str | float | None]] = []

    def add(self, credited: CreditedGroup) -> None:
        group = credited.group
        has_credit = credited.status != "failed" and not group.is_evaluation
        for trajectory, row in zip(credited.group.trajectories, credited.advantages, strict=True):
            if trajectory.score is not None:
                self._value("score", trajectory.score)
            for index, reward in enumerate((trajectory.act_rewards or ())[:CHARTED_TURNS]):
                if reward is not None:
                    self._value(f"turn/{index + 1:02}/reward", reward)
            advantages = [
                (advantage, turn.trained)
                for advantage, turn in zip(row, trajectory.turns, strict=True)
                if turn.kind == "act"
            ]
            for index, (advantage, trained) in enumerate(advantages[:CHARTED_TURNS]):
                if trained and has_credit:
                    self._value(f"turn/{index + 1:02}/advantage", advantage)
        if credited.group.trajectories and len(self.samples) < MAX_SAMPLES:
            self.samples.append(sample(credited.group.trajectories[0], credited))

    def merge(self, other: "ShownGroups") -> None:
        for name, values in other.histograms.items():
            mine = self.histograms[name]
            mine += values[: MAX_VALUES - len(mine)]
        self.samples += other.samples[: MAX_SAMPLES - len(self.samples)]

    def _value(self, name: str, value: float) -> None:
        values = self.histograms[f"histogram/{name}"]
        if len(values) < MAX_VALUES:
            values.append(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNote:
    """One group, as progress, charts, streaks and `next_items` see it."""

    past: PastGroup
    """What `next_items` is shown of it."""
    summary: Summary
    """The statistics of this group alone, for `Summary.merge`."""
    loss: str | None
    """Why nothing of it can be compared; `None`: something can."""
    cause: Cause | None = None
    """Why nothing is to be learned from it; `None`: something is, or it is of an evaluation."""
    lacks_image: bool
    """Whether all of it was lost because the image of its item cannot be had."""
    outages: tuple[str | None, ...]
    """Of each rollout that ended, the error that lost it to a server, an engine or a disk that was away."""
    group_id: str
    versions: Mapping[int, tuple[str | None, ...]]
    """Of the weights that sampled each sibling that is not withheld."""
    failed_by_model: bool
    """Whether it failed, and a rollout of it because of the model server."""
    may_have_lost_model: bool
    """Whether to ask the server: what is left of a group when it dies or hangs are the short rollouts."""
    lacking: tuple[str, ...] | None = None
    """What each rollout lacked that was taken out for want of exact tokens; `None`: not looked for."""
    shown: ShownGroups | None = None
    """What charts show of it beside numbers; `None` without charts."""


def note_of(
    credited: CreditedGroup, *, is_charted: bool = False, lacking: tuple[str, ...] | None = None
) -> GroupNote:
    """Return what a run counts by; with what charts show where `is_charted`."""
    group = credited.group
    summary = Summary()
    summary.add(credited)
    shown = None
    if is_charted:
        shown = ShownGroups()
        shown.add(credited)
    last = group.failures[-1].error if group.failures else None
    loss = group.error or last or credited.reason or "no rollout was started"
    return GroupNote(
        past=past_group(credited),
        summary=summary,
        loss=loss if group.is_lost else None,
        cause=cause_of(credited),
        lacks_image=bool(group.failures)
        and all(failure.error_class == "ImageUnavailable" for failure in group.failures),
        outages=tuple(map(_outage, group.failures)) + (None,) * len(group.trajectories),
        group_id=group.group_id,
        versions={each.sibling: each.weight_versions for each in group.trajectories if each.stale is None},
        failed_by_model=credited.status == "failed"
        and any(failure.stop_reason is StopReason.POLICY_ERROR for failure in group.failures),
        may_have_lost_model=bool(group.failures)
        or any(each.stop_reason is StopReason.TIME_BUDGET for each in group.trajectories),
        lacking=lacking,
        shown=shown,
    )


def _outage(failure: Failure) -> str | None:
    lost = is_outage(failure.stop_reason, failure.error, failure.error_class)
    return (
        f"{failure.error_class}: {failure.error.removeprefix(f'{failure.error_class}: ')}" if lost else None
    )


def sample(trajectory: Trajectory, credited: CreditedGroup) -> dict[str, str | float | None]:
    """A rollout as a row of a table for people."""
    rewards = trajectory.act_rewards
    shown = ["-" if reward is None else f"{reward:.3g}" for reward in (rewards or ())[:CHARTED_TURNS]]
    last = trajectory.messages[-1].content if trajectory.turns else ""
    return {
        "item": _text(trajectory.item_id),
        "epoch": float(credited.group.epoch),
        "sibling": float(trajectory.sibling),
        "score": trajectory.score,
        "turns": float(len(trajectory.acts)),
        "rewards by turn": "  ".join(shown) + ("  …" if rewards and len(rewards) > CHARTED_TURNS else ""),
        "stop reason": trajectory.stop_reason.value,
        "last message": _text(last),
    }


def _text(text: str) -> str:
    return shorten(text, TEXT_CHARS).encode("utf-8", "replace").decode()


_REASON_CHARS = 300


LATEST_ROLLOUTS = 40
MOST_OUTAGES = 8
"""Of the latest rollouts that one class of errors may lose before no other starts."""


class Streak:
    """What was lost lately: whole groups in a row, and rollouts by what was away."""

    def __init__(self, most: int = 0) -> None:
        self.length = 0
        self._most = most
        self._last = ""
        self._outages = deque[str | None](maxlen=LATEST_ROLLOUTS)

    @property
    def outage(self) -> str | None:
        """What is away, in words, where too many of the latest rollouts were lost to it."""
        lost = [each for each in self._outages if each is not None]
        classes = Counter(each.partition(":")[0] for each in lost)
        for name, count in classes.most_common(1):
            if count > MOST_OUTAGES:
                last = textwrap.shorten(
                    next(each for each in reversed(lost) if each.startswith(name)), _REASON_CHARS
                )
                return f"{count} of the last {len(self._outages)} rollouts were lost to {last}"
        return None

    def add(self, note: GroupNote, *, is_probe: bool = False) -> None:
        """Count a group that ended. One that began in an outage, `is_probe`, ends it if anything is left.

        Raises StoppedError if too many groups were lost in a row.
        """
        if is_probe and note.loss is None:
            self._outages.clear()
        self._outages.extend(note.outages)
        if note.lacks_image:
            return  # of this item alone
        if note.loss is None:
            self.length = 0
            return
        self.length += 1
        self._last = textwrap.shorten(note.loss, _REASON_CHARS)
        if 0 < self._most <= self.length:
            raise StoppedError(f"{self}; --env.max_failed_groups 0 goes on all the same")

    def __str__(self) -> str:
        lost = f"{self.length} groups in a row were lost whole, the last one because of {self._last}"
        return self.outage or lost


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class Breaker:
    """While too many rollouts are lost to one outage, groups start one by one, with a pause before each."""

    def __init__(
        self, streak: Streak, say: Callable[[str], None], *, clock: Callable[[], float] = monotonic
    ) -> None:
        self.streak = streak
        self._say, self._clock = say, clock
        self._probes = set[Hashable]()
        """Groups that run and started while it was open."""
        self._pause_s, self._next_at = FIRST_PAUSE_S, 0.0

    @property
    def is_open(self) -> bool:
        return self.streak.outage is not None

    @property
    def may_start(self) -> bool:
        return not self.is_open or self._clock() >= self._next_at

    def start(self, key: Hashable) -> None:
        if self.is_open:
            self._probes.add(key)
            self._pause(min(2 * self._pause_s, LONGEST_PAUSE_S))

    def end(self, key: Hashable, note: GroupNote) -> bool:
        """Count a group that ended. False: it began before the outage, and shows nothing of now.

        Raises StoppedError if too many groups were lost in a row.
        """
        was_open, is_probe = self.is_open, key in self._probes
        self._probes.discard(key)
        if was_open and note.loss is None and not is_probe:
            return False
        self.streak.add(note, is_probe=is_probe)
        if self.is_open and not was_open:
            self._pause(FIRST_PAUSE_S)
        return True

    def _pause(self, seconds: float) -> None:
        self._pause_s = seconds
        self._next_at = self._clock() + seconds
        self._say(f"{self.streak}; the next one starts in {seconds:g} s; no item is spent")


MOST_REFUSED = 3
"""Groups that are refused for one cause before any can be learned from: there is no point in the others."""
_SAID_AFTER = 3
"""Groups from which nothing can be learned before that is said."""


class Lessons:
    """Watches whether anything can be learned from the groups of a run until something can."""

    def __init__(self, say: Callable[[str], None], *, has_credit: bool = False) -> None:
        """Watch; `has_credit` is whether the record has a group with credit, `say` shows a line."""
        self._say, self._has_credit = say, has_credit
        self._causes: Counter[Cause | None] = Counter()

    def add(self, note: GroupNote) -> None:
        """Take the next group in, unless it is of one rollout: it is not meant to be compared.

        Raises StoppedError if it is one of too many that were refused for one cause.
        """
        self._has_credit |= note.past.status == "ok"
        cause, siblings = note.cause, len(note.past.scores) + note.past.lost
        if self._has_credit or cause is None or siblings < 2:
            return
        self._causes[cause] += 1
        if cause.kind == REFUSED and self._causes[cause] == MOST_REFUSED:
            raise StoppedError(
                f"{MOST_REFUSED} groups were refused alike, and none can be learned from: {cause.why}; "
                f"{cause.remedy}"
            )
        if self._causes.total() == _SAID_AFTER:
            self._say(str(diagnosis_by(self._causes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing:
    """What a run wants of each group that ended."""

    fingerprint: str | None
    """Of its record."""
    is_charted: bool = False
    has_line: bool = True
    """Whether anybody reads the line."""
    shape: Shape | None = None
    """Of the posts for a trainer; `None`: there are none."""
    exact_only: bool = False
    """Whether rollouts without exact tokens are taken out of a group to be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group that ended, serialised where it did: all that who asked for it needs."""

    line: GroupLine | None
    note: GroupNote
    package: Package | None = None
    """Its posts; `None`: nothing of it goes to a trainer."""
    malformed: str | None = None
    """Why no posts could be made of it, so that it failed."""


class GroupSource(Protocol):
    """Rolls out what it is asked for, many groups side by side; who asks plans, records and shows."""

    @property
    def at_once(self) -> int: ...

    async def first(self, task: GroupTask) -> TrajectoryGroup: ...

    async def run(
        self, task: GroupTask, size: int | None = None, *, max_row_tokens: int | None = None
    ) -> FinishedGroup:
        """Return a group that ended, of so many siblings; those in `task.rolled_out` are not rolled out anew.

        A trainer takes rows of `max_row_tokens`; `None`: of any length.
        """
        ...


Credit = Callable[[TrajectoryGroup], CreditedGroup]


def finished(
    credited: CreditedGroup,
    finishing: Finishing,
    credit: Credit | None = None,
    max_row_tokens: int | None = None,
) -> FinishedGroup:
    """Return what a run wants of a group; it needs no file, and may run on any thread.

    `credit` gives advantages to what is left of a group that loses rollouts without exact tokens.
    """
    lacking = package = malformed = line = None
    if finishing.exact_only and credited.status == "ok":
        assert credit is not None
        credited, lacking = only_exact(credited, credit)
    if finishing.shape is not None and credited.status == "ok":
        try:
            package = pack(credited, replace(finishing.shape, max_row_tokens=max_row_tokens))
        except Exception as error:  # noqa: BLE001  # whatever a group holds: it is put aside, the next one goes on
            malformed = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
            credited = replace(credited, status="failed", reason=f"no trainer can read it: {malformed}")
    if finishing.has_line:
        line, credited = serialise(credited, fingerprint=finishing.fingerprint)
    note = note_of(credited, is_charted=finishing.is_charted, lacking=lacking)
    return FinishedGroup(line=line, note=note, package=package, malformed=malformed)


async def withhold_stale(env: AgentEnv, finishing: Finishing, done: FinishedGroup) -> FinishedGroup:
    """Return the group without credit for siblings that are too old by now, see `AgentEnv.withhold_stale`."""
    line = done.line
    if env.lifecycle.weight_versions.staleness([*chain.from_iterable(done.note.versions.values())]) is None:
        return done
    assert line is not None

    def anew() -> FinishedGroup:
        group = env.withhold_stale(decode_group(line.content, Path("a group that ended"), 1))
        left = finished(group, finishing, env.credit)
        assert left.line is not None
        kept = replace(left.line, artefacts=line.artefacts)
        return replace(left, line=kept, note=replace(left.note, lacking=done.note.lacking))

    return await asyncio.to_thread(anew)


class OwnGroups:
    def __init__(self, env: AgentEnv, watch: Watch) -> None:
        self._env, self._watch = env, watch
        self.at_once = groups_at_once(env.config.max_concurrent_rollouts, self._size())

    def _size(self) -> int:
        return self._env.config.group_size

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        return await self._env.rollout_group(task, 1, watch=self._watch)

    async def run(self, task: GroupTask, size: int | None = None) -> CreditedGroup:
        return await self._env.run_group(task, size, watch=self._watch)


class OwnEvaluations(OwnGroups):
    """The same for an evaluation: with the verdict on each rollout, and without credit."""

    def _size(self) -> int:
        return self._env.config.eval_rollouts

    async def run(self, task: GroupTask, size: int | None = None) -> CreditedGroup:
        env = self._env
        group = await env.rollout_group(task, size or self._size(), watch=self._watch)
        return uncredited(env, await score_eval(env, task, group, self._watch))


class FinishedGroups:
    def __init__(self, source: OwnGroups, finishing: Finishing, credit: Credit | None = None) -> None:
        self._source, self._finishing, self._credit = source, finishing, credit

    @property
    def at_once(self) -> int:
        return self._source.at_once

    async def first(self, task: GroupTask) -> TrajectoryGroup:
        return await self._source.first(task)

    async def run(
        self, task: GroupTask, size: int | None = None, *, max_row_tokens: int | None = None
    ) -> FinishedGroup:
        """Return a group that ended.

        It is returned even to a caller that is cancelled meanwhile, whose part it then is to end once the
        group is recorded.
        """
        credited = await self._source.run(task, size)
        finishing = asyncio.to_thread(finished, credited, self._finishing, self._credit, max_row_tokens)
        work = asyncio.ensure_future(finishing)
        with suppress(asyncio.CancelledError):
            await to_the_end(work)
        return work.result()


async def score_eval(env: AgentEnv, task: GroupTask, group: TrajectoryGroup, watch: Watch) -> TrajectoryGroup:
    """A group with the verdict on each rollout; those without one are failures."""
    kept: list[Trajectory] = []
    failures = list(group.failures)
    for trajectory in group.trajectories:
        verdict = await _verdict(env, task, trajectory, watch)
        if isinstance(verdict, Failure):
            failures.append(verdict)
        else:
            kept.append(replace(trajectory, passed=verdict))
    failures.sort(key=lambda failure: failure.sibling)
    return replace(group, trajectories=tuple(kept), failures=tuple(failures), is_evaluation=True)


def uncredited(env: AgentEnv, group: TrajectoryGroup) -> CreditedGroup:
    """A group as the record of an evaluation has it; one of which no rollout is left is to be tried again."""
    params = recorded_params(
        env.estimator, preset=env.config.estimator_preset, params=env.lifecycle.parts.estimator_params
    )
    return CreditedGroup(
        group=group,
        advantages=tuple((0.0,) * len(trajectory.turns) for trajectory in group.trajectories),
        policy=env.policy_name,
        estimator=env.estimator,
        estimator_params=params,
        status="no_credit" if group.trajectories else "failed",
        reason="an evaluation" if group.trajectories else "no rollout is left",
    )


async def _verdict(env: AgentEnv, task: GroupTask, trajectory: Trajectory, watch: Watch) -> bool | Failure:
    if trajectory.agent_caused is not None:
        return False
    in_flight = InFlight(item_id=task.item_id, sibling=trajectory.sibling)
    try:
        with watch(in_flight), env.lifecycle.hook_calls(in_flight) as calls:
            given = await calls.hook("passed", env.passed, task.for_rollout().item, trajectory)
        # Of numpy, too, which loads slowly.
        if not (
            isinstance(given, bool)
            or (getattr(given, "dtype", None) == "bool" and getattr(given, "shape", None) == ())
        ):
            where = f"environment {env.name!r}, item {task.item_id!r}"
            raise RewardError(f"{where}: passed gave {given!r:.100}; give True or False")
        return bool(given)
    except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a verdict
        return failure_of(error, sibling=trajectory.sibling, turns=len(trajectory.turns))


def source_in_process(
    env: AgentEnv, watch: Watch, finishing: Finishing, *, evaluation: bool = False
) -> FinishedGroups:
    own = OwnEvaluations(env, watch) if evaluation else OwnGroups(env, watch)
    return FinishedGroups(own, finishing, env.credit)
