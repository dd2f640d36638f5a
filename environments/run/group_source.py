"""Sources of groups, the note of each group's result, and the rules that stop or pause a run."""

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
    def __init__(self) -> None:
        self.histograms: defaultdict[str, list[float]] = defaultdict(list)
        self.samples: list[dict[str, str | float | None]] = []

    def add(self, credited: CreditedGroup) -> None:
        group = credited.group
        has_credit = credited.status != "failed" and not group.is_evaluation
        for trajectory, row in zip(group.trajectories, credited.advantages, strict=True):
            if trajectory.score is not None and trajectory.trunk is None:
                self._value("score", trajectory.score)
            for index, reward in enumerate((trajectory.act_rewards or ())[:CHARTED_TURNS]):
                if reward is not None:
                    self._value(f"turn/{index + 1:02}/reward", reward)
            acts = [each for each in zip(row, trajectory.turns, strict=True) if each[1].kind == "act"]
            for index, (advantage, turn) in enumerate(acts[:CHARTED_TURNS]):
                if turn.trained and has_credit:
                    self._value(f"turn/{index + 1:02}/advantage", advantage)
        if group.trajectories and len(self.samples) < MAX_SAMPLES:
            self.samples.append(sample(group.trajectories[0], credited))

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
    past: PastGroup
    summary: Summary
    loss: str | None
    """Reason that no rollout can be compared; `None`: some can."""
    cause: Cause | None = None
    lacks_image: bool
    outages: tuple[str | None, ...]
    group_id: str
    versions: Mapping[int, tuple[str | None, ...]]
    failed_by_model: bool
    may_have_lost_model: bool
    """Whether to probe the server: if it dies or hangs, only short rollouts of a group remain."""
    lacking: tuple[str, ...] | None = None
    """Per rollout removed for want of exact tokens, what it lacked; `None`: not checked."""
    shown: ShownGroups | None = None


def note_of(
    credited: CreditedGroup, *, is_charted: bool = False, lacking: tuple[str, ...] | None = None
) -> GroupNote:
    group = credited.group
    shown = None
    if is_charted:
        shown = ShownGroups()
        shown.add(credited)
    outages = [
        f"{each.error_class}: {each.error.removeprefix(f'{each.error_class}: ')}"
        if is_outage(each.stop_reason, each.error, each.error_class)
        else None
        for each in group.failures
    ]
    last = group.failures[-1].error if group.failures else None
    loss = group.error or last or credited.reason or "no rollout was started"
    return GroupNote(
        past=past_group(credited),
        summary=Summary([credited]),
        loss=loss if group.is_lost else None,
        cause=cause_of(credited),
        lacks_image=bool(group.failures)
        and all(failure.error_class == "ImageUnavailable" for failure in group.failures),
        outages=(*outages, *[None] * len(group.trajectories)),
        group_id=group.group_id,
        versions={each.sibling: each.weight_versions for each in group.trajectories if each.stale is None},
        failed_by_model=credited.status == "failed"
        and any(failure.stop_reason is StopReason.POLICY_ERROR for failure in group.failures),
        may_have_lost_model=bool(group.failures)
        or any(each.stop_reason is StopReason.TIME_BUDGET for each in group.trajectories),
        lacking=lacking,
        shown=shown,
    )


def sample(trajectory: Trajectory, credited: CreditedGroup) -> dict[str, str | float | None]:
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
MAX_OUTAGES = 8
"""Rollouts among the latest that one error class may lose before new groups wait."""


class Streak:
    """Counts groups lost in a row and rollouts lost to outages."""

    def __init__(self, most: int = 0) -> None:
        self.length = 0
        self._most = most
        self._last = ""
        self._outages = deque[str | None](maxlen=LATEST_ROLLOUTS)

    @property
    def outage(self) -> str | None:
        lost = [each for each in self._outages if each is not None]
        for name, count in Counter(each.partition(":")[0] for each in lost).most_common(1):
            if count > MAX_OUTAGES:
                last = [each for each in lost if each.startswith(name)][-1]
                reason = textwrap.shorten(last, _REASON_CHARS)
                return f"{count} of the last {len(self._outages)} rollouts were lost to {reason}"
        return None

    def add(self, note: GroupNote, *, is_probe: bool = False) -> None:
        """Count a group that ended; a probe (started during an outage) with a result ends the outage."""
        if is_probe and note.loss is None:
            self._outages.clear()
        self._outages.extend(note.outages)
        if note.lacks_image:
            return  # a fault of this item alone
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
    """During an outage, starts groups one by one with a growing pause."""

    def __init__(
        self, streak: Streak, say: Callable[[str], None], *, clock: Callable[[], float] = monotonic
    ) -> None:
        self.streak = streak
        self._say, self._clock = say, clock
        self._probes = set[Hashable]()
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
        """Count a group that ended. Return False if it began before the outage and says nothing about now."""
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


MAX_REFUSED = 3
_DIAGNOSED_AFTER = 3


