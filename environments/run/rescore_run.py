"""`credit --rewards`: write a new record with rewards as the environment computes them now.

The reward hooks are called again for each recorded rollout, in order. Sandbox files come from the record, as
far as they were kept; access to anything else of a live rollout ends the command.
"""

import asyncio
import errno
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from rich.console import Console
from rich.text import Text

from environments.base_env import AgentEnv
from environments.credit.estimator_registry import check_branches_of
from environments.policy.base import CompletionRequest
from environments.policy.second_models import SCRIPTED, ScriptedAnswers, SecondModel, TextAnswer
from environments.policy.text_scorer import TextScorer, by_question
from environments.record.diagnosis import cause_of
from environments.record.group_line import decode_group
from environments.record.origin import SHARD, Contents, differences
from environments.record.recorder import Record, Recorder, iterate_lines, new_record, with_contents
from environments.record.summary import counts, lines
from environments.record.totals import Summary, Tally
from environments.rewards.reward_context import AgentFiles, RolloutContext
from environments.rewards.verification_time import off_the_clock
from environments.rollout.boundary import Boundary, Slots, blame_agent, failure_of
from environments.rollout.containment.hook_calls import HookCalls, InFlight, Watch
from environments.rollout.items.item_json import item_hash
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.lifecycle import SandboxOpener
from environments.rollout.lifecycle.rollout_hooks import RolloutHooks
from environments.run.experiment import origin_of
from environments.run.progress import Progress
from environments.run.watchdog import watch_run
from environments.trajectory import (
    CreditedGroup,
    Failure,
    JudgeCall,
    Message,
    StopReason,
    Trajectory,
    Turn,
)
from tools.errors import ConfigError, RecordError, RunError, UsageError
from tools.plain_text import decimals, utf8_text
from tools.sandbox.archive import check
from tools.sandbox.base import MAX_READ_BYTES, ExecResult, NoSandbox, Sandbox, SandboxRecord
from tools.sandbox.host.supervised import file_error


@dataclass(slots=True, kw_only=True)
class Change:
    before: Summary = field(default_factory=Summary)
    after: Summary = field(default_factory=Summary)
    changed: int = 0
    failures: Tally = field(default_factory=Tally)

    def add(self, old: CreditedGroup, new: CreditedGroup) -> None:
        self.before.add(old)
        self.after.add(new)
        left = {each.sibling: each for each in new.group.trajectories}
        failed = {each.sibling: each.error for each in new.group.failures}
        reasons = [str(cause_of(new))] if new.status == "failed" != old.status else []
        for each in old.group.trajectories:
            if each.sibling in left:
                self.changed += left[each.sibling].rewards != each.rewards
            else:
                reasons.append(failed.get(each.sibling, "it cannot be recorded"))
        self.failures = self.failures.merge(Tally.of(reasons))

    def text(self) -> str:
        sides = [self.before.values(), self.after.values()]
        shown = " -> ".join(decimals(each["score"]["mean"]) for each in sides)
        rollouts = sides[0]["rollouts"]["kept"]
        rows = [
            f"{self.before.done} groups, {rollouts} rollouts: rewards of {self.changed} changed",
            f"mean score {shown}",
            f"groups     {counts(self.before.groups)} -> {counts(self.after.groups)}",
        ]
        if self.failures:
            rows.append(f"failed now {lines(self.failures.counts())}")
        return "\n".join(rows)


async def rescore(env: AgentEnv, record: Record, contents: Contents, out: Path, console: Console) -> None:
    """Write every group of a record with new rewards and advantages; the new record is complete or absent.

    Raises UsageError if a hook needs a live rollout, or record and environment do not match; RunError if
    nothing could be scored.
    """
    progress = Progress(console)
    with watch_run(env, progress) as watchdog:
        async with env.loaded():
            with new_record(out, doing="credit") as recorder, watchdog.arm():
                change = await _rewrite(env, record, contents, recorder, progress)
    console.print(Text(change.text()), soft_wrap=True)
    console.print(Text(str(out), style="bold"), soft_wrap=True)


def _scoring_index(indexed: tuple[int, Turn]) -> int:
    index, turn = indexed
    return index if turn.clock is None else turn.clock.scored


