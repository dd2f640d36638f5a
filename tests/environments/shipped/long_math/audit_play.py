"""Plays `long_math` for tests: the scripted agent by condenser and skill, or given messages one by one."""

from collections.abc import Sequence
from functools import cache

from environments.policy.scripted import Choice
from environments.rollout.items.tasks import GroupTask
from environments.shipped.long_math import LongMathEnv
from environments.shipped.long_math.env import LongMathConfig
from environments.shipped.long_math.ledgers import make_ledgers
from environments.trajectory import CreditedGroup, Message, Trajectory

SHORT = make_ledgers("train", seed=0, count=1, facts=3, stores=2)[0]
"""Three pages."""


class Given(LongMathEnv):
    """The agent writes what the test says; what is left at the end again and again."""

    written: Sequence[Message] = ()

    def scripted_choices(self, item, messages, tools, skill):
        done = sum(message.role == "assistant" for message in messages)
        return [Choice(probability=1.0, message=self.written[min(done, len(self.written) - 1)])]


async def play(*written: Message, item=SHORT, **settings: object) -> Trajectory:
    """One rollout of given messages; without a condenser, so that the agent can count them."""
    env = Given(LongMathConfig(**{"condenser": ["none"], "max_turns": 30, **settings}))
    env.written = written
    group = await env.rollout_group(GroupTask(item=item, item_id="item"), 1)
    assert group.failures == ()
    return group.trajectories[0]


_PLAYED: dict[tuple[object, ...], Sequence[CreditedGroup]] = {}


async def audited(condenser: str, skill: float, **settings: object) -> Sequence[CreditedGroup]:
    """Groups of the scripted agent, played once for all tests."""
    key = (condenser, skill, *sorted(settings.items()))
    if key not in _PLAYED:
        turns = 4 if condenser == "keep_last_turns" else None
        given = {"max_items": 3, "condenser": [condenser], "condenser_turns": turns, "scripted_skill": skill}
        given.update(settings)
        async with LongMathEnv(LongMathConfig(**given)) as env:
            _PLAYED[key] = [await env.run_group(task) for task in env.tasks()]
    return _PLAYED[key]


async def trajectories_of(condenser: str, skill: float, **settings: object) -> list[Trajectory]:
    """All of these groups."""
    groups = await audited(condenser, skill, **settings)
    assert all(group.group.failures == () for group in groups)
    return [trajectory for group in groups for trajectory in group.group.trajectories]


def is_solved(trajectory: Trajectory) -> bool:
    """Whether the answer was right."""
    return dict(trajectory.rewards.outcome_raw)["answer"] == 1.0


@cache
def whole_ledger() -> dict:
    """A ledger as the environment makes it."""
    return make_ledgers("train", seed=0, count=1, facts=24, stores=6)[0]