class Lessons:
    """Checks whether groups have credit, until one does."""

    def __init__(self, say: Callable[[str], None], *, has_credit: bool = False) -> None:
        self._say, self._has_credit = say, has_credit
        self._causes: Counter[Cause | None] = Counter()
        self._groups = self._turns = self._untrained = 0

    def add(self, note: GroupNote) -> None:
        if note.cause is not None or note.past.status == "ok":  # no evaluation
            self._groups += 1
            self._turns += note.summary.totals["forks"]["turns"]
            self._untrained += note.summary.totals["credit"]["untrained"]
            if self._groups == _DIAGNOSED_AFTER and 2 * self._untrained > self._turns:
                self._say(
                    f"{self._untrained} of {self._turns} turns of the first {self._groups} groups are not "
                    "trained: --openai.constraints enforce, train_turn, train_threads and "
                    "--env.mask_truncated exclude turns"
                )
        self._has_credit |= note.past.status == "ok"
        cause, siblings = note.cause, len(note.past.scores) + note.past.lost
        if self._has_credit or cause is None or siblings < 2:
            return
        self._causes[cause] += 1
        if cause.kind == REFUSED and self._causes[cause] == MAX_REFUSED:
            raise StoppedError(
                f"{MAX_REFUSED} groups were refused alike, and none can be learned from: {cause.why}; "
                f"{cause.remedy}"
            )
        if self._causes.total() == _DIAGNOSED_AFTER:
            self._say(str(diagnosis_by(self._causes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing:
    fingerprint: str | None
    is_charted: bool = False
    has_line: bool = True
    shape: Shape | None = None
    exact_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A finished group, serialised in the process that rolled it out."""

    line: GroupLine | None
    note: GroupNote
    package: Package | None = None
    malformed: str | None = None


class GroupSource(Protocol):
    """Rolls out groups, many concurrently; the caller plans, records and shows them."""

    @property
    def at_once(self) -> int: ...

    async def first(self, task: GroupTask) -> TrajectoryGroup: ...

    async def run(
        self, task: GroupTask, size: int | None = None, *, max_row_tokens: int | None = None
    ) -> FinishedGroup:
        """Return a finished group of `size` siblings, including those in `task.rolled_out`.

        `max_row_tokens` is the longest row that the trainer accepts; `None`: no limit.
        """
        ...


Credit = Callable[[TrajectoryGroup], CreditedGroup]


def finish_group(
    credited: CreditedGroup,
    finishing: Finishing,
    credit: Credit | None = None,
    max_row_tokens: int | None = None,
) -> FinishedGroup:
    """Return a group with the outputs of `finishing`; thread-safe, and needs no file."""
    lacking = package = malformed = line = None
    if finishing.exact_only and credited.status == "ok":
        assert credit is not None
        credited, lacking = only_exact(credited, credit)
    if finishing.shape is not None and credited.status == "ok":
        try:
            package = pack(credited, replace(finishing.shape, max_row_tokens=max_row_tokens))
        except Exception as error:  # noqa: BLE001  # a malformed group fails alone
            malformed = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
            credited = replace(credited, status="failed", reason=f"no trainer can read it: {malformed}")
    if finishing.has_line:
        line, credited = serialise(credited, fingerprint=finishing.fingerprint)
    note = note_of(credited, is_charted=finishing.is_charted, lacking=lacking)
    return FinishedGroup(line=line, note=note, package=package, malformed=malformed)


async def withhold_stale(env: AgentEnv, finishing: Finishing, done: FinishedGroup) -> FinishedGroup:
    line = done.line
    if env.lifecycle.weight_versions.staleness([*chain.from_iterable(done.note.versions.values())]) is None:
        return done
    assert line is not None

    def anew() -> FinishedGroup:
        group = env.withhold_stale(decode_group(line.content, Path("a group that ended"), 1))
        left = finish_group(group, finishing, env.credit)
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
    def _size(self) -> int:
        return self._env.config.eval_rollouts

    async def run(self, task: GroupTask, size: int | None = None) -> CreditedGroup:
        env = self._env
        group = await env.rollout_group(task, size or self._size(), watch=self._watch)
        group = await score_eval(env, task, group, self._watch)
        preset, params = env.config.estimator_preset, env.lifecycle.parts.estimator_params
        return CreditedGroup(
            group=group,
            advantages=tuple((0.0,) * len(trajectory.turns) for trajectory in group.trajectories),
            policy=env.policy_name,
            estimator=env.estimator,
            estimator_params=recorded_params(env.estimator, preset=preset, params=params),
            status="no_credit" if group.trajectories else "failed",
            reason="an evaluation" if group.trajectories else "no rollout is left",
        )


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
        """Return a finished group, even if the caller is cancelled meanwhile.

        The caller must then re-raise the cancellation after the group is recorded.
        """
        credited = await self._source.run(task, size)
        finishing = asyncio.to_thread(finish_group, credited, self._finishing, self._credit, max_row_tokens)
        work = asyncio.ensure_future(finishing)
        with suppress(asyncio.CancelledError):
            await to_the_end(work)
        return work.result()


async def score_eval(env: AgentEnv, task: GroupTask, group: TrajectoryGroup, watch: Watch) -> TrajectoryGroup:
    """Return the group with a verdict on each rollout; a rollout without one is a failure."""
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


async def _verdict(env: AgentEnv, task: GroupTask, trajectory: Trajectory, watch: Watch) -> bool | Failure:
    if trajectory.agent_caused is not None:
        return False
    in_flight = InFlight(item_id=task.item_id, sibling=trajectory.sibling)
    try:
        with watch(in_flight), env.lifecycle.hook_calls(in_flight) as calls:
            given = await calls.hook("passed", env.passed, task.for_rollout().item, trajectory)
        # `numpy.bool_` too, without importing numpy.
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
