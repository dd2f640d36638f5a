"""A condensed trajectory on the wire: one row for each (c_k, o_k), one advantage for all, no token twice."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit.crediting import credited
from environments.record.group_line import decode_group, encode_group
from environments.rewards.rubric import context_efficiency
from environments.testing import group_of
from environments.trajectory import IGNORED, NOT_SAMPLED, Condensed, Kept, Message, Rewards, Span, TokenRow
from environments.wire.credited_rows import credited_rows
from environments.wire.views import every_row, turn_rows
from tests.environments.credit.test_golden import REFERENCE

GOLDEN = REFERENCE / "grpo_multiturn_condensation.json"


def golden_cases():
    return [pytest.param(case, id=case["name"]) for case in json.loads(GOLDEN.read_text())["cases"]]


def trajectory_of(case):
    """One row for each (c_k, o_k), as the case counts them; its reward is what the rows say."""
    sizes = [(turn["context_tokens"], turn["token_span"]) for turn in case["turns"]]
    (bare,) = group_of(None, outcomes=[0.0], lengths=[[1] * len(sizes)]).trajectories
    spans = [
        Span(row=row, start=context, end=context + end - start)
        for row, (context, (start, end)) in enumerate(sizes)
    ]
    rows = [
        TokenRow(
            token_ids=tuple(range(span.end)), logprobs=(NOT_SAMPLED,) * span.start + (-0.5,) * size_of(span)
        )
        for span in spans
    ]
    turns = [replace(turn, span=span) for turn, span in zip(bare.turns, spans, strict=True)]
    made = replace(bare, turns=tuple(turns), rows=tuple(rows))
    reward = context_efficiency(made, correct=case["correct"], well_formed=case["format_ok"])
    return replace(made, rewards=Rewards(outcome=reward, score=reward))


def size_of(span):
    return span.end - span.start


def groups_of(case):
    """The trajectories of each group, and where the case has them."""
    members = defaultdict(list)
    for position, trajectory in enumerate(case["inputs"]["trajectories"]):
        members[trajectory["group_id"]].append(position)
    for positions in members.values():
        trajectories = [trajectory_of(case["inputs"]["trajectories"][position]) for position in positions]
        yield positions, replace(group_of([]), trajectories=tuple(trajectories))


@pytest.mark.parametrize("case", golden_cases())
def test_rows_have_the_advantages_that_the_vector_has_on_one_sequence(case):
    params = {"norm_by_std": case["params"].get("norm_adv_by_std_in_grpo", True), "singleton": "raw"}
    compared = 0
    for positions, group in groups_of(case):
        done = credited(group, "grpo_multiturn", policy="golden", params=params)
        by_trajectory = defaultdict(list)
        for row in credited_rows(done):
            by_trajectory[row.trajectory.sibling, id(row.trajectory)].append(row)
        for position, rows in zip(positions, by_trajectory.values(), strict=True):
            wanted = case["expected"]["per_token_advantages"][position]
            tolerance = {"rel": 1e-4, "abs": 1e-9}
            # c1 o1 c2 o2 … is one sequence there.
            joined = [advantage for row in rows for advantage in row.advantages]
            assert joined == pytest.approx(wanted[: len(joined)], **tolerance)
            assert not any(wanted[len(joined) :])
            shares = {advantage for row in rows for advantage in row.turn_advantages}
            assert len(shares) == 1
            compared += 1
    assert compared == len(case["inputs"]["trajectories"])


@st.composite
def condensed_groups(draw):
    """Groups whose rows begin anew wherever a condenser was at work, with summaries among their turns."""
    kinds = draw(
        st.lists(
            st.lists(st.sampled_from(["act", "summary"]), max_size=5).map(lambda row: [*row, "act"]),
            min_size=1,
            max_size=3,
        )
    )
    group = group_of([[None if kind == "summary" else 0.5 for kind in row] for row in kinds], kinds=kinds)
    fresh = iter(range(1000, 99_999))
    return replace(group, trajectories=tuple(_in_rows(each, draw, fresh) for each in group.trajectories))


PUT_IN = Message(role="user", content="Summary of the conversation so far: 7 is the number.")


def _in_rows(trajectory, draw, fresh):
    """Its turns in rows: one that goes on, or a new one with a shorter context; no token is sampled twice."""
    turns, rows, ids = [], [], []
    context = None
    for turn in trajectory.turns:
        begins = bool(rows) and draw(st.booleans())
        if begins or not rows:
            ids = []
            rows.append(ids)
        if begins:
            context = (Kept(start=0, end=1), PUT_IN)
        ids += [7] * draw(st.integers(1, 3))
        start = len(ids)
        ids += [next(fresh) for _ in range(draw(st.integers(1, 3)))]
        made = Condensed(cause="fit_context", tokens_before=99, tokens_after=start) if begins else None
        turns.append(
            replace(
                turn,
                span=Span(row=len(rows) - 1, start=start, end=len(ids)),
                context=context,
                condensed=made,
                fork="history: fit_context" if begins else None,
                trained=draw(st.booleans()),
            )
        )
    made_rows = tuple(TokenRow(token_ids=tuple(ids), logprobs=(-0.5,) * len(ids)) for ids in rows)
    return replace(trajectory, turns=tuple(turns), rows=made_rows)


def trained_tokens(group):
    """Every sampled token of trained turns."""
    return sorted(
        token
        for each in group.trajectories
        for turn in each.turns
        if turn.trained
        for token in each.rows[turn.span.row].token_ids[turn.span.start : turn.span.end]
    )


def unmasked(rows):
    return sorted(token for row in rows for token in row.mask if token != IGNORED)


@given(condensed_groups())
def test_rows_cover_each_sampled_token_once_also_from_a_record(group):
    done = credited(group, "turn_return", policy="nobody")
    again = decode_group(encode_group(done), Path("r.jsonl"), 1)

    assert again == done
    assert unmasked(every_row(again).rows) == trained_tokens(group)
    assert unmasked(row for view in turn_rows(again) for row in view.rows) == trained_tokens(group)
