import json
import random
from collections import Counter
from contextlib import suppress

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram

from environments.policy.rendering.chatml import CannotExtendError, load_tokenizer
from environments.policy.rendering.families import load_renderer
from environments.policy.rendering.family_renderer import FamilyRenderer, FamilyTokenizer
from environments.trajectory import Message
from tests.environments.policy.rendering.family_formats import (
    as_text,
    encoded,
    families,
    renderer_of,
    stop_of,
    thinking,
    written,
)
from tests.tables import cases
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError

USER = Message(role="user", content="go")


def conversation(text):
    """A conversation in which `text` stands everywhere that text of a message or a tool can stand."""
    arguments = json.dumps({"command": text, text: [text]}, ensure_ascii=False)
    call = ToolCall(id="c1", name=f"run{text}", arguments=arguments)
    broken = ToolCall(id="c2", name="run", arguments=text, status="invalid_json")
    return [
        Message(role="system", content=text),
        Message(role="user", content=f"a {text}"),
        Message(role="assistant", content=text, reasoning=text, tool_calls=(call,)),
        Message(role="tool", content=text, tool_call_id="c1"),
        Message(role="assistant", content=f"b{text}", tool_calls=(broken,)),
        Message(role="tool", content=f"{text}{text}", tool_call_id="c2"),
        Message(role="assistant", content=f"{text}."),
        Message(role="user", content=text),
    ]


def tools(text):
    properties = {
        "command": {"type": "string", "description": text, "enum": [text], "default": text},
        text: {"type": "array"},
    }
    parameters = {"type": "object", "properties": properties, "required": [text]}
    return (ToolSpec(name="run", description=text, parameters=parameters),)


def control_tokens(family, ids):
    controls = set(renderer_of(family).markers.values())
    return Counter(each for each in ids if each in controls)


def prompt_with(family, text):
    return control_tokens(family, renderer_of(family).prompt_ids(conversation(text), tools(text)))


@pytest.mark.parametrize("family", families())
def test_no_marker_in_text_becomes_a_control_token_of_a_prompt(family):
    expected = prompt_with(family, "x")
    for marker in renderer_of(family).markers:
        assert prompt_with(family, marker) == expected


@pytest.mark.parametrize("family", families())
def test_no_marker_in_text_becomes_a_control_token_of_what_follows_a_turn(family):
    renderer = renderer_of(family)
    calls = [("run", {"command": "ls"})]
    sampled = (*encoded(family, written(family, "", calls)), stop_of(family, calls))

    def following(text):
        results = [Message(role="tool", content=text), Message(role="user", content=text)]
        results = results[:1] if family == "gemma4" else results
        return control_tokens(family, renderer.extend(sampled, results, tools(text)))

    for marker in renderer.markers:
        assert following(marker) == following("x")


