"""Views of a group's credit: the rows that a trainer gets, one view for each kind of trainer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, cast

from environments.trajectory import NOT_SAMPLED, CreditedGroup
from environments.wire.credited_rows import CreditedRow, credited_rows, mask_of, trained_span
from environments.wire.training_rows import RowGroup, TrainingRow

_OF_VERSIONS = ("weight_versions", "sibling")
"""What stands beside plain scores, where it is known."""

TOKENS_PER_TURN = 1024
"""Divisor of scores where none is set: the default of `max_tokens_per_turn`."""

Divisor = int | Literal["own_length"]
"""What a row's trained tokens are divided by, to scale its score, one constant for a run. `own_length`: not
scaled, so a turn weighs 1/its own length, which the policy chooses: short turns are preferred where the
advantage is positive, long ones where it is negative."""

PrefixWeighting = Literal["once", "repeated"]
"""What the row "up to turn K" of `prefix_rows` is scored with. `once`: with A_K - A_(K+1), in the last row of
its token row with A_K, so that what turn j gets from all rows that reach it adds up to A_j. `repeated`: with
A_K, so that it adds up to A_j and all later advantages: the idea as it was published, which is biased."""


def every_row(credited: CreditedGroup) -> RowGroup:
    """All that is known: every row with its trajectory's score, its credit, its names and rewards."""
    rows = list(credited_rows(credited))
    known = all(row.logprobs is not None for row in rows)
    return RowGroup(
        rows=tuple(
            TrainingRow(
                tokens=row.tokens,
                mask=row.mask,
                # `None` where nothing was scored: a row for people, which `check_rows` lets no trainer have.
                score=cast("float", row.trajectory.score),
                advantages=row.advantages,
                logprobs=row.logprobs if known else None,
                messages=row.messages,
                override=_override(credited, row, index),
            )
            for index, row in enumerate(rows)
        )
    )


def token_advantages(credited: CreditedGroup) -> RowGroup:
    """The view for the trajectory API: a scalar score per row, and per-token advantages.

    A group without turn rewards carries no advantages, and no overrides but `weight_versions` where they are
    known: it is plain scalar GRPO data.
    """
    group = every_row(credited)
    if any(t.rewards is not None and t.rewards.turns is not None for t in credited.group.trajectories):
        return group
    rows: list[TrainingRow] = []
    for row in group.rows:
        override = {name: value for name, value in (row.override or {}).items() if name in _OF_VERSIONS}
        rows.append(replace(row, advantages=None, override=override or None))
    return RowGroup(rows=tuple(rows), plain=True)


def binary_masks(credited: CreditedGroup, *_: object) -> list[RowGroup]:
    """The view for consumers that read `advantages` per token and take masks for 0 and 1.

    Every group carries the estimator's advantages, one without turn rewards, too: these consumers take no
    other credit, and fail on none. verl's recipe for Atropos is one of them.
    """
    return [replace(every_row(credited), binary_masks=True)]


def turn_rows(
    credited: CreditedGroup, divisor: Divisor = TOKENS_PER_TURN, _: PrefixWeighting = "once"
) -> list[RowGroup]:
    """The view for trainers that read only `scores`: one row per turn, each in a group of its own.

    A row is everything the model saw up to the turn, and the turn, which alone is unmasked. Atropos' example
    trainer keeps the score of a one-row group as it is, and averages a row over its trained tokens. So a
    score is the turn's advantage times its tokens over `divisor`: the step is the policy gradient
    Σ A ∇log π over `divisor` and the rows of the batch.
    """
    weighted = (
        (_ending_with(row, turn, alone=True), advantage)
        for row in credited_rows(credited)
        for turn, advantage in _trained(row)
    )
    return _each_alone(credited, weighted, divisor)