def read_seed(contents: Contents) -> int | None:
    """Return the seed of the record's run, if any.

    Raises RecordError if there are several, since `ctx.group_seed` would differ.
    """
    seeds = {facts["seed"] for facts in contents.origins.values() if "seed" in facts}
    if len(seeds) > 1:
        raise RecordError(f"it holds runs of seeds {', '.join(sorted(seeds))}; rescore each one's record")
    seed = next(iter(seeds), "")
    return int(seed) if seed.isdecimal() else None


async def _rewrite(
    env: AgentEnv, record: Record, contents: Contents, recorder: Recorder, progress: Progress
) -> Change:
    replay, change, now = Replay(env, progress.rollout), Change(), origin_of(env)
    for path, number, line in iterate_lines(record):
        old = await asyncio.to_thread(_group_of, line, path, number)
        try:
            new = await replay.rescore_group(old)
        except UsageError as error:
            raise type(error)(f"{path}, line {number}: {error}") from None
        before = old.group.fingerprint
        facts = contents.origins.get(before or "")
        origin = replace(now, policy=old.policy, shard=None if facts is None else facts.get(SHARD))
        changed = ["unknown"] if facts is None else differences(facts, origin.facts())
        came = {"rescored from": before or "unknown", "changed since": "; ".join(changed) or "nothing"}
        origin = replace(origin, experiment={**origin.experiment, **came})
        recorder.explain({origin.fingerprint: origin.facts()})
        new = replace(new, group=replace(new.group, fingerprint=origin.fingerprint))
        change.add(old, await asyncio.to_thread(recorder.append, new))
    failed = change.after.groups["failed"]
    if change.after.done == failed > change.before.groups["failed"]:
        raise RunError(
            f"every group of {record} failed, and no record was written: {lines(change.failures.counts())}"
        )
    return change


def _group_of(line: bytes, path: Path, number: int) -> CreditedGroup:
    return with_contents(decode_group(line, path, number), path)


class LiveAccess:
    def __init__(self, env: str) -> None:
        self._env = env
        self.refusal: str | None = None
        """The first refusal: the hook may catch the exception."""

    def refuse(self, hook: str, what: str) -> NoReturn:
        reason = f"environment {self._env!r} cannot be rescored: {hook} {what}"
        self.refusal = self.refusal or reason
        raise ConfigError(reason)

    def check(self) -> None:
        if self.refusal is not None:
            raise ConfigError(self.refusal)


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class RecordedContext(RolloutContext):
    """Context of a recorded rollout, without `sandbox` and `state`, with the files that were kept."""

    recorded: Trajectory
    refuse: Callable[[str], NoReturn]
    opener: Callable[[], Awaitable[SandboxOpener]]

    def __post_init__(self) -> None:
        self.files = RecordedFiles(self.recorded, self.refuse)

    def __getattribute__(self, name: str) -> Any:
        if name in ("sandbox", "state"):
            object.__getattribute__(self, "refuse")(
                f"uses ctx.{name}, which a rollout has and its record has not"
            )
        return object.__getattribute__(self, name)

    async def keep(self, *paths: str) -> None:
        """Do nothing: kept files stay."""

    async def verify(self, **options: Any) -> ExecResult:
        with off_the_clock():
            self.fresh_sandbox = await self.opener()
        return await RolloutContext.verify(self, **options)

    def __repr__(self) -> str:
        return f"RecordedContext(env={self.env!r}, item_id={self.item_id!r}, seed={self.seed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoJudge:
    refuse: Callable[[str], NoReturn]
    model: str = ""

    def sampling(self, seed: int) -> Mapping[str, Any]:
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        self.refuse("asks the judge what its record does not hold; name its server, --judge.base_url")


