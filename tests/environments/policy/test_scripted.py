import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.policy.base import CompletionRequest, OpenRow
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import (
    Choice,
    ScriptedPolicy,
    call,
    calls_that_ran,
    example_of,
    generic_script,
    say,
)
from environments.trajectory import Message
from tests.tables import cases
from tools.calls import ToolSpec
from tools.errors import ConfigError

RENDERER = ChatMLRenderer.embedded()
USER = Message(role="user", content="Count the files.")
TERMINAL = ToolSpec(
    name="terminal",
    description="Run a command.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)


def policy(*mixture, skill=1.0):
    choices = [Choice(probability=probability, message=message) for probability, message in mixture]
    return ScriptedPolicy(lambda messages, tools, skill: choices, skill=skill, renderer=RENDERER)


def request(seed=0, max_tokens=1024, messages=(USER,)):
    return CompletionRequest(messages=messages, tools=(TERMINAL,), seed=seed, max_tokens=max_tokens)


messages = st.one_of(
    st.text(max_size=20).map(say),
    st.builds(
        call, st.sampled_from(["terminal", "read_file"]), st.text(max_size=20), content=st.text(max_size=5)
    ),
    st.sampled_from([say("the answer is 1"), say("the answer is 12"), say("the answer")]),
)
mixtures = st.lists(st.tuples(st.floats(0.01, 1), messages), min_size=1, max_size=6).map(
    lambda weighted: [(weight / math.fsum(w for w, _ in weighted), message) for weight, message in weighted]
)


@given(mixture=mixtures, seed=st.integers(0, 1000))
async def test_logprobs_sum_to_the_log_of_the_probability_of_what_was_sampled(mixture, seed):
    completion = await policy(*mixture).complete(request(seed))
    same = [p for p, message in mixture if RENDERER.completion_ids(message) == completion.token_ids]
    assert len(completion.logprobs) == len(completion.token_ids)
    assert max(completion.logprobs) <= 0
    assert math.fsum(completion.logprobs) == pytest.approx(math.log(math.fsum(same)), abs=1e-12)


@given(mixture=mixtures, seed=st.integers(0, 1000), max_tokens=st.integers(1, 12))
async def test_logprobs_of_a_cut_message_sum_to_the_mass_that_begins_like_it(mixture, seed, max_tokens):
    completion = await policy(*mixture).complete(request(seed, max_tokens))
    ids = completion.token_ids
    same = [p for p, message in mixture if RENDERER.completion_ids(message)[: len(ids)] == ids]
    assert math.fsum(completion.logprobs) == pytest.approx(math.log(math.fsum(same)), abs=1e-12)


async def test_messages_are_sampled_as_often_as_the_script_says():
    sampler = policy((0.25, say("yes")), (0.75, say("no")))
    said = Counter([(await sampler.complete(request(seed))).message.content for seed in range(2000)])
    assert said["yes"] / 2000 == pytest.approx(0.25, abs=0.04)


async def test_equal_requests_give_equal_completions_and_equal_messages_count_as_one():
    sampler = policy((0.5, say("yes")), (0.5, call("terminal", {"command": "ls"})))
    assert await sampler.complete(request(7)) == await sampler.complete(request(7))
    same = await policy((0.5, say("yes")), (0.5, say("yes"))).complete(request())
    assert set(same.logprobs) == {0.0}


async def test_the_turns_of_one_rollout_are_sampled_independently():
    sampler = policy((0.5, say("yes")), (0.5, say("no")))
    conversations = [(USER,) * length for length in range(1, 40)]
    said = {(await sampler.complete(request(3, messages=spoken))).message.content for spoken in conversations}
    assert said == {"yes", "no"}


async def test_a_cut_message_has_no_stop_token_and_a_cut_call_is_none():
    completion = await policy((1.0, say("one two three four five"))).complete(request(max_tokens=2))
    assert completion.finish_reason == "length"
    assert RENDERER.decode(completion.token_ids) == completion.message.content
    called = await policy((1.0, call("terminal", {"command": "ls"}))).complete(request(max_tokens=4))
    assert called.message.tool_calls == ()


async def test_call_ids_differ_between_the_turns_of_a_rollout():
    sampler = policy((1.0, call("terminal", {"command": "ls"})))
    first = await sampler.complete(request())
    second = await sampler.complete(request(messages=(USER, first.message)))
    assert first.message.tool_calls[0].id != second.message.tool_calls[0].id


@cases("probabilities", [(0.5, 0.4), (), (1.5, -0.5), (math.nan,), (0.0,)])
async def test_a_mixture_that_is_no_distribution_is_refused(probabilities):
    mixture = [(probability, say(str(index))) for index, probability in enumerate(probabilities)]
    with pytest.raises(ConfigError, match="probabilit"):
        await policy(*mixture).complete(request())


@pytest.mark.parametrize("given", [None, [], ["yes"], "yes"], ids=["none", "empty", "texts", "text"])
async def test_what_is_no_choice_is_named_with_what_to_give(given):
    scripted = ScriptedPolicy(lambda messages, tools, skill: given, skill=1.0, renderer=RENDERER)
    with pytest.raises(ConfigError, match=r"^scripted_choices gave .*; give one Choice\(probability=…"):
        await scripted.complete(request())


async def test_a_script_may_only_write_assistant_messages_with_a_skill_from_zero_to_one():
    with pytest.raises(ConfigError, match="'user'"):
        await policy((1.0, USER)).complete(request())
    with pytest.raises(ConfigError, match=r"skill is 1\.5"):
        policy((1.0, say("yes")), skill=1.5)


def generic(skill, tools=(TERMINAL,), turns=0):
    spoken = [USER, *[call("terminal", "{}")] * turns]
    return [each.message for each in generic_script(spoken, tools, skill) if each.probability > 0]


def test_the_generic_agent_calls_first_breaks_its_calls_as_its_skill_is_and_ends():
    assert all(message.tool_calls for message in generic(0.6))
    assert generic(1.0) == [call("terminal", {"command": "example"})]
    assert call("terminal", '{"command": "example",') in generic(0.0)
    assert [message.tool_calls for message in generic(0.5, tools=())] == [()]
    assert [message.tool_calls for message in generic(0.5, turns=3)] == [()]


@pytest.mark.parametrize("max_tokens", [1024, 5], ids=["whole", "cut"])
@given(mixture=mixtures)
async def test_where_a_row_is_open_only_what_is_new_is_rendered(max_tokens, mixture):
    sampler, row = policy(*mixture), OpenRow()
    first = await sampler.complete(request(max_tokens=max_tokens))
    row.extend(first.prompt_ids, first.token_ids, messages=2)
    asked = request(messages=(USER, first.message, Message(role="tool", content="ok")))
    rest = await sampler.complete(replace(asked, row=row))
    assert (rest.extends_row, rest.fork) == (True, None)
    assert rest.prompt_ids == RENDERER.extend(first.token_ids, asked.messages[2:])
    if first.finish_reason != "length":
        whole = await sampler.complete(asked)
        assert (*row.token_ids, *rest.prompt_ids) == whole.prompt_ids
        assert (rest.token_ids, rest.logprobs) == (whole.token_ids, whole.logprobs)


def test_calls_whose_ids_repeat_are_told_apart_by_where_they_stand():
    turns = [call("look", {"room": room}) for room in (1, 2)]
    said = [
        message
        for turn, answer in zip(turns, ("Error: dark", "light"), strict=True)
        for message in (turn, Message(role="tool", content=answer, tool_call_id=""))
    ]
    assert [(done.arguments, answer) for done, answer in calls_that_ran(said)] == [('{"room": 2}', "light")]


@cases(
    ("schema", "value"),
    [
        ({"type": "string"}, "example"),
        ({"type": "string", "minLength": 9}, "exampleee"),
        ({"type": "string", "maxLength": 2}, "ex"),
        ({"type": "string", "examples": ["ls"], "default": "pwd"}, "ls"),
        ({"type": "string", "default": "pwd"}, "pwd"),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 4}, 4),
        ({"type": "integer"}, 0),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": "number", "minimum": -5, "maximum": 5}, 0),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": ["string", "null"]}, "example"),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({}, "example"),
    ],
)
def test_the_example_is_the_first_one_given_or_the_smallest_of_its_type(schema, value):
    assert example_of(schema) == value


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def test_an_object_gets_its_required_properties_those_with_examples_and_references():
    properties = {
        "path": {"type": "string"},
        "depth": {"type": "integer"},
        "mode": {"type": "string", "examples": ["r"]},
        "at": {"$ref": "#/$defs/Point"},
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["path", "at"],
        "$defs": {"Point": POINT},
    }
    assert example_of(schema) == {"path": "example", "mode": "r", "at": {"x": 0}}
    assert "next" in example_of({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}})  # it comes to an end
