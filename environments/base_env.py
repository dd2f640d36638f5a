"""`AgentEnv`: item → rollouts → rewards → group → advantages.

It is the only place that knows generation, reward and credit; none of them knows another.
"""

import asyncio
import inspect
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import NoReturn, Self

from environments.config import AgentEnvConfig, ModelServerConfig, ServerConfig, check_config
from environments.credit import comparable, credited
from environments.policy.base import Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.boundary import Boundary
from environments.rollout.branching import count_trunks
from environments.rollout.containment.hook_calls import HookCalls, InFlight, Watch
from environments.rollout.hooks import Hooks, Item
from environments.rollout.items.item_json import item_for_record, item_hash
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.hook_checks import refuse_no_reward
from environments.rollout.lifecycle.lifecycle import Lifecycle
from environments.rollout.lifecycle.parts import build, with_own_dataset
from environments.rollout.lifecycle.rollout_hooks import (
    NewJudge,
    not_compared,
    open_rollout,
    with_group_reward,
)
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup, Turn
from environments.turn_level_reward import NewScoring, scalar_scoring
from tools.errors import ConfigError
from tools.registry import Toolset
from tools.sandbox.base import Sandbox, record_of

_LOG = logging.getLogger(__name__)


class AgentEnv(Hooks):
    """Base class of environments: an agent acts with tools, optionally in a sandbox, and the world may reply.

    Set `name` and `tools`; write `format_prompt` and a reward; other `Hooks` have defaults. In your own loop:
    `async with MyEnv(config, policy=…) as env: group = await env.run_group(env.tasks()[0])`.
    """

    _opened: AbstractAsyncContextManager[Self]

    def __init__(
        self,
        config: AgentEnvConfig | None = None,
        servers: Sequence[ModelServerConfig] | None = None,
        *,
        policy: Policy | None = None,
    ) -> None:
        """Check the class and its settings; nothing is opened yet.

        Args:
            config: the settings; unset: those of the class.
            servers: model servers of the policy, the judge, the user or the summariser; those without a
                `base_url` are ignored. Unset: those of the class.
            policy: used instead of servers. With neither, the scripted agent plays.

        Raises:
            UsageError: if the class lacks something, or a setting cannot work.
        """
        # Set first: class attributes may be properties that read it.
        given = self.config_init()[0] if config is None else config
        self.config = with_own_dataset(check_config(given, type(self)), type(self))
        parts = build(self, self.scoring, self.config, servers, policy)
        self.lifecycle = Lifecycle(self, parts, self.open_sandbox)

    # From item to credit.

    async def run_group(
        self, task: GroupTask, size: int | None = None, *, watch: Watch = nullcontext
    ) -> CreditedGroup:
        """Roll an item out `size` times, or `group_size`, and give every turn its advantage.

        With `--env.branches` the size counts branches.

        Raises:
            RunError: if too many calls of the environment's code hang; a rollout that breaks is a
                `Failure`.
            UsageError: if the environment is not open.
        """
        size = self.config.group_size if size is None else size
        may_branch = len(task.rolled_out) < size and not self.lifecycle.is_evaluation
        trunks = count_trunks(size, self.config.branches) if may_branch else size
        group = await self.rollout_group(task, trunks, watch=watch)
        if trunks < size:
            group = await self._add_branches(task, group, trunks, watch)
        return self.credit(await self.compare(task, group, watch))

    async def rollout_group(
        self, task: GroupTask, size: int, *, watch: Watch = nullcontext
    ) -> TrajectoryGroup:
        """Roll out `size` siblings concurrently; one that breaks becomes a `Failure`.

        Siblings that the task has already are included.
        """
        life = self.lifecycle
        life.refuse_rollouts_before_setup()
        life.refuse_abandoned()
        item, identity = item_for_record(task.item), item_hash(task.item)
        left = range(len(task.rolled_out), size)
        results = [*task.rolled_out, *await self._roll_out(task, dict.fromkeys(left), watch)]
        return TrajectoryGroup(
            group_id=uuid.uuid4().hex,
            env=self.name,
            item_id=task.item_id,
            epoch=task.epoch,
            item=item,
            item_hash=identity,
            trajectories=tuple(result for result in results if isinstance(result, Trajectory)),
            failures=tuple(result for result in results if isinstance(result, Failure)),
        )

    async def _add_branches(
        self, task: GroupTask, group: TrajectoryGroup, trunks: int, watch: Watch
    ) -> TrajectoryGroup:
        """Play the branches of each trunk that chose a branch turn."""
        others = self.config.branches - 1
        of_sibling = {
            trunks + trunk.sibling * others + number: trunk
            for trunk in group.trajectories
            if trunk.branch_turn is not None
            for number in range(others)
        }
        ended = await self._roll_out(task, of_sibling, watch)
        played = (each for each in ended if isinstance(each, Trajectory))
        failed = (each for each in ended if isinstance(each, Failure))
        lost = (replace(each, trunk=of_sibling[each.sibling].sibling) for each in failed)
        return replace(group, trajectories=(*group.trajectories, *played), failures=(*group.failures, *lost))

    async def _roll_out(
        self, task: GroupTask, trunk_of: Mapping[int, Trajectory | None], watch: Watch
    ) -> list[Trajectory | Failure]:
        """Play siblings concurrently, each from the start or as a branch of its trunk."""
        boundary = Boundary(f"{self.name}, item {task.item_id}", self.lifecycle.failure_kinds)
        async with asyncio.TaskGroup() as siblings:
            rollouts = {
                sibling: siblings.create_task(self._sibling(task, sibling, watch, boundary, trunk))
                for sibling, trunk in trunk_of.items()
            }
        return [boundary.result(rollout, sibling) for sibling, rollout in rollouts.items()]

    async def _sibling(
        self, task: GroupTask, sibling: int, watch: Watch, boundary: Boundary, trunk: Trajectory | None
    ) -> Trajectory | Failure:
        turns: list[Turn] = []
        async with self.lifecycle.slots.acquire():
            in_flight = InFlight(item_id=task.item_id, epoch=task.epoch, sibling=sibling)
            with watch(in_flight), self.lifecycle.hook_calls(in_flight) as calls:
                try:
                    trajectory = await self.rollout(task.for_rollout(), sibling, turns, calls, trunk)
                    return replace(trajectory, profile=calls.profile)
                except BaseException as error:  # noqa: BLE001  # the one broad except: recorded, never scored
                    failure = boundary.failure_of(error, sibling, turns=len(turns), asked=calls.asked)
                    return replace(failure, profile=calls.profile)

    async def rollout(
        self,
        task: GroupTask,
        sibling: int,
        turns: list[Turn],
        calls: HookCalls,
        trunk: Trajectory | None = None,
    ) -> Trajectory:
        """Open a rollout, add its turns to `turns` as they are scored, then score it and close it."""
        started = monotonic()
        async with open_rollout(self.lifecycle, task, sibling, calls, trunk) as hooks:
            ctx, loop = hooks.ctx, await hooks.make_loop(task)
            broken = await hooks.play(loop, turns)
            result = loop.result(turns, ctx.turn_scores)
            ctx.turn_scores = result.scores
            # Without room to request the branch turn, branches could only repeat the trunk.
            is_unplayed = trunk is None and result.had_no_room and hooks.branch_turn == len(turns)
            trajectory = Trajectory(
                item_id=task.item_id,
                sibling=sibling,
                trunk=None if trunk is None else trunk.sibling,
                branch_turn=None if is_unplayed else hooks.branch_turn,
                seed=ctx.seed,
                prompt=result.prompt,
                turns=tuple(result.turns),
                rows=result.rows,
                tools=result.tools,
                stop_reason=result.stop_reason,
                end_reason=ctx.end_reason,
                agent_caused=broken,
                agent=result.agent,
                user_calls=tuple(ctx.user_model.calls),
                summariser_calls=tuple(ctx.summariser_model.calls),
                other_calls=result.other_calls,
                exact=result.exact,
                sandbox=record_of(ctx.sandbox),
                wall_s=monotonic() - started,
            )
            return ctx.files.add_to(await hooks.score(trajectory), scored=[turn.index for turn in turns])

    async def compare(
        self, task: GroupTask, group: TrajectoryGroup, watch: Watch, judge: NewJudge | None = None
    ) -> TrajectoryGroup:
        """Return the comparable siblings, with the reward of `score_group` added to their outcomes."""
        parts = self.lifecycle.parts
        group, incomparable = comparable(group, parts.rules)
        if incomparable is not None:
            return not_compared(self, group, incomparable)
        return await with_group_reward(self.lifecycle, task, group, watch, judge)

    def credit(self, group: TrajectoryGroup) -> CreditedGroup:
        """Give every turn its advantage, unless too few siblings survived to compare."""
        parts = self.lifecycle.parts
        return credited(
            group,
            parts.estimator,
            policy=self.policy_name,
            preset=self.config.estimator_preset,
            params=parts.estimator_params,
            rules=parts.rules,
        )

    def withhold_stale(self, credited: CreditedGroup) -> CreditedGroup:
        """Return a finished group without credit for siblings that are older than `max_staleness`.

        Raises:
            ConfigError: if `max_staleness` is set, but no completion has named a version of the weights.
        """
        return self.lifecycle.weight_versions.withhold(credited)

    def scoring(self) -> NewScoring:
        """Return how rollouts are scored; `TurnLevelRewardMixin` overrides it."""
        refuse_no_reward(self)
        return scalar_scoring(self)

    # Open and close.

    @asynccontextmanager
    async def opened(
        self,
        *,
        evaluation: bool = False,
        waits: bool = False,
        notify: Callable[[str], None] = _LOG.info,
    ) -> AsyncGenerator[Self]:
        """Open the environment: load its items, and check everything that a rollout needs.

        Args:
            evaluation: load the evaluation items.
            waits: wait for model servers that do not answer yet.
            notify: receives a line for people when something takes long, such as pulling an image.

        Raises:
            UsageError: if there are no items, no isolation, no image or no model server, or it is open
                already.
            RunError: if a hook such as `setup` raised an error, which is the cause.
        """
        async with self.lifecycle.opened(evaluation=evaluation, waits=waits, notify=notify):
            await self.preflight(notify)
            yield self

    async def preflight(self, notify: Callable[[str], None] = _LOG.info) -> None:
        """Check image, isolation and policy now, rather than in every rollout.

        Raises:
            IsolationError: if no sandbox can be opened here.
            ConfigError: if an image or a model server is missing.
        """
        await self.lifecycle.preflight(notify)

    @asynccontextmanager
    async def loaded(self, *, evaluation: bool = False) -> AsyncGenerator[Self]:
        """Set up and load the items, without the checks for rollouts; raises as `opened` does."""
        async with self.lifecycle.loaded(evaluation=evaluation):
            yield self

    async def __aenter__(self) -> Self:
        opened = self.opened()
        await opened.__aenter__()
        self._opened = opened  # after entering: a second `async with` fails and must not replace it
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    @property
    def items(self) -> Sequence[Item]:
        """The items, in the order of `item_ids`. Raises ConfigError if the environment is not open."""
        return self.lifecycle.items

    @property
    def item_ids(self) -> Sequence[str]:
        return self.lifecycle.item_ids

    def tasks(self) -> list[GroupTask]:
        """Return the groups to roll out: every item once, or `total_steps` of them."""
        return self.lifecycle.tasks()

    def tasks_for_ever(self, first: int) -> Iterator[GroupTask]:
        """Repeat the groups of `tasks` without end, from group number `first` on."""
        return self.lifecycle.tasks_for_ever(first)

    def open_sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        """Open a fresh sandbox as specified by class and config."""
        return self.lifecycle.sandboxes.open()

    # Parts.

    @property
    def toolset(self) -> Toolset:
        return self.lifecycle.toolset

    @property
    def policy(self) -> Policy | None:
        return self.lifecycle.parts.policy

    @property
    def policy_name(self) -> str:
        return f"scripted:{self.config.scripted_skill:g}" if self.policy is None else self.policy.name

    @property
    def renderer(self) -> ChatMLRenderer:
        return self.lifecycle.parts.renderer

    @property
    def servers(self) -> tuple[ServerConfig, ...]:
        return self.lifecycle.parts.servers

    @property
    def estimator(self) -> str:
        return self.lifecycle.parts.estimator

    @classmethod
    def cli(cls) -> NoReturn:
        """Run the command line of this one environment: `python my_env.py process --env.group_size 4`."""
        caller = getattr(inspect.currentframe(), "f_back", None)
        if caller and caller.f_code.co_name == "<module>" and caller.f_globals["__name__"] != "__main__":
            raise ConfigError(f'write {cls.__name__}.cli() under `if __name__ == "__main__":`')
        import_module("turnwise.cli.main").main_for(cls)
        raise AssertionError("main_for ends the process")