class Replay:
    def __init__(self, env: AgentEnv, watch: Watch) -> None:
        self._env = env
        self._watch = watch
        self._items: Mapping[str, Any] = dict(zip(env.item_ids, env.items, strict=True))
        self._slots = Slots(env.config.max_concurrent_rollouts)

    async def rescore_group(self, old: CreditedGroup) -> CreditedGroup:
        """Return the group with rewards and advantages as the environment computes them now.

        Recorded failures stay; a hook that raises now adds one. Raises ConfigError if a hook needs a live
        rollout; CreditError if the estimator does not credit its branches; RecordError if the group is of
        another environment or its item changed.
        """
        env, group = self._env, old.group
        if group.env != env.name:
            raise RecordError(f"it is of environment {group.env!r}, and cannot be rescored by {env.name!r}")
        if not group.trajectories:
            return old
        check_branches_of(group, env.lifecycle.parts.estimator, env.lifecycle.parts.estimator_params)
        if group.item_hash is None:
            raise RecordError(f"it does not say what item {group.item_id!r} was")
        item = self._items.get(group.item_id, group.item)  # the recorded one is plain JSON
        if item_hash(item) != group.item_hash:
            whose = "the environment's" if group.item_id in self._items else "the recorded"
            raise RecordError(f"item {group.item_id!r} changed: {whose} is not the one that was rolled out")
        task = GroupTask(item=item, item_id=group.item_id, epoch=group.epoch)
        live = LiveAccess(env.name)
        boundary = Boundary(f"{env.name}, item {task.item_id}", env.lifecycle.failure_kinds)
        env.lifecycle.refuse_abandoned()
        async with asyncio.TaskGroup() as siblings:
            scored = [
                siblings.create_task(self._sibling(task, each, live, boundary)) for each in group.trajectories
            ]
        results = [
            boundary.result(each, recorded.sibling)
            for each, recorded in zip(scored, group.trajectories, strict=True)
        ]
        live.check()
        failures = [*group.failures, *(each for each in results if isinstance(each, Failure))]
        group = replace(
            group,
            trajectories=tuple(each for each in results if isinstance(each, Trajectory)),
            failures=tuple(sorted(failures, key=lambda failure: failure.sibling)),
            error=None,
        )
        judge = partial(self._judge, task, group.judge_calls, lambda what: live.refuse("score_group", what))
        group = await env.compare(task, group, self._watch, judge)
        live.check()
        return replace(env.credit(group), policy=old.policy)

    async def _sibling(
        self, task: GroupTask, recorded: Trajectory, live: LiveAccess, boundary: Boundary
    ) -> Trajectory | Failure:
        in_flight = InFlight(item_id=task.item_id, sibling=recorded.sibling)
        async with self._slots.acquire(), AsyncExitStack() as held:
            with self._watch(in_flight), self._env.lifecycle.hook_calls(in_flight) as calls:
                try:
                    ctx = self._context(task, recorded, live, calls, held)
                    return await self._score(recorded, ctx, calls)
                except BaseException as error:  # noqa: BLE001  # a failure is recorded, never scored
                    if live.refusal is not None:  # raised by `rescore_group`
                        return failure_of(error, sibling=recorded.sibling, turns=0)
                    turns = len(recorded.turns)
                    failure = boundary.failure_of(error, recorded.sibling, turns=turns, asked=calls.asked)
                    return replace(
                        failure,
                        user_calls=recorded.user_calls,
                        summariser_calls=recorded.summariser_calls,
                        other_calls=recorded.other_calls,
                        profile=recorded.profile,
                    )

    def _context(
        self,
        task: GroupTask,
        recorded: Trajectory,
        live: LiveAccess,
        calls: HookCalls,
        held: AsyncExitStack,
    ) -> RecordedContext:
        def refuse(what: str) -> NoReturn:
            live.refuse(calls.hook_name, what)

        async def ask(_: CompletionRequest, text: str) -> NoReturn:
            refuse(f"scores {text!r:.100} by a model, which its record has not")

        async def opener() -> SandboxOpener:
            spec = await self._env.lifecycle.sandbox_spec(task.item, calls)
            snapshot = await self._env.lifecycle.snapshot(spec, task.item, calls, held)
            return self._env.lifecycle.sandbox_openers(spec, snapshot)[1]

        task = task.for_rollout()
        return RecordedContext(
            env=self._env.name,
            item_id=task.item_id,
            item=task.item,
            seed=recorded.seed,
            group_seed=task.group_seed(self._env.config.seed),
            sandbox=cast("Any", None),
            fresh_sandbox=lambda: refuse("uses ctx.fresh_sandbox; use ctx.verify"),
            verify_timeout_s=self._env.config.verify_timeout_s,
            messages=recorded.prompt,
            judge_model=self._judge(task, recorded.judge_calls, refuse, calls),
            text_scorer=TextScorer(ask=ask, reference=ask, recorded=by_question(recorded.text_scores)),
            recorded=recorded,
            refuse=refuse,
            opener=opener,
        )

    async def _score(self, recorded: Trajectory, ctx: RecordedContext, calls: HookCalls) -> Trajectory:
        hooks = RolloutHooks(self._env.lifecycle, ctx, calls, seed=ctx.seed)
        hooks.replayed = recorded.replayed
        turns = [replace(turn, trained=True) for turn in recorded.turns]
        broke_off = recorded.stop_reason in (StopReason.SANDBOX_LOST, StopReason.AGENT_CAUSED)
        order = [index for index, _ in sorted(enumerate(turns), key=_scoring_index)]
        last = max(map(_scoring_index, enumerate(turns)), default=0)
        broken = recorded.agent_caused if broke_off else None
        try:
            for index in order:
                turn, ctx.files.turn = turns[index], index
                if turn.kind == "act":  # only acts belong to the conversation
                    own = recorded.agent is None
                    ctx.messages = (*ctx.messages, *turn.messages) if own else recorded.thread_until(index)
                ctx.metrics.update(turn.noted)
                if _scoring_index((index, turn)) == last:
                    ctx.end_reason = recorded.end_reason
                    if broke_off:
                        break  # the hooks were not called from here on
                await hooks.scoring.on_turn(turn)
                turns[index] = await hooks.mark(turn)
        except Exception as error:  # noqa: BLE001  # raised again, unless the agent caused it
            broken = blame_agent(error)
        if recorded.agent is not None:  # its turns may have been scored in another order
            acts = [index for index in order if turns[index].kind == "act"]
            given = dict(zip(acts, ctx.turn_scores, strict=False))
            ctx.turn_scores = [given.get(index) for index in sorted(acts)] if given else []
        ctx.is_over, ctx.files.turn = True, None
        bare = replace(
            recorded,
            turns=tuple(turns),
            agent_caused=broken,
            rewards=None,
            metrics={},
            judge_calls=(),
        )
        scored = await hooks.score(bare)
        # Metrics noted after the rewards belong to no turn.
        return replace(scored, metrics={**recorded.metrics, **scored.metrics})

    def _judge(
        self,
        task: GroupTask,
        recorded: Sequence[JudgeCall],
        refuse: Callable[[str], NoReturn],
        calls: HookCalls,
    ) -> SecondModel:
        """Return the judge with recorded answers; a script never replaces a real judge."""
        judge = self._env.lifecycle.second_model("judge", task, calls)
        was_real = any(call.model != SCRIPTED for call in recorded)
        has_script = "judge" in self._env.lifecycle.roles_by_script()
        if isinstance(judge.model, ScriptedAnswers) and (was_real or not has_script):
            judge.model = NoJudge(refuse=refuse)
        judge.recorded = {call.messages: call for call in recorded}
        judge.unusable_in = set()  # outages of the recorded run do not matter now
        return judge


