"""Rows grow with the rollout; spans are known from sampling."""

from hypothesis import given
from hypothesis import strategies as st

from environments.rollout.rows import RowBuilder
from environments.trajectory import IGNORED, NOT_SAMPLED, Completion, Message, Span
from environments.wire.credited_rows import mask_of, spread

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
    """Completions of one rollout: prompts extend the history or, now and then, rewrite it."""
    history = ()
    out = []
    for _ in range(draw(st.integers(min_value=1, max_value=6))):
        prompt = draw(IDS) if draw(st.integers(0, 4)) == 0 else history + draw(IDS)
        sampled = draw(IDS)
        out.append(completion(prompt, sampled))
        history = prompt + sampled
    return out


@given(rollouts())
def test_spans_partition_the_trainable_mask(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each in completions]
    for index, row in enumerate(builder.build()):
        here = [span for span in spans if span.row == index]
        covered = [position for span in here for position in range(span.start, span.end)]
        trainable = [p for p, label in enumerate(mask_of(row.token_ids, here)) if label != IGNORED]
        assert covered == trainable


@given(rollouts())
def test_each_span_holds_exactly_the_tokens_that_were_sampled(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each in completions]
    rows = builder.build()
    for span, each in zip(spans, completions, strict=True):
        assert rows[span.row].token_ids[span.start : span.end] == each.token_ids


@given(rollouts())
def test_each_span_is_preceded_by_exactly_the_prompt_it_was_sampled_from(completions):
    builder = RowBuilder()
    spans = [builder.append(each) for each in completions]
    rows = builder.build()
    for span, each in zip(spans, completions, strict=True):
        assert rows[span.row].token_ids[: span.start] == each.prompt_ids


@given(rollouts(), st.data())
def test_a_turns_advantage_sits_on_its_own_tokens_and_nowhere_else(completions, data):
    builder = RowBuilder()
    spans = [builder.append(each) for each in completions]
    row = builder.build()[0]
    here = [span for span in spans if span.row == 0]
    advantages = [float(k + 1) for k in range(len(here))]
    tokens = spread(len(row.token_ids), here, advantages)
    for position, value in enumerate(tokens):
        owners = [a for s, a in zip(here, advantages, strict=True) if s.start <= position < s.end]
        assert value == (owners[0] if owners else 0.0)
