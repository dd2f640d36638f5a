"""Canaries: groups with known credit, each hard in a way that trainers get wrong.

A sibling is missing from the mean, a turn has no reward, turns differ a lot in length, a condensed
conversation has several token rows, and one row is longer than trainers expect.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext as unwatched
from dataclasses import replace
from functools import partial
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
GROUP_SIZE = 4
LONG = 3_000
"""Token count that only the long row exceeds: trainers cut it or leave it out."""


_credit = partial(credited, estimator="turn_return", policy="canary")


def make_dropped_sibling() -> CreditedGroup:
    whole = _group("dropped", [[[3, 2]], [[2, 4, 2]], [[3]]], [[0.5, 1.0], [0.0, 0.25, 1.0], [0.75]])
    failure = Failure(sibling=3, stop_reason=None, error="RuntimeError: dropped", traceback="", turns=0)
    return _credit(replace(whole, failures=(failure,)))


def make_unscored_turns() -> CreditedGroup:
    """Return turns without rewards, which still receive the rewards after them."""
    rewards = [[None, 1.0], [0.5, None, 0.0], [None, None, 1.0], [0.25, None]]
    return _credit(_group("unscored", [[[2, 3]], [[3, 1, 2]], [[2, 2, 2]], [[4, 1]]], rewards))


def make_unequal_lengths(*, reply_tokens: int = 2) -> CreditedGroup:
    """Return turns of 1 and of 25 tokens; `reply_tokens` lie between the first two turns."""
    lengths = [[[1, 25]], [[25]], [[1, 1, 25, 2, 1]], [[12, 1]]]
    rewards = [[1.0, 0.0], [0.5], [0.0, 0.5, 0.0, 1.0, 0.25], [0.0, 1.0]]
    return _credit(_group("unequal", lengths, rewards, first_reply=reply_tokens))


def make_condensed_context() -> CreditedGroup:
    lengths = [[[3, 2], [2, 4]], [[2, 2]], [[5]]]
    rewards = [[0.5, None, 0.25, 1.0], [0.0, 1.0], [0.5]]
    return _credit(_group("condensed", lengths, rewards, summary=(0, 1)))


CANARIES: Mapping[str, Callable[[], CreditedGroup]] = {
    "dropped sibling": make_dropped_sibling,
    "unscored turns": make_unscored_turns,
    "unequal lengths": make_unequal_lengths,
    "condensed context": make_condensed_context,
}
"""No canary has more than `GROUP_SIZE` token rows."""
PROBED = {**CANARIES, "unequal lengths": partial(make_unequal_lengths, reply_tokens=LONG)}


class CanaryEnv(AgentEnv):
    name = "canary"
    sandbox = "none"
    groups: Mapping[str, Callable[[], CreditedGroup]] = CANARIES

    def load_items(self) -> list[Any]:
        return [{"id": name} for name in self.groups]

    def format_prompt(self, item: Any) -> str:
        return item["id"]

    def compute_reward(self, item: Any, trajectory: Trajectory, ctx: Any) -> float:
        return 0.0

    async def run_group(
        self, task: GroupTask, size: int | None = None, *, watch: Watch = unwatched
    ) -> CreditedGroup:
        return self.groups[task.item_id]()


def _group(
    name: str,
    lengths: Sequence[Sequence[Sequence[int]]],  # sampled tokens, [trajectory][row][turn]
    rewards: Sequence[Sequence[float | None]],
    *,
    summary: tuple[int, int] | None = None,
    first_reply: int = 2,
) -> TrajectoryGroup:
    """Make siblings with tokens drawn by `name`; `first_reply` is the reply tokens after the first turn."""
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
                between = first_reply if (sibling, len(turns)) == (0, 1) else 2
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
