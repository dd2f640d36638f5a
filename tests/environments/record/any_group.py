"""Any group that a record may hold, every field of it varied, for hypothesis."""

from hypothesis import strategies as st

from environments.trajectory import (
    NOT_SAMPLED,
    CreditedGroup,
    Failure,
    JudgeCall,
    Kept,
    Message,
    Rewards,
    Span,
    StopReason,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolCall, ToolResult
from tools.sandbox.base import SandboxLimits, SandboxRecord

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
NAME = TEXT | st.none()
NUMBER = st.floats(-1e100, 1e100)
SOME = st.none() | NUMBER
COUNT = st.integers(0, 2**63 - 1)
NUMBERS = st.dictionaries(TEXT, NUMBER, max_size=2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
CALLS = st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=TEXT), max_size=2).map(tuple)


def message(*roles):
    return st.builds(
        Message,
        role=st.sampled_from(roles),
        content=TEXT,
        reasoning=NAME,
        tool_calls=CALLS,
        tool_call_id=NAME,
    )


ANY_MESSAGE = message("system", "user", "assistant", "tool")
ANY_MESSAGES = st.lists(ANY_MESSAGE, max_size=2).map(tuple)
JUDGE_CALLS = st.lists(
    st.builds(
        JudgeCall,
        hook=TEXT,
        turn=st.none() | COUNT,
        model=TEXT,
        messages=ANY_MESSAGES,
        sampling=NUMBERS,
        answer=TEXT,
    ),
    max_size=2,
).map(tuple)
RESULTS = st.lists(
    st.builds(
        ToolResult,
        call_id=TEXT,
        name=TEXT,
        content=TEXT,
        error=st.sampled_from([None, "unknown_tool", "tool_error"]),
        exit_code=st.none() | st.integers(-1, 255),
        timed_out=st.booleans(),
        duration_s=NUMBER,
    ),
    max_size=2,
).map(tuple)
CONTEXT = st.none() | st.lists(st.builds(Kept, start=COUNT, end=COUNT) | ANY_MESSAGE, max_size=3).map(tuple)
SANDBOX = st.none() | st.builds(
    SandboxRecord,
    backend=TEXT,
    tier=TEXT,
    limits=st.builds(SandboxLimits, memory_mb=COUNT),
    enforced=st.lists(TEXT, max_size=2).map(tuple),
    image=NAME,
    lacks=st.lists(TEXT, max_size=2).map(tuple),
)


@st.composite
def trajectories(draw):
    rows, turns = [], []
    for row in range(draw(st.integers(1, 2))):
        ids, logprobs = [7], [NOT_SAMPLED]
        for length in draw(st.lists(st.integers(0, 3), min_size=1, max_size=2)):
            turns.append(draw(turn(len(turns), Span(row=row, start=len(ids), end=len(ids) + length))))
            ids += draw(st.tuples(*[st.integers(0, 300_000)] * length))
            logprobs += [-0.5] * length
        known = draw(st.booleans())
        rows.append(TokenRow(token_ids=tuple(ids), logprobs=tuple(logprobs) if known else None))
    return Trajectory(
        item_id=draw(TEXT),
        sibling=draw(COUNT),
        seed=draw(COUNT),
        prompt=draw(ANY_MESSAGES),
        turns=tuple(turns),
        rows=tuple(rows),
        stop_reason=draw(st.sampled_from(StopReason)),
        exact=draw(st.booleans()),
        sandbox=draw(SANDBOX),
        rewards=draw(st.none() | rewards(len(turns))),
        metrics=draw(NUMBERS),
        judge_calls=draw(JUDGE_CALLS),
        wall_s=draw(NUMBER),
    )


def turn(index, span):
    return st.builds(
        Turn,
        index=st.just(index),
        kind=st.sampled_from(["act", "summary"]),
        message=st.builds(Message, role=st.just("assistant"), content=TEXT, reasoning=NAME, tool_calls=CALLS),
        tool_results=RESULTS,
        replies=st.lists(message("system", "user"), max_size=2).map(tuple),
        finish_reason=TEXT,
        span=st.just(span),
        trained=st.booleans(),
        anchor=NAME,
        context=CONTEXT,
        weight_version=NAME,
        model_s=NUMBER,
        tools_s=NUMBER,
    )


def rewards(turns):
    return st.builds(
        Rewards,
        turns=st.none() | st.tuples(*[SOME] * turns),
        outcome=SOME,
        score=NUMBER,
        turn_components=st.just(()) | st.tuples(*[NUMBERS] * turns),
        outcome_components=NUMBERS,
        group=SOME,
    )


FAILURES = st.lists(
    st.builds(
        Failure,
        sibling=COUNT,
        stop_reason=st.none() | st.sampled_from(StopReason),
        error=TEXT,
        traceback=TEXT,
        turns=COUNT,
        error_class=TEXT,
        where=NAME,
    ),
    max_size=2,
).map(tuple)


@st.composite
def credited_groups(draw):
    group = TrajectoryGroup(
        group_id=draw(TEXT),
        env=draw(TEXT),
        item_id=draw(TEXT),
        epoch=draw(COUNT),
        item=draw(JSON),
        item_hash=draw(NAME),
        fingerprint=draw(NAME),
        trajectories=tuple(draw(st.lists(trajectories(), max_size=2))),
        failures=draw(FAILURES),
        judge_calls=draw(JUDGE_CALLS),
    )
    return CreditedGroup(
        group=group,
        advantages=tuple(draw(st.tuples(*[NUMBER] * len(each.turns))) for each in group.trajectories),
        policy=draw(TEXT),
        estimator=draw(TEXT),
        estimator_params=draw(st.dictionaries(TEXT, JSON, max_size=2)),
        status=draw(st.sampled_from(["ok", "no_credit", "failed"])),
        reason=draw(NAME),
        turns_without_peer=draw(COUNT),
    )
