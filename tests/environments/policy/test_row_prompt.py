"""The open row, the room of a turn in it, and the watch for tools offered in vain."""

import logging
from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.row_prompt import ToolUse, min_prompt_tokens
from environments.trajectory import Message
from tests.environments.policy.chat_server import REQUEST, USER, ok, served, without
from tests.environments.policy.chat_server import answer as reply
from tests.tables import cases
from tools.errors import ContextOverflow

HI = Message(role="assistant", content="3")
LONG = Message(role="user", content="x" * 50_000)


def with_row(tokens, *new, message=HI, **changes):
    row = OpenRow()
    row.extend(range(tokens - 1), [1], messages=2)
    return replace(REQUEST, messages=(USER, message, *new), row=row, **changes)


async def asked_after(request, **settings):
    """What the server was asked, once it has given token ids."""
    async with served(ok()) as (server, policy):
        await policy.complete(REQUEST)
        for name, value in settings.items():
            setattr(policy, name, value)
        try:
            await policy.complete(request)
        except ContextOverflow:
            return None
    return server.asked[1]


@cases(
    ("request_", "settings"),
    [
        (with_row(100), {"context_tokens": 100}),
        (with_row(90, LONG), {"context_tokens": 100}),
        (with_row(100, max_row_tokens=100), {}),
    ],
    ids=["row", "new-text", "row-limit"],
)
async def test_a_prompt_that_cannot_fit_is_not_paid_for(request_, settings):
    assert await asked_after(request_, **settings) is None


async def test_no_more_tokens_are_asked_for_than_there_can_be_room():
    assert (await asked_after(with_row(90), context_tokens=100))["max_tokens"] == 10


async def test_a_template_may_drop_reasoning_from_a_row():
    message = replace(HI, reasoning="because")
    assert min_prompt_tokens(with_row(100, message=message), longest_token=1) == len(USER.content) + 1


async def test_a_window_is_not_compared_with_tokens_that_were_made_from_text():
    text = without(without(reply(), "choices", 0, "token_ids"), "prompt_token_ids")
    async with served(JSONResponse(text)) as (server, policy):
        policy.context_tokens = 100
        await policy.complete(with_row(100))
    assert len(server.asked) == 1


def test_a_conversation_without_a_row_has_the_tokens_of_its_text():
    assert min_prompt_tokens(CompletionRequest(messages=(LONG,)), longest_token=1000) == 50


SAID = Message(role="assistant", content="I have looked at <tool_call> and so on.")


@cases(("kind", "warned"), [("act", True), ("summary", False)])
def test_a_model_that_only_sums_up_has_not_ignored_its_tools(kind, warned, caplog):
    use = ToolUse("http://server")
    with caplog.at_level(logging.WARNING):
        for seed in range(10):
            use.note(replace(REQUEST, kind=kind, seed=seed), SAID)
    assert bool(caplog.records) == warned


# The row itself.

IDS = st.lists(st.integers(0, 300_000), max_size=5)


def row_of(*ids):
    row = OpenRow()
    row.extend(ids, (), messages=1)
    return row


@given(st.lists(st.tuples(IDS, IDS)))
def test_its_json_is_that_of_its_ids_however_it_grew(turns):
    row, ids = OpenRow(), []
    for unsampled, sampled in turns:
        row.extend(unsampled, sampled, messages=1)
        ids += unsampled + sampled
        assert orjson.loads(b"[%b]" % row.json()) == ids == list(row.token_ids)


@given(IDS, IDS)
def test_the_rest_of_a_prompt_that_goes_on_is_what_follows(held, new):
    assert row_of(*held).rest_of((*held, *new)) == tuple(new)


@cases("prompt", [(1, 2), (1, 9, 3), (9, 2, 3, 4), (1, 2, 9), ()], ids=str)
def test_a_prompt_that_begins_otherwise_has_no_rest(prompt):
    assert row_of(1, 2, 3).rest_of(prompt) is None


def test_what_a_policy_builds_of_the_ids_does_not_change_the_row():
    row = row_of(1, 2)
    ids = row.token_ids
    ids = [*ids[:1], 7]
    assert (list(row.token_ids), ids) == ([1, 2], [1, 7])
    assert not hasattr(row.token_ids, "append")
