"""Groups whose credit is known, to find out whether a trainer takes its step.

Each is hard in a way that trainers get wrong: a mean over siblings that are not there, a turn without a
reward, turns whose lengths differ a lot, a conversation that was condensed and so has several token rows,
and one that is longer than trainers expect.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext as unwatched
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from environments.base_env import AgentEnv
from environments.credit import credited
from environments.rollout.containment.hook_calls import Watch
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import (
    NOT_SAMPLED,
    CreditedGroup,
    Failure,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

VOCABULARY = 64
"""Every id is below this."""
GROUP_SIZE = 4
LONG = 3_000
"""Tokens that a long row has and others have not, so that trainers cut it or leave it out."""


def dropped_sibling() -> CreditedGroup:
    """Three siblings of four."""
    whole = _group("dropped", [[[3, 2]], [[2, 4, 2]], [[3]]], [[0.5, 1.0], [0.0, 0.25, 1.0], [0.75]])
    failure = Failure(sibling=3, stop_reason=None, error="RuntimeError: dropped", traceback="", turns=0)
    return _credited(replace(whole, failures=(failure,)))


def unscored_turns() -> CreditedGroup:
    """Turns without a reward still receive what follows."""
    rewards = [[None, 1.0], [0.5, None, 0.0], [None, None, 1.0], [0.25, None]]
    return _credited(_group("unscored", [[[2, 3]], [[3, 1, 2]], [[2, 2, 2]], [[4, 1]]], rewards))


def unequal_lengths(*, heard: int = 2) -> CreditedGroup:
    """Turns of 1 and of 25 tokens, in siblings of one turn to five; `heard`: between those of the first."""
    lengths = [[[1, 25]], [[25]], [[1, 1, 25, 2, 1]], [[12, 1]]]
    rewards = [[1.0, 0.0], [0.5], [0.0, 0.5, 0.0, 1.0, 0.25], [0.0, 1.0]]
    return _credited(_group("unequal", lengths, rewards, heard={(0, 0): heard}))


def condensed_context() -> CreditedGroup:
    """One trajectory was condensed, and goes on in a second row after a summary; one sibling was dropped."""
    lengths = [[[3, 2], [2, 4]], [[2, 2]], [[5]]]
    rewards = [[0.5, None, 0.25, 1.0], [0.0, 1.0], [0.5]]
    return _credited(_group("condensed", lengths, rewards, summary=(0, 1)))


CANARIES: Mapping[str, Callable[[], CreditedGroup]] = {
    "dropped sibling": dropped_sibling,
    "unscored turns": unscored_turns,
    "unequal lengths": unequal_lengths,
    "condensed context": condensed_context,
}
"""Every canary by what is hard in it; none has more than `GROUP_SIZE` token rows."""


PROBED = {**CANARIES, "unequal lengths": partial(unequal_lengths, heard=LONG)}
"""What a trainer is probed with."""


class CanaryEnv(AgentEnv):
    """Each item is a canary; no rollout happens. For adapters that open environments."""

    name = "canary"
    sandbox = "none"
    groups: Mapping[str, Callable[[], CreditedGroup]] = CANARIES
    """By the ids of their items."""

    def load_items(self) -> list[Any]:
        """One for each group."""
        return [{"id": name} for name in self.groups]

    def format_prompt(self, item: Any) -> str:
        """Not shown to any model."""
        return item["id"]

    def compute_reward(self, item: Any, trajectory: Trajectory, ctx: Any) -> float:
        """Never called."""
        return 0.0

    async def run_group(
        self, task: GroupTask, size: int | None = None, *, watch: Watch = unwatched
    ) -> CreditedGroup:
        """The canary, whatever size is asked for."""
        return self.groups[task.item_id]()


def _credited(group: TrajectoryGroup) -> CreditedGroup:
    return credited(group, "turn_return", policy="canary")


def _group(
    name: str,
    lengths: Sequence[Sequence[Sequence[int]]],  # sampled tokens, [trajectory][row][turn]
    rewards: Sequence[Sequence[float | None]],
    *,
    summary: tuple[int, int] | None = None,
    heard: Mapping[tuple[int, int], int] = MappingProxyType({}),
) -> TrajectoryGroup:
    """Siblings with random tokens, the same for each name; `heard`: tokens after a turn, 2 unless given."""
    rng = random.Random(name)
    trajectories: list[Trajectory] = []
    for sibling, (rows, earned) in enumerate(zip(lengths, rewards, strict=True)):
        token_rows: list[TokenRow] = []
        turns: list[Turn] = []
        for row, sizes in enumerate(rows):
            tokens = _ids(rng, 3)
            logprobs = [NOT_SAMPLED] * len(tokens)
            for size in sizes:
                span = Span(row=row, start=len(tokens), end=len(tokens) + size)
                is_summary = summary == (sibling, len(turns))
                turns.append(
                    Turn(
                        index=len(turns),
                        kind="summary" if is_summary else "act",
                        message=Message(role="assistant", content="said"),
                        replies=() if is_summary else (Message(role="user", content="and then?"),),
                        span=span,
                    )
                )
                between = heard.get((sibling, len(turns) - 1), 2)
                tokens += [*_ids(rng, size), *_ids(rng, between)]
                logprobs += [*(-rng.uniform(0.1, 4.0) for _ in range(size)), *[NOT_SAMPLED] * between]
            token_rows.append(TokenRow(token_ids=tuple(tokens), logprobs=tuple(logprobs)))
        trajectories.append(
            Trajectory(
                item_id=name,
                sibling=sibling,
                prompt=(Message(role="user", content="go"),),
                turns=tuple(turns),
                rows=tuple(token_rows),
                rewards=Rewards(turns=tuple(earned), score=sum(each or 0.0 for each in earned)),
            )
        )
    return TrajectoryGroup(
        group_id=f"canary-{name}", env="canary", item_id=name, trajectories=tuple(trajectories)
    )


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, VOCABULARY) for _ in range(count)]
