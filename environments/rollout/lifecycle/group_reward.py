"""The part of each outcome that compares siblings, asked of `score_group` once their rollouts are over."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from environments.credit.crediting import ANY_GROUP, comparable
from environments.policy.second_models import AskedModel
from environments.rewards.reward_context import GroupContext
from environments.rollout.boundary import failure_of, raised_by_user
from environments.rollout.containment.hook_calls import HookCalls
from environments.rollout.containment.user_code import InFlight, Watch
from environments.rollout.hooks import Hooks, writes
from environments.rollout.items.tasks import GroupTask
from environments.rollout.lifecycle.env_lifecycle import Lifecycle
from environments.trajectory import Trajectory, TrajectoryGroup
from environments.turn_level_reward import bounded_reward, optional_reward, raw_parts, reward_list
from tools.errors import AgentCausedError, NoModelError, RewardError

NewJudge = Callable[[HookCalls], AskedModel]

_PART = "group"
"""Its name among the parts of an outcome; named parts of its own are `group.NAME`."""

logger = logging.getLogger(__name__)


def has_group_reward(env: Hooks) -> bool:
    """Whether the environment writes `score_group`."""
    return writes(env, "score_group")


async def with_group_reward(
    env: Lifecycle, task: GroupTask, group: TrajectoryGroup, watch: Watch, judge: NewJudge | None = None
) -> TrajectoryGroup:
    """The group with what `score_group` gives its trajectories; where that breaks, with the error alone.

    It is not asked about those that the agent broke; none has a part where a text of the agent's makes the
    judge's answer unusable.

    `judge` is the model to ask; `None`: the rollouts' judge.

    Raises:
        NoModelError: it asks a judge that has neither server nor script.
    """
    whole = [each for each in group.trajectories if each.agent_caused is None]
    if not has_group_reward(env) or not whole:
        return group
    task = task.for_rollout()
    in_flight = InFlight(item_id=task.item_id, sibling=whole[0].sibling)
    with watch(in_flight), env.hook_calls(in_flight) as calls:
        ctx = GroupContext(
            env=env.name,
            item_id=task.item_id,
            item=task.item,
            group_seed=task.group_seed(env.config.seed),
            judge_model=env.asked_model("judge", task, calls) if judge is None else judge(calls),
        )
        where = f"environment {env.name!r}, item {task.item_id!r}: score_group"
        try:
            given = await calls.hook("score_group", env.score_group, ctx.item, tuple(whole), ctx)
            # Reading it runs code of theirs, too.
            compared = await calls.hook("score_group", _with_parts, group, given, where)
        except NoModelError:
            raise  # no other group would be judged either
        except Exception as error:  # noqa: BLE001  # as in a rollout: recorded, never a number
            cause = raised_by_user(error)
            if isinstance(cause, AgentCausedError):  # no sibling may refuse the others
                logger.warning("%s gave no part: %s", where, cause)
                compared = group
            else:
                broken = failure_of(cause, sibling=0, turns=0)
                logger.log(env.met_kinds.level(broken.kind), "%s broke\n%s", where, broken.traceback)
                compared = replace(group, error=f"score_group broke: {broken.error}")
        profile = group.profile or calls.profile  # that of a record is of the run that rolled out
        return replace(compared, judge_calls=tuple(ctx.judge_model.calls), profile=profile)


def not_compared(env: Hooks, group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """A group that fails before it is compared; `credit`, which asks no hook, cannot settle that either."""
    if not has_group_reward(env) or comparable(group, ANY_GROUP)[1] is None:
        return group
    return replace(group, error=f"{reason} (score_group was not asked)")


def _with_parts(group: TrajectoryGroup, given: Any, where: str) -> TrajectoryGroup:
    if given is None:
        return group
    whole = [each for each in group.trajectories if each.agent_caused is None]
    entries = iter(reward_list(given, len(whole), where, each="sibling"))
    trajectories = tuple(
        each if each.agent_caused else _with_part(each, next(entries), f"{where}, sibling {each.sibling}")
        for each in group.trajectories
    )
    return replace(group, trajectories=trajectories)


def _with_part(trajectory: Trajectory, entry: Any, where: str) -> Trajectory:
    rewards = trajectory.rewards
    part, named = optional_reward(entry, where)
    if part is None or rewards is None:
        return trajectory
    parts = {f"{_PART}.{name}": value for name, value in named.items()} or {_PART: part}
    rewards = replace(
        rewards,
        outcome=bounded_reward((rewards.outcome or 0.0) + part, f"{where}: the sum with the outcome"),
        score=bounded_reward((rewards.score or 0.0) + part, f"{where}: the sum with the score"),
        outcome_components=_joined(rewards.outcome_parts, parts, where),
        outcome_raw={**rewards.outcome_raw, **{f"{_PART}.{n}": v for n, v in raw_parts(entry).items()}},
        group=part,
    )
    return replace(trajectory, rewards=rewards)


def _joined(before: Mapping[str, float], parts: Mapping[str, float], where: str) -> dict[str, float]:
    if taken := sorted(before.keys() & parts.keys()):
        raise RewardError(f"{where}: the outcome has a part named {taken[0]!r} already; name it otherwise")
    return {**before, **parts}
