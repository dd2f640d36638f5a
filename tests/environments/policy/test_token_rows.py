"""Random conversations over every wire: the row is what was sent and sampled, id for id and bit for bit."""

import random
from dataclasses import replace

import pytest

from environments.policy.base import CompletionRequest
from environments.policy.mock_server import SampledIds
from environments.policy.rendering.chatml import MARKERS
from environments.rollout.rows import RowBuilder
from environments.trajectory import NOT_SAMPLED, Message
from tests.environments.policy.token_server import ALL_WIRES, RENDERER, TERMINAL, USER, served
from tools.calls import ToolCall

TEXTS = ["ls -la\n", "naïve 数", "👩‍💻", " ", '{"a": [1, 2]}', "x" * 300, *MARKERS]


def any_text(rng):
    return "".join(rng.choices(TEXTS, k=rng.randrange(4)))


def any_turn(rng):
    calls = tuple(
        ToolCall(id="", name="terminal", arguments=rng.choice(['{"command": "ls"}', '{"command": "l', ""]))
        for _ in range(rng.randrange(3))
    )
    reasoning = any_text(rng) or None if rng.random() < 0.3 else None
    return Message(role="assistant", content=any_text(rng), reasoning=reasoning, tool_calls=calls)


class Sampler:
    """A model that says anything; it keeps what it saw and what it sampled."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.saw = []

    async def __call__(self, asked):
        ids = RENDERER.completion_ids(any_turn(self.rng))[: asked.max_tokens]
        logprobs = tuple(-self.rng.expovariate(1) for _ in ids)
        self.saw.append((asked.prompt_ids, ids, logprobs))
        return SampledIds(token_ids=ids, logprobs=logprobs)


async def conversation(policy, rng, turns):
    """The row of a random conversation, and the completions of its turns."""
    rows, messages, completions, spans = RowBuilder(), (USER,), [], []
    for _ in range(turns):
        asked = CompletionRequest(messages=messages, tools=(TERMINAL,), max_tokens=rng.choice([3, 12, 1000]))
        completion = await policy.complete(replace(asked, row=rows.open))
        completions.append(completion)
        messages = (*messages, completion.message)
        spans.append(rows.append(completion, messages=len(messages)))
        answers = [
            Message(role="tool", content=any_text(rng), tool_call_id=call.id)
            for call in completion.message.tool_calls
        ]
        messages = (*messages, *(answers or [Message(role="user", content=any_text(rng))]))
    (row,) = rows.build()
    return row, completions, spans


@pytest.mark.parametrize("wire", ALL_WIRES, ids="-".join)
async def test_rows_hold_what_was_sent_and_sampled(wire):
    for seed in range(5):
        sampler = Sampler(seed)
        async with served(wire, sampler=sampler) as policy:
            row, completions, spans = await conversation(policy, random.Random(seed), turns=10)
        for (prompt, ids, logprobs), span in zip(sampler.saw, spans, strict=True):
            assert row.token_ids[: span.start] == prompt
            assert row.token_ids[span.start : span.end] == ids
            assert row.logprobs[span.start : span.end] == logprobs
        sampled = sum(len(completion.token_ids) for completion in completions)
        assert sum(logprob != NOT_SAMPLED for logprob in row.logprobs) == sampled


async def test_the_span_of_a_call_holds_the_call():
    sampler = Sampler(1)
    async with served(("vllm", "completions"), sampler=sampler) as policy:
        _, completions, _ = await conversation(policy, random.Random(1), turns=20)
    calls = [(each, call) for each in completions for call in each.message.tool_calls]
    assert len(calls) > 2
    for completion, call in calls:
        text = RENDERER.decode(completion.token_ids[slice(*call.span)])
        assert text.startswith("<tool_call>")
        assert call.arguments in text
