"""Rows grow with the rollout; spans are known from sampling."""

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from environments.rollout.rows import RowBuilder
from environments.trajectory import IGNORED, NOT_SAMPLED, Completion, Message, Span
from environments.wire.credited_rows import mask_of, spread_over_tokens

IDS = st.lists(st.integers(min_value=0, max_value=50), max_size=8).map(tuple)


def completion(prompt, sampled, logprobs=True):
    return Completion(
        message=Message(role="assistant"),
        finish_reason="stop",
        prompt_ids=tuple(prompt),
        token_ids=tuple(sampled),
        logprobs=tuple(-0.5 for _ in sampled) if logprobs else None,
        exact=True,
    )


def test_a_prompt_that_continues_the_row_extends_it():
    builder = RowBuilder()
    builder.append(completion([1, 2], [3]))
    assert builder.append(completion([1, 2, 3, 4], [5])) == Span(row=0, start=4, end=5)
    assert [row.token_ids for row in builder.build()] == [(1, 2, 3, 4, 5)]


def test_a_rewritten_history_forks_a_new_row_and_leaves_the_old_one():
    builder = RowBuilder()
    builder.append(completion([1, 2], [3]))
    assert builder.append(completion([1, 9], [5])) == Span(row=1, start=2, end=3)
    assert [row.token_ids for row in builder.build()] == [(1, 2, 3), (1, 9, 5)]


def test_what_extends_the_row_is_joined_without_a_look_at_what_was_there():
    builder = RowBuilder()
    builder.append(completion([1, 2], [3]))
    more = replace(completion([4], [5]), extends_row=True)
    assert builder.append(more) == Span(row=0, start=4, end=5)
    assert [row.token_ids for row in builder.build()] == [(1, 2, 3, 4, 5)]


def forks(*completions):
    builder = RowBuilder()
    causes = []
    for each in completions:
        builder.append(each)
        causes.append(builder.fork)
    return causes


def test_a_fork_that_nobody_explains_is_the_templates():
    assert forks(completion([1], [2]), completion([9], [5])) == [None, "template"]


def test_a_fork_has_the_cause_that_the_policy_names():
    renderer = replace(completion([9], [5]), fork="renderer: no bridge")
    assert forks(completion([1], [2]), renderer) == [None, "renderer: no bridge"]


def test_a_prompt_that_goes_on_all_the_same_is_no_fork_whatever_the_policy_says():
    assert forks(completion([1], [2]), replace(completion([1, 2, 3], [4]), fork="history")) == [None, None]


def test_the_first_row_is_no_fork():
    assert forks(replace(completion([1], [2]), fork="history")) == [None]


def test_after_a_fork_prompts_continue_the_new_row_with_its_own_logprobs():
    builder = RowBuilder()
    builder.append(completion([1, 2], [3], logprobs=False))
    builder.append(completion([1, 9], [5]))
    assert builder.append(completion([1, 9, 5, 6], [7])) == Span(row=1, start=4, end=5)
    assert [row.token_ids for row in builder.build()] == [(1, 2, 3), (1, 9, 5, 6, 7)]
    assert [row.logprobs for row in builder.build()] == [None, (1.0, 1.0, -0.5, 1.0, -0.5)]


def test_a_prompt_that_lost_sampled_tokens_forks():
    builder = RowBuilder()
    builder.append(completion([1, 2], [3, 4]))
    assert builder.append(completion([1, 2, 3], [5])).row == 1


def test_positions_that_were_not_sampled_carry_the_convention_value():
    builder = RowBuilder()
    builder.append(completion([1, 2], [3]))
    assert builder.build()[0].logprobs == (NOT_SAMPLED, NOT_SAMPLED, -0.5)


def test_one_turn_without_logprobs_leaves_its_row_without():
    builder = RowBuilder()
    builder.append(completion([1], [2]))
    builder.append(completion([1, 2, 3], [4], logprobs=False))
    assert builder.build()[0].logprobs is None


@st.composite
def rollouts(draw):
    """Completions of one rollout, each with the whole prompt that the model saw.

    Prompts go on from the history, whole or as what is new, or rewrite it now and then.
    """
    history = ()
    out = []
    for _ in range(draw(st.integers(min_value=1, max_value=6))):
        new, sampled = draw(IDS), draw(IDS)
        kind = draw(st.sampled_from(["whole", "extends", "fork"]))
        prompt = new if kind == "fork" else history + new
        each = completion(prompt, sampled)
        if kind == "extends" and out:
            each = replace(each, extends_row=True, prompt_ids=new)
        out.append((each, prompt))
        history = prompt + sampled
    return out


@given(rollouts())
def test_spans_partition_the_trainable_mask(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each, _ in completions]
    for index, row in enumerate(builder.build()):
        here = [span for span in spans if span.row == index]
        covered = [position for span in here for position in range(span.start, span.end)]
        trainable = [p for p, label in enumerate(mask_of(row.token_ids, here)) if label != IGNORED]
        assert covered == trainable


@given(rollouts())
def test_each_span_holds_exactly_the_tokens_that_were_sampled(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each, _ in completions]
    rows = builder.build()
    for span, (each, _) in zip(spans, completions, strict=True):
        assert rows[span.row].token_ids[span.start : span.end] == each.token_ids


@given(rollouts())
def test_each_span_is_preceded_by_exactly_the_prompt_it_was_sampled_from(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each, _ in completions]
    rows = builder.build()
    for span, (_, prompt) in zip(spans, completions, strict=True):
        assert rows[span.row].token_ids[: span.start] == prompt


@given(rollouts())
def test_a_row_is_the_last_prompt_of_its_turns_and_what_was_sampled_then(completions):
    builder = RowBuilder()
    last = {builder.append(each).row: prompt + each.token_ids for each, prompt in completions}
    assert [row.token_ids for row in builder.build()] == [last[row] for row in sorted(last)]


@given(rollouts())
def test_the_open_row_says_where_its_last_turn_begins_and_how_many_messages_it_holds(completions):
    builder = RowBuilder()
    for index, (each, prompt) in enumerate(completions):
        builder.append(each, messages=index)
        assert (builder.open.sampled_start, builder.open.messages) == (len(prompt), index)
        assert orjson.loads(b"[%s]" % builder.open.json()) == [*prompt, *each.token_ids]


@given(rollouts())
def test_logprobs_are_those_of_the_turns_and_the_convention_elsewhere(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each, _ in completions]
    for index, row in enumerate(builder.build()):
        mask = mask_of(row.token_ids, [span for span in spans if span.row == index])
        assert row.logprobs == tuple(NOT_SAMPLED if label == IGNORED else -0.5 for label in mask)


@given(rollouts(), st.data())
def test_a_turns_advantage_sits_on_its_own_tokens_and_nowhere_else(completions, data):
    builder = RowBuilder()
    spans = [builder.append(each) for each, _ in completions]
    row = builder.build()[0]
    here = [span for span in spans if span.row == 0]
    advantages = [float(k + 1) for k in range(len(here))]
    tokens = spread_over_tokens(len(row.token_ids), here, advantages)
    for position, value in enumerate(tokens):
        owners = [a for s, a in zip(here, advantages, strict=True) if s.start <= position < s.end]
        assert value == (owners[0] if owners else 0.0)