class RecordedFiles(AgentFiles):
    """Reads kept files and recorded errors; access to others ends the command."""

    def __init__(self, recorded: Trajectory, refuse: Callable[[str], NoReturn]) -> None:
        super().__init__(cast("Sandbox", NoSandbox()), 0)
        self._recorded, self._refuse = recorded, refuse
        self.has_sandbox = recorded.sandbox is not None
        self._known = {(each.turn, each.path, each.is_folder): each for each in recorded.artefacts}

    @property
    def record(self) -> SandboxRecord:
        return self._recorded.sandbox or super().record

    def paused(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def read_file(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        return self._content(path, max_bytes, is_folder=False)

    async def get_archive(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        archive = self._content(path, max_bytes, is_folder=True)
        try:
            return check(archive)
        except OSError as error:
            self._refuse(f"takes {path!r:.100}, which is not a folder beside the record: {error}")

    async def make(self, path: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        return self._content(path, sys.maxsize, is_folder=False)

    def _content(self, path: str, max_bytes: int, *, is_folder: bool) -> bytes:
        when = "after the last turn" if self.turn is None else f"in turn {self.turn + 1}"
        what = f"takes {path!r:.100} {when}, which"
        kept = self._known.get((self.turn, utf8_text(path), is_folder))
        if kept is None:
            self._refuse(f"{what} its rollout did not take, or did not keep (--env.artefacts_mb)")
        if kept.error == "EFBIG" and max_bytes > kept.size:
            self._refuse(f"{what} had more than {kept.size:,} bytes and was not kept")
        if kept.error is not None:
            raise file_error(getattr(errno, kept.error, errno.EIO), path)
        if kept.size > max_bytes:
            raise file_error(errno.EFBIG, path)
        if kept.digest is None:
            self._refuse(f"{what} did not fit into what was kept: {kept.size:,} bytes (--env.artefacts_mb)")
        data = self._recorded.contents.get(kept.digest)
        if data is None:
            self._refuse(f"{what} is not beside the record as it names it: SHA-256 {kept.digest!r:.100}")
        return data