@pytest.mark.parametrize("family", families())
def test_markers_cut_between_neighbouring_texts_become_no_control_tokens(family):
    renderer = renderer_of(family)
    expected = control_tokens(family, renderer.prompt_ids(cut_conversation("x", "x"), tools("x")))
    for marker in renderer.markers:
        for size in {1, len(marker) // 2, len(marker) - 1}:
            messages = cut_conversation(marker[:size], marker[size:])
            assert control_tokens(family, renderer.prompt_ids(messages, tools("x"))) == expected


def cut_conversation(head, tail):
    call = ToolCall(id="c", name=f"run{head}", arguments=json.dumps({tail or "x": head}))
    return [
        Message(role="system", content=head),
        Message(role="user", content=f"{tail}a{head}"),
        Message(role="assistant", reasoning=head, content=tail, tool_calls=(call,)),
        Message(role="tool", content=f"{tail}{head}", tool_call_id="c"),
        Message(role="tool", content=f"{tail}{head}", tool_call_id="c"),
        Message(role="user", content=f"{tail}b{head}"),
    ]


@pytest.mark.parametrize("family", families())
def test_markers_in_text_stay_readable(family):
    renderer = renderer_of(family)
    for marker in renderer.markers:
        ids = renderer.prompt_ids([Message(role="user", content=f"say {marker} \ufdd0 twice")], ())
        assert f"say {marker} \ufdd0 twice" in renderer.decode(ids)


@pytest.mark.parametrize("family", families())
def test_a_turn_that_was_cut_is_closed_by_what_was_not_sampled(family):
    renderer = renderer_of(family)
    body = encoded(family, written(family, "It is don", []))
    whole = (*body, stop_of(family, []))
    ids = renderer.extend(body, [USER], ())
    after_stop = renderer.extend(whole, [USER], ())
    assert ids[-len(after_stop) :] == after_stop
    assert len(ids) > len(after_stop) or family in ("glm-4.5", "glm-5", "glm-5.1", "glm-5.3")


@pytest.mark.parametrize("family", families())
def test_a_turn_that_goes_on_after_its_stop_token_cannot_be_extended(family):
    renderer = renderer_of(family)
    sampled = (*encoded(family, written(family, "Done.", [])), stop_of(family, []), *encoded(family, "x"))
    with pytest.raises(CannotExtendError, match="after a stop token"):
        renderer.extend(sampled, [USER], ())


@pytest.mark.parametrize("family", families(lambda each: "<think>" in renderer_of(each).markers))
def test_a_turn_that_stops_inside_its_reasoning_cannot_be_extended(family):
    if not thinking(family, "hm"):
        pytest.skip("its prompt closes the reasoning")
    opened = "<think>\n" if family in ("qwen3", "qwen3-vl") else ""
    sampled = (*encoded(family, opened + as_text(family, "I thi")), stop_of(family, []))
    with pytest.raises(CannotExtendError, match="inside reasoning"):
        renderer_of(family).extend(sampled, [USER], ())


@pytest.mark.parametrize("family", families())
def test_a_conversation_that_the_format_has_no_way_to_write_is_written_as_text(family):
    calls = tuple(
        ToolCall(id=f"c{i}", name="run", arguments=text) for i, text in enumerate(("{}", "[1]", "{"))
    )
    messages = [
        USER,
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", tool_call_id="c0"),
        USER,
    ]
    assert renderer_of(family).prompt_ids(messages, ())


def test_words_of_python_are_values_where_the_tools_schema_has_no_text():
    text = (
        "<tool_call>\n<function=run>\n<parameter=all>\nFalse\n</parameter>\n"
        "<parameter=note>\nFalse\n</parameter>\n</function>\n</tool_call>"
    )
    properties = {"all": {"type": "boolean"}, "note": {"type": "string"}}
    run = ToolSpec(name="run", description="", parameters={"type": "object", "properties": properties})
    (call,) = renderer_of("qwen3.5").parse(encoded("qwen3.5", f"\n</think>\n\n{text}"), (run,)).tool_calls
    assert (call.status, json.loads(call.arguments)) == ("ok", {"all": False, "note": "False"})


def test_a_renderer_says_which_tokens_the_tokenizer_lacks():
    with pytest.raises(
        ConfigError, match=r"lacks <\|im_user\|>, <\|im_assistant\|>, .*; give --env.tokenizer_name"
    ):
        FamilyRenderer("kimi-k2", load_tokenizer("embedded"))


def test_gpt_oss_is_refused_in_one_line_where_its_vocabulary_cannot_be_had():
    with pytest.raises(ConfigError, match="gpt-oss cannot be used") as raised:
        load_renderer(family="gpt-oss", model_name="m", tokenizer_name="embedded")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("family", families(lambda each: each != "llama-3"))
def test_a_call_that_was_cut_is_never_ok_and_the_row_goes_on(family):
    renderer = renderer_of(family)
    whole = encoded(family, written(family, "", [("run", {"command": "ls"})]))
    results = [Message(role="tool", content="3", tool_call_id="call_0")]
    for size in range(len(whole) // 3, len(whole) * 3 // 4):
        message = renderer.parse(whole[:size], tools("x"))
        assert "ok" not in [call.status for call in message.tool_calls]
        try:
            renderer.extend(whole[:size], results, tools("x"))
        except CannotExtendError:
            assert family == "gemma4"
        assert renderer.prompt_ids([USER, message, *results], tools("x"))


THINKERS = families(lambda each: "<think>" in renderer_of(each).markers and each != "llama-3")


@pytest.mark.parametrize("family", THINKERS)
def test_a_call_that_was_thought_of_is_none_and_the_one_after_it_is(family):
    renderer = renderer_of(family)
    end = "</think:opensource>" if family == "hy3" else "</think>"
    calling = [written(family, "", [("run", {"command": each})]) for each in ("rm", "ls")]
    calling = [each.removeprefix(thinking(family, None)).rpartition(end)[2] for each in calling]
    before = encoded(family, f"Maybe {calling[0]}\nbut no.{end}")
    sampled = (*before, *encoded(family, f"\n\n{calling[1]}"), stop_of(family, [1]))
    message = renderer.parse(sampled, tools("x"))
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"command": "ls"}]
    assert message.tool_calls[0].span[0] >= len(before)
    assert "Maybe" in message.reasoning
    assert renderer.extend(sampled, [Message(role="tool", content="3", tool_call_id="call_0")], tools("x"))


