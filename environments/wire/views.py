"""Views of a group's credit: the rows for each kind of trainer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, cast

from environments.trajectory import NOT_SAMPLED, CreditedGroup
from environments.wire.credited_rows import CreditedRow, credited_rows, mask_of, span_to_train
from environments.wire.training_rows import Columns, RowGroup, TrainingRow, check_rows, columns_of

_OF_VERSIONS = ("weight_versions", "sibling")

TOKENS_PER_TURN = 1024
"""Default divisor: the default of `max_tokens_per_turn`."""

Divisor = int | Literal["own_length"]
"""Divisor of trained tokens for scaling scores, constant in a run.

`own_length` does not scale, so a turn weighs 1/its own length, which the policy chooses: this prefers short
turns at positive and long turns at negative advantages.
"""

PrefixWeighting = Literal["once", "repeated"]
"""Score of the row "up to turn K" of `prefix_rows`.

`once`: A_K - A_(K+1), and A_K in the last row of a token row, so turn j gets A_j in sum. `repeated`: A_K, so
turn j gets A_j plus all later advantages, as published, which is biased.
"""


def every_row(credited: CreditedGroup) -> RowGroup:
    rows = list(credited_rows(credited))
    known = all(row.logprobs is not None for row in rows)
    return RowGroup(
        rows=tuple(
            TrainingRow(
                tokens=row.tokens,
                mask=row.mask,
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
    """Return the view for the trajectory API: a score per row and advantages per token.

    A group without turn rewards and branches is plain scalar GRPO data, with `weight_versions` if known.
    """
    group = every_row(credited)
    trajectories = credited.group.trajectories
    if any(t.trunk is not None or (t.rewards and t.rewards.turns is not None) for t in trajectories):
        return group
    rows: list[TrainingRow] = []
    for row in group.rows:
        override = {name: value for name, value in (row.override or {}).items() if name in _OF_VERSIONS}
        rows.append(replace(row, advantages=None, override=override or None))
    return RowGroup(rows=tuple(rows), plain=True)


def binary_masks(credited: CreditedGroup, *_: object) -> list[RowGroup]:
    """Return the view for trainers that read `advantages` per token and masks of 0 and 1 (verl's recipe).

    Advantages are always present, since these trainers use no other credit.
    """
    return [replace(every_row(credited), binary_masks=True)]


def turn_rows(
    credited: CreditedGroup, divisor: Divisor = TOKENS_PER_TURN, _: PrefixWeighting = "once"
) -> list[RowGroup]:
    """Return the view for trainers that read only `scores`: one row per turn, each in a separate group.

    A row contains everything up to the turn, which alone is unmasked. Atropos' example trainer keeps the
    score of a one-row group and averages over its trained tokens. So a score is the turn's advantage times
    its tokens over `divisor`, and the step is the policy gradient Σ A ∇log π over `divisor` and the batch's
    rows.
    """
    weighted = (
        (_cut_after_turn(row, turn, alone=True), advantage)
        for row in credited_rows(credited)
        for turn, advantage in _turns_to_train(row)
    )
    return _separate_groups(credited, weighted, divisor)


def prefix_rows(
    credited: CreditedGroup, divisor: Divisor = TOKENS_PER_TURN, weighting: PrefixWeighting = "once"
) -> list[RowGroup]:
    """Return a row "up to turn K" per turn, with all its trained turns unmasked, scored by `weighting`.

    The idea of verifiers' issue 34. A turn is trained in every row that contains it; with `once`, the step
    equals that of `turn_rows`. Scores are scaled by all trained tokens of the row.
    """
    weighted = (
        (_cut_after_turn(row, turn, alone=False), advantage - later if weighting == "once" else advantage)
        for row in credited_rows(credited)
        for (turn, advantage), (_, later) in pairwise([*_turns_to_train(row), (-1, 0.0)])
    )
    return _separate_groups(credited, weighted, divisor, prefix_weighting=weighting)


def _one_group(credited: CreditedGroup, *_: object) -> list[RowGroup]:
    return [token_advantages(credited)]


VIEWS: Mapping[str, Callable[..., Sequence[RowGroup]]] = {
    "token_advantages": _one_group,
    "binary_masks": binary_masks,
    "turn_rows": turn_rows,
    "prefix_rows": prefix_rows,
}
"""Views by name; call `VIEWS[name](credited, divisor, weighting)`."""


def _separate_groups(
    credited: CreditedGroup, weighted: Iterable[tuple[CreditedRow, float]], divisor: Divisor, **said: object
) -> list[RowGroup]:
    groups: list[RowGroup] = []
    for index, (row, weight) in enumerate(weighted):
        trained = sum(span.end - span.start for span in map(span_to_train, row.turns))
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


def _turns_to_train(row: CreditedRow) -> Iterator[tuple[int, float]]:
    spans = map(span_to_train, row.turns)
    for index, (span, advantage) in enumerate(zip(spans, row.turn_advantages, strict=True)):
        if span.end > span.start:
            yield index, advantage


def _cut_after_turn(row: CreditedRow, index: int, *, alone: bool) -> CreditedRow:
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
        mask=mask_of(tokens, list(map(span_to_train, row.turns[first : index + 1]))),
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
        "turn_spans": [[span.start, span.end] for span in map(span_to_train, row.turns)],
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


_EVERY_COLUMN = (
    "tokens", "masks", "scores", "advantages", "ref_logprobs", "messages", "generation_params",
    "inference_logprobs", "group_overrides", "overrides", "images",
)  # fmt: skip


def columns_in(
    view: str, credited: CreditedGroup, divisor: Divisor, weighting: PrefixWeighting = "once"
) -> list[Columns]:
    groups = VIEWS[view](credited, divisor, weighting)
    for group in groups:
        check_rows(group)
    return [columns_of(group) for group in groups]


def list_scores(credited: CreditedGroup) -> Columns:
    """Return every column; with turn rewards, `scores` has a list per row."""
    columns: Columns = dict.fromkeys(_EVERY_COLUMN) | columns_of(every_row(credited))
    scores = [
        score if override["turn_rewards"] is None else override["turn_rewards"]
        for score, override in zip(columns["scores"], columns["overrides"] or (), strict=True)
    ]
    return columns | {"scores": scores}
