"""The reward hooks of an environment, asked once more about the groups of a record."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

from environments.base_env import AgentEnv
from environments.containment.hook_calls import HookCalls
from environments.containment.in_flight import InFlight, Watch
from environments.data.item_json import item_hash
from environments.data.tasks import GroupTask
from environments.lifecycle.rollout_hooks import RolloutHooks
from environments.reward_checks import checked_metrics
from environments.rollout.boundary import Boundary
from environments.rollout.failures import failure_of
from environments.rollout.slots import Slots
from environments.run.recorded_context import LiveAccess, RecordedContext, recorded_judge
from environments.second_models.asked_model import AskedModel
from environments.trajectory import CreditedGroup, Failure, JudgeCall, Trajectory, TrajectoryGroup
from tools.errors import RecordError


class Replay:
    """Scores recorded groups; the environment is loaded, and no sandbox is open."""

    def __init__(self, env: AgentEnv, watch: Watch) -> None:
        """Prepare; `watch` sees each rollout that is scored."""
        self._env = env
        self._watch = watch
        self._items: Mapping[str, Any] = dict(zip(env.item_ids, env.items, strict=True))
        self._new_scoring = env.scoring()
        self._slots = Slots(env.config.max_concurrent_rollouts)

    async def rescored(self, old: CreditedGroup) -> CreditedGroup:
        """The group with rewards and advantages as the environment gives them now.

        Its failures stay what they are; where a hook breaks now, there is one more.

        Raises:
            ConfigError: a hook asks for what only a live rollout has.
            RecordError: the group is of another environment, or its item is not as it was.
        """
        env, group = self._env, old.group
        if group.env != env.name:
            raise RecordError(f"it is of environment {group.env!r}, and cannot be rescored by {env.name!r}")
        if not group.trajectories:
            return old
        task = GroupTask(item=self._item_of(group), item_id=group.item_id, epoch=group.epoch)
        live = LiveAccess(env.name)
        boundary = Boundary(f"{env.name}, item {task.item_id}")
        env.refuse_abandoned()
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

    def _item_of(self, group: TrajectoryGroup) -> Any:
        """The environment's own item of that name, or else the recorded one, which holds plain JSON."""
        if group.item_hash is None:
            raise RecordError(f"it does not say what item {group.item_id!r} was")
        item = self._items.get(group.item_id, group.item)
        if item_hash(item) != group.item_hash:
            whose = "the environment's" if group.item_id in self._items else "the recorded"
            raise RecordError(f"item {group.item_id!r} changed: {whose} is not the one that was rolled out")
        return item

    async def _sibling(
        self, task: GroupTask, recorded: Trajectory, live: LiveAccess, boundary: Boundary
    ) -> Trajectory | Failure:
        in_flight = InFlight(item_id=task.item_id, sibling=recorded.sibling)
        async with self._slots.one():
            with self._watch(in_flight), self._env.hook_calls(in_flight) as calls:
                try:
                    return await self._scored(recorded, self._context(task, recorded, live, calls), calls)
                except BaseException as error:  # noqa: BLE001  # as in a rollout: recorded, never scored
                    if live.refusal is not None:  # which is what the user has to hear of
                        return failure_of(error, sibling=recorded.sibling, turns=0)
                    turns = len(recorded.turns)
                    failure = boundary.failure_of(error, recorded.sibling, turns=turns, asked=calls.asked)
                    return replace(
                        failure,
                        user_calls=recorded.user_calls,
                        summariser_calls=recorded.summariser_calls,
                        profile=recorded.profile,
                    )

    def _context(
        self, task: GroupTask, recorded: Trajectory, live: LiveAccess, calls: HookCalls
    ) -> RecordedContext:
        """The rollout as its hooks see it before the first turn."""

        def refuse(what: str) -> NoReturn:
            live.refuse(calls.doing.partition(":")[0], what)

        task = task.for_rollout()
        return RecordedContext(
            env=self._env.name,
            item_id=task.item_id,
            item=task.item,
            seed=recorded.seed,
            group_seed=task.group_seed(self._env.config.seed),
            sandbox=cast("Any", None),
            fresh_sandbox=cast("Any", None),
            messages=recorded.prompt,
            judge_model=self._judge(task, recorded.judge_calls, refuse, calls),
            refuse=refuse,
        )

    async def _scored(self, recorded: Trajectory, ctx: RecordedContext, calls: HookCalls) -> Trajectory:
        """Each turn as it was then, in order, and then the whole."""
        scoring = self._new_scoring(ctx.item, ctx, calls.hook)
        hooks = RolloutHooks(self._env, ctx, calls)
        turns = [replace(turn, trained=True) for turn in recorded.turns]
        for index, turn in enumerate(turns):
            if turn.kind == "act":  # a summary is said to nobody
                ctx.see((*ctx.messages, *turn.messages))
            ctx.metrics.update(turn.noted)
            if index == len(turns) - 1:
                ctx.end_reason = recorded.end_reason
            await scoring.on_turn(turn)
            turns[index] = await hooks.marked(turn)
        ctx.is_over = True
        bare = replace(recorded, turns=tuple(turns), rewards=None, metrics={}, judge_calls=())
        rewards = await scoring.finish(bare)
        # What is noted after the rewards, and what older records do not say the origin of.
        metrics = {**recorded.metrics, **checked_metrics(ctx)}
        return bare.with_rewards(rewards, metrics, tuple(ctx.judge_model.calls))

    def _judge(
        self,
        task: GroupTask,
        recorded: Sequence[JudgeCall],
        refuse: Callable[[str], NoReturn],
        calls: HookCalls,
    ) -> AskedModel:
        judge = self._env.asked_model("judge", task.item, calls)
        return recorded_judge(judge, recorded, refuse, has_script="judge" in self._env.scripted_roles())