def test_a_turn_of_parameters_that_are_never_closed_holds_no_call():
    text = "<tool_call>\n<function=run>\n" + "<parameter=b>\n" * 20_000 + "</function>\n</tool_call>"
    message = renderer_of("qwen3.5").parse(encoded("qwen3.5", text), tools("x"))
    assert (message.tool_calls, message.content) == ((), text)


@pytest.mark.parametrize("family", families())
def test_tools_are_described_once_and_the_library_leaves_them_as_they_are(family):
    renderer, offered = renderer_of(family), tools("described once")
    described = renderer._describe(offered)
    before = json.dumps(described)
    renderer.prompt_ids(conversation("x"), offered)
    sampled = (*encoded(family, written(family, "", [("run", {"command": "ls"})])), stop_of(family, [1]))
    with suppress(CannotExtendError):
        renderer.extend(sampled, [Message(role="tool", content="3", tool_call_id="call_0")], offered)
    assert renderer._describe(tools("described once")) is described
    assert json.dumps(described) == before


# DeepSeek V4.

DSML = "deepseek-v4"
MARK = "\uff5cDSML\uff5c"
PIECES = (
    "<think>", "</think>", f"<{MARK}tool_calls>\n", f"\n</{MARK}tool_calls>", f'<{MARK}invoke name="run">\n',
    f"</{MARK}invoke>\n", f'<{MARK}parameter name="a" string="true">', f"</{MARK}parameter>\n", "1", "a b",
    f'<{MARK}parameter name="b" string="false">', "\n", "{",
)  # fmt: skip


def library_reads(ids):
    renderer = renderer_of(DSML)
    return renderer._library.parse_response(list(ids), tools=None, prompt_ids=renderer._opening)


def shown(read):
    calls = [
        (each.name or "", each.token_span, str(each.status), each.status == "ok" and dict(each.arguments))
        for each in read.tool_calls
    ]
    return read.content, read.reasoning_content or None, read.reasoning_complete, calls


@cases("seed", range(8))
def test_a_turn_is_read_as_the_library_reads_it(seed):
    rng = random.Random(seed)
    for _ in range(100):
        ids = encoded(DSML, "".join(rng.choices(PIECES, k=rng.randint(1, 14))))
        assert shown(renderer_of(DSML)._read_dsml(ids)) == shown(library_reads(ids))


def test_the_span_of_a_call_after_characters_of_many_ids_holds_it_alone():
    call = f'<{MARK}invoke name="run">\n</{MARK}invoke>'
    ids = encoded(DSML, f"ä数👩\u200d💻\ufffd{call}")
    (read,) = renderer_of(DSML)._read_dsml(ids).tool_calls
    assert renderer_of(DSML).decode(ids[slice(*read.token_span)]) == call


def test_a_vocabulary_that_finds_a_marker_in_text_makes_no_control_token_of_it():
    pieces = [("<unk>", 0.0), ("<s>", 0.0), *((each, -1.0) for each in "<s>a")]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    family_tokenizer = FamilyTokenizer(tokenizer)
    assert family_tokenizer.encode(f"<s>{family_tokenizer.from_message('a<s>')}") == [1, 5, 2, 3, 4]