def prefix_rows(
    credited: CreditedGroup, divisor: Divisor = TOKENS_PER_TURN, weighting: PrefixWeighting = "once"
) -> list[RowGroup]:
    """N turns become N rows "up to turn K" with all trained turns unmasked, scored by `weighting`.

    The idea of verifiers' issue 34. A turn is trained in every row that reaches it; counted `once`, the step
    is that of `turn_rows`. Scores are scaled as there, by all trained tokens of the row.
    """
    weighted = (
        (_ending_with(row, turn, alone=False), advantage - later if weighting == "once" else advantage)
        for row in credited_rows(credited)
        for (turn, advantage), (_, later) in pairwise([*_trained(row), (-1, 0.0)])
    )
    return _each_alone(credited, weighted, divisor, prefix_weighting=weighting)


def _one_group(credited: CreditedGroup, *_: object) -> list[RowGroup]:
    return [token_advantages(credited)]


VIEWS: Mapping[str, Callable[..., Sequence[RowGroup]]] = {
    "token_advantages": _one_group,
    "binary_masks": binary_masks,
    "turn_rows": turn_rows,
    "prefix_rows": prefix_rows,
}
"""Every view by name: `VIEWS[name](credited, divisor, weighting)` gives what a trainer would see."""


def _each_alone(
    credited: CreditedGroup, weighted: Iterable[tuple[CreditedRow, float]], divisor: Divisor, **said: object
) -> list[RowGroup]:
    """Each row in a group of its own, scored such that a mean over its tokens gives each its weight."""
    groups: list[RowGroup] = []
    for index, (row, weight) in enumerate(weighted):
        trained = sum(span.end - span.start for span in map(trained_span, row.turns))
        shown = TrainingRow(
            tokens=row.tokens,
            mask=row.mask,
            score=weight if divisor == "own_length" else weight * trained / divisor,
            advantages=None,
            logprobs=row.logprobs,
            messages=row.messages,
            override=_override(credited, row, index) | {"score_divisor": divisor} | said,
        )
        groups.append(RowGroup(rows=(shown,)))
    return groups


def _trained(row: CreditedRow) -> Iterator[tuple[int, float]]:
    """The turns of a row that have tokens to train, each with its advantage."""
    spans = map(trained_span, row.turns)
    for index, (span, advantage) in enumerate(zip(spans, row.turn_advantages, strict=True)):
        if span.end > span.start:
            yield index, advantage


def _ending_with(row: CreditedRow, index: int, *, alone: bool) -> CreditedRow:
    """The row up to one of its turns, with only that turn unmasked or with every turn so far."""
    last = row.turns[index].span
    first = index if alone else 0
    start = last.start if alone else 0
    tokens = row.tokens[: last.end]
    logprobs = row.logprobs
    return replace(
        row,
        turns=row.turns[first : index + 1],
        messages=row.conversation.until(row.turns[index], row.turns[: index + 1]),
        tokens=tokens,
        mask=mask_of(tokens, list(map(trained_span, row.turns[first : index + 1]))),
        logprobs=None if logprobs is None else [NOT_SAMPLED] * start + logprobs[start : last.end],
        turn_advantages=row.turn_advantages[first : index + 1],
        advantages=row.advantages[: last.end],
    )


def _override(credited: CreditedGroup, row: CreditedRow, index: int) -> dict[str, Any]:
    rewards = row.trajectory.rewards
    by_turn = None if rewards is None else rewards.turns
    kinds = [turn.kind for turn in row.turns]
    versions = [turn.weight_version for turn in row.turns]
    override: dict[str, Any] = {
        "group_id": credited.group.group_id,
        "row": index,
        "turn_rewards": None if by_turn is None else [by_turn[turn.index] for turn in row.turns],
        "outcome": None if rewards is None else rewards.outcome,
        "turn_spans": [[span.start, span.end] for span in map(trained_span, row.turns)],
        "turn_advantages": row.turn_advantages,
    }
    if "summary" in kinds:
        override["turn_kinds"] = kinds
    if any(version is not None for version in versions):
        override |= {"weight_versions": versions, "sibling": row.trajectory.sibling}
    if any(turn.weight_spans for turn in row.turns):
        spans = [[[span.start, span.version] for span in turn.weight_spans] for turn in row.turns]
        override["weight_spans"] = spans
    return override
