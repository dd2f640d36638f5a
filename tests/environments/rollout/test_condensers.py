"""The shipped condensers, in real loops over conversations of every shape."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.policy.base import find_window
from environments.rollout.context import fit_context, keep_last_turns, summarise, trim_tool_output
from environments.trajectory import StopReason
from tests.environments.rollout.condensed_play import (
    OPENING,
    RENDERER,
    Recorded,
    Step,
    as_seen,
    play,
    played,
)
from tests.tables import cases
from tools.errors import ConfigError

TEXTS = st.one_of(
    st.sampled_from(["", "ok", "词" * 150, "🧵 née\u0301 " * 40, "<|im_end|> <tool_call>", "\n" * 90]),
    st.integers(1, 500).map(lambda count: "word " * count),
    st.text(max_size=200),
)
STEPS = st.lists(
    st.builds(
        Step,
        text=st.sampled_from(["", "Let me see.", "I say " + "much " * 60]),
        results=st.lists(TEXTS, max_size=3).map(tuple),
        reply=st.none() | TEXTS,
    ),
    max_size=6,
)
BUDGETS = st.integers(220, 1_500)
"""From where opening and tools fit just so."""
SUMMARIES = st.lists(TEXTS, min_size=1, max_size=3)
COMPOSITIONS = {
    "keep_last_turns": lambda tokens: (keep_last_turns(2),),
    "fit_context": lambda tokens: (fit_context(tokens),),
    "trim_tool_output": lambda tokens: (trim_tool_output(40),),
    "summarise by turns": lambda tokens: (summarise(every=2),),
    "summarise by tokens": lambda tokens: (summarise(max_tokens=tokens),),
    "trim, fit": lambda tokens: (trim_tool_output(64), fit_context(tokens)),
    "trim, keep, summarise, fit": lambda tokens: (
        trim_tool_output(64),
        keep_last_turns(4),
        summarise(every=2, keep_last=2),
        fit_context(tokens),
    ),
}
BOUNDED = [name for name in COMPOSITIONS if "fit" in name or "by tokens" in name]


class Twice:
    """A condenser that is asked again about what it gave."""

    def __init__(self, inner):
        self.inner, self.name = inner, inner.name

    async def condense(self, history, asking):
        once = await self.inner.condense(history, asking)
        assert tuple(await self.inner.condense(tuple(once), asking)) == tuple(once)
        return once


def results_of(messages):
    return [message for message in messages if message.role == "tool"]


class Claims:
    """What holds of every act of every rollout, whatever was said."""

    def opening_is_kept(self, rollout):
        assert all(seen[: len(OPENING)] == OPENING for seen in rollout.seen)

    def no_call_is_without_its_result(self, rollout):
        for seen in rollout.seen:
            waiting = []
            for message in seen:
                if message.role == "tool":
                    waiting.remove(message.tool_call_id)
                else:
                    assert not waiting
                    waiting = [call.id for call in message.tool_calls]
            assert not waiting

    def the_record_says_what_the_model_saw(self, rollout):
        spoken = rollout.conversation
        before = len(OPENING)
        for turn, request in zip(rollout.turns, rollout.requests, strict=True):
            assert as_seen(turn, spoken, before) == request.messages
            before += len(turn.messages)

    def rows_cover_each_sampled_token_once(self, rollout):
        spans = [(turn.span.row, turn.span.start, turn.span.end) for turn in rollout.turns]
        assert spans == sorted(spans)
        assert all(left[0] != right[0] or left[2] <= right[1] for left, right in pairwise(spans))
        for turn in rollout.turns:
            ids = rollout.loop.rows[turn.span.row].token_ids[turn.span.start : turn.span.end]
            assert ids == RENDERER.completion_ids(turn.message) or turn.finish_reason == "length"


CLAIMS = [name for name in vars(Claims) if not name.startswith("_")]


@pytest.mark.parametrize("name", COMPOSITIONS)
@given(steps=STEPS, tokens=BUDGETS, summaries=SUMMARIES)
@settings(max_examples=25)
def test_whatever_is_said_the_history_is_one_and_the_record_says_which(name, steps, tokens, summaries):
    rollout = play(*COMPOSITIONS[name](tokens), steps=steps, summaries=summaries)
    for claim in CLAIMS:
        getattr(Claims(), claim)(rollout)
    if name in BOUNDED:
        assert [turn.span.start for turn in rollout.acts if turn.span.start > tokens] == []


@given(steps=STEPS, tokens=BUDGETS)
@settings(max_examples=20)
def test_a_condenser_changes_nothing_of_what_it_gave(steps, tokens):
    condensers = trim_tool_output(40), keep_last_turns(3), fit_context(tokens)
    play(*map(Twice, condensers), steps=steps)


@given(steps=STEPS, turns=st.integers(1, 4))
@settings(max_examples=10)
def test_of_the_turns_only_the_last_are_seen(steps, turns):
    rollout = play(keep_last_turns(turns), steps=steps)
    for seen in rollout.seen:
        assert sum(message.role == "assistant" for message in seen) <= turns


@given(steps=STEPS, tokens=st.integers(32, 200))
@settings(max_examples=25)
def test_no_result_is_longer_than_it_may_be(steps, tokens):
    rollout = play(trim_tool_output(tokens), steps=steps)
    for message in (each for seen in rollout.seen for each in results_of(seen)):
        alone = RENDERER.prompt_ids([type(message)(role="user", content=message.content)], ())
        nothing = RENDERER.prompt_ids([type(message)(role="user", content="")], ())
        assert len(alone) - len(nothing) <= tokens


READS = [Step(results=("word " * 25,)) for _ in range(9)]


async def test_fit_context_drops_down_to_a_share_so_that_not_every_turn_begins_a_row():
    rollout = await played(fit_context(900), steps=READS)
    assert 2 <= len(rollout.loop.rows) <= len(rollout.acts) / 2


@pytest.mark.parametrize("condenser", [fit_context(9_000), summarise(max_tokens=9_000)], ids=["fit", "sum"])
async def test_a_budget_leaves_a_turn_its_room_in_the_models_window(condenser):
    policy = Recorded(READS, ["All read."])
    policy.context_tokens = 1_200
    rollout = await played(condenser, steps=READS, policy=policy)
    assert rollout.loop.stop_reason is StopReason.COMPLETED
    assert len(rollout.loop.rows) > 1
    assert max(turn.span.start for turn in rollout.acts) <= 1_200 - 400


@cases("window", [0, -1, True, "2048", 1.5], ids=str)
def test_a_window_that_is_none_is_not_known(window):
    policy = Recorded([], [])
    policy.context_tokens = window
    assert find_window(policy) is None


async def test_where_the_last_turn_alone_is_too_long_it_goes_and_the_opening_stays():
    rollout = await played(fit_context(250), steps=[Step(results=("word " * 600,))])
    assert rollout.seen[1] == OPENING


@pytest.mark.parametrize(
    "condenser", [fit_context(20), summarise(max_tokens=20)], ids=["fit_context", "summarise"]
)
async def test_an_opening_that_is_too_long_overflows_before_anything_is_paid(condenser):
    rollout = await played(condenser, steps=READS)
    assert (rollout.loop.stop_reason, rollout.requests) == (StopReason.CONTEXT_OVERFLOW, [])
    assert "prompt" in rollout.loop._models.stopped_by


async def test_a_trimmed_result_keeps_its_beginning_and_end():
    rollout = await played(trim_tool_output(32), steps=[Step(results=("begin " + "x " * 500 + "end",))])
    (result,) = results_of(rollout.seen[1])
    assert result.content.startswith("begin")
    assert result.content.endswith("end")
    assert "characters left out" in result.content


async def test_trimming_before_the_model_sees_a_result_lets_the_row_go_on():
    rollout = await played(trim_tool_output(32), steps=READS)
    assert len(rollout.loop.rows) == 1


async def test_a_condenser_that_does_nothing_leaves_no_trace():
    rollout = await played(keep_last_turns(50), fit_context(19_000), trim_tool_output(5_000), steps=READS)
    assert {(turn.context, turn.condensed, turn.fork) for turn in rollout.turns} == {(None, None, None)}


async def test_what_was_done_is_told_with_its_cause_and_its_tokens():
    rollout = await played(trim_tool_output(32), keep_last_turns(1), steps=READS)
    turn = rollout.turns[3]
    assert turn.condensed.cause == "trim_tool_output, keep_last_turns"
    assert turn.fork == "history: trim_tool_output, keep_last_turns"
    assert turn.condensed.tokens_before > turn.condensed.tokens_after == turn.span.start


@cases(
    ("make", "says"),
    [
        (lambda: keep_last_turns(0), "keep_last_turns: turns is 0"),
        (lambda: keep_last_turns(True), "turns is True"),
        (lambda: fit_context("2048"), "fit_context: max_tokens is '2048'"),
        (lambda: fit_context(-1), "max_tokens is -1"),
        (lambda: trim_tool_output(31), "trim_tool_output: max_tokens is 31"),
        (lambda: summarise(), "every=TURNS or max_tokens=TOKENS"),
        (lambda: summarise(every=2, by="judge"), "by is 'judge'"),
        (lambda: summarise(every=2, request=" "), "request is ' '"),
        (lambda: summarise(every=2, keep_last=-1), "keep_last is -1"),
    ],
    ids=["0 turns", "a bool", "text", "below 0", "too short", "never", "by nobody", "no request", "last"],
)
def test_a_condenser_that_could_do_nothing_is_refused(make, says):
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        make()
