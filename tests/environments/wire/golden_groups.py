"""Groups whose every view and post is kept in `golden/`, byte by byte.

    python -m tests.environments.wire.golden_groups     # writes the files anew

One that changes needs a reason. What changed since the first version: no column is `None`, the scores of
rows that are groups of their own are scaled by their tokens, and each row of a forked trajectory has its own
messages, with the rewards of its own turns. Posts with `advantages` are packed densely, forked ones without
as densely as their scores allow, and `prefix_rows` counts a turn once unless `repeated` is asked for.
"""

from dataclasses import replace
from pathlib import Path

import orjson

from environments.testing import group_of
from environments.trajectory import (
    NOT_SAMPLED,
    CreditedGroup,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from environments.wire.padding import is_longer_than
from environments.wire.payloads import Shape, pack, part_without, post_text
from environments.wire.training_rows import columns_of
from environments.wire.views import VIEWS, list_scores
from tools.calls import ToolCall, ToolResult

GOLDEN = Path(__file__).with_name("golden")


def _credited(group, advantages):
    return CreditedGroup(
        group=replace(group, group_id="g1", item_id="item"),
        advantages=advantages,
        policy="scripted:0.6",
        estimator="turn_return",
    )


def _row(ids, sampled):
    return TokenRow(
        token_ids=ids, logprobs=tuple(-0.125 if n in sampled else NOT_SAMPLED for n in range(len(ids)))
    )


def _forked():
    """Two trajectories; the history of the first was rewritten after its first turn, so it has two rows."""
    call = ToolCall(id="call_0", name="terminal", arguments='{"command": "écho"}')
    speech = Message(role="assistant", content="Schön.", reasoning="think", tool_calls=(call,))
    result = ToolResult(call_id="call_0", name="terminal", content="ok ✓")
    final = Message(role="assistant", content="done")
    prompt = (Message(role="system", content="Be brief."), Message(role="user", content="Count."))
    long = Trajectory(
        item_id="item",
        prompt=prompt,
        turns=(
            Turn(index=0, message=speech, tool_results=(result,), span=Span(row=0, start=2, end=5)),
            Turn(index=1, message=final, span=Span(row=1, start=3, end=3)),
            Turn(index=2, message=final, span=Span(row=1, start=4, end=6)),
        ),
        rows=(_row((10, 11, 12, 13, 14), {2, 3, 4}), _row((10, 15, 16, 17, 18, 19, 20), {4, 5})),
        rewards=Rewards(turns=(0.25, None, 1.0), outcome=0.5, score=1.75),
    )
    short = Trajectory(
        item_id="item",
        sibling=1,
        prompt=prompt,
        turns=(Turn(index=0, message=final, span=Span(row=0, start=1, end=4)),),
        rows=(_row((10, 21, 22, 23), {1, 2, 3}),),
        rewards=Rewards(turns=(-0.5,), score=-0.5),
    )
    return _credited(TrajectoryGroup(trajectories=(long, short)), ((0.5, 0.25, -1.5), (-0.75,)))


def _unknown_logprobs():
    group = group_of([[1.0, 2.0], [0.5]], lengths=[[2, 1], [3]])
    last = group.trajectories[-1]
    bare = replace(last, rows=tuple(replace(row, logprobs=None) for row in last.rows))
    return _credited(replace(group, trajectories=(group.trajectories[0], bare)), ((0.1, 0.2), (-0.3,)))


CASES = {
    "turn_rewards": _credited(
        group_of(
            [[1.0, None, 0.1], [0.5], [0.0, -2.0]],
            outcomes=[2.0, None, 0.0],
            lengths=[[1, 3, 2], [9], [2, 0]],
        ),
        ((1 / 3, -0.5, 1e-17), (1.0,), (0.0, -0.0)),
    ),
    "scalar": _credited(
        group_of(None, outcomes=[1.0, 0.0, 0.25], lengths=[[1], [2, 2], [5]]),
        ((0.5,), (-0.5, -0.5), (0.1,)),
    ),
    "forked": _forked(),
    "unknown_logprobs": _unknown_logprobs(),
}
SIZE = {name: len(each.group.trajectories) for name, each in CASES.items()}
SHAPES = {
    "whole": {},
    "padded": {"more": 2},
    "one_missing": {"more": 1},
    "shortened": {"more": 1, "max_row_tokens": 5},
    "binary_masks": {"view": "binary_masks", "more": 1, "max_row_tokens": 5},
    "turn_rows": {"view": "turn_rows", "max_row_tokens": 6},
    "prefix_rows": {"view": "prefix_rows"},
    "prefix_rows_repeated": {"view": "prefix_rows", "prefix_weighting": "repeated"},
    "sampled": {"include_messages": False, "sampling": {"temperature": 0.5, "top_p": 1.0}},
}


def posts(case, shape):
    """The JSON of each post, a line each."""
    options = dict(SHAPES[shape])
    size = SIZE[case] + options.pop("more", 0)
    package = pack(CASES[case], Shape(group_size=size, **options))
    return b"".join(post_text(part.body) + b"\n" for part in package.parts)


def shortened_posts(case):
    """The JSON of each post that was cut later, for a trainer that takes less."""
    parts = pack(CASES[case], Shape(group_size=SIZE[case] + 2)).parts
    cut = [part_without(part, is_longer_than(5))[0] for part in parts]
    return b"".join(post_text(part.body) + b"\n" for part in cut if part is not None)


def files():
    """The content of every golden file, by its name."""
    for case, credited in CASES.items():
        shown = {view: [columns_of(group) for group in VIEWS[view](credited)] for view in VIEWS}
        for view, groups in (shown | {"list_scores": [list_scores(credited)]}).items():
            lines = [orjson.dumps(columns, option=orjson.OPT_APPEND_NEWLINE) for columns in groups]
            yield f"{case}.{view}.jsonl", b"".join(lines)
        for shape in SHAPES:
            yield f"{case}.posts.{shape}.jsonl", posts(case, shape)
        yield f"{case}.posts.shortened_later.jsonl", shortened_posts(case)


if __name__ == "__main__":
    for name, content in files():
        (GOLDEN / name).write_bytes(content)
