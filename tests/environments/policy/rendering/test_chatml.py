import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from environments.policy.rendering.chatml import (
    EMBEDDED_TOKENIZER_DIR,
    MARKERS,
    CannotExtendError,
    ChatMLRenderer,
)
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError

RENDERER = ChatMLRenderer.embedded()
TERMINAL = ToolSpec(
    name="terminal",
    description="Run a command; prints what it wrote, e.g. “ä”.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)

texts = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            [*MARKERS, " ", "\n", "\n\n", "  x", "ls -la", "naïve 数", "👩‍💻", '{"a": 1}', "assistant"]
        ),
    ),
    max_size=6,
).map("".join)
calls = st.builds(ToolCall, id=st.just("c"), name=texts, arguments=texts)
assistants = st.builds(
    Message,
    role=st.just("assistant"),
    content=texts,
    reasoning=st.one_of(st.none(), texts.filter(bool)),
    tool_calls=st.lists(calls, max_size=3).map(tuple),
)
others = st.builds(Message, role=st.sampled_from(["user", "tool"]), content=texts)
tool_sets = st.sampled_from([(), (TERMINAL,)])


def byte_tokenizer(*added):
    """A foreign tokenizer: one token per byte, and `added` tokens that are not special."""
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer


@given(
    system=st.one_of(st.none(), texts),
    turns=st.lists(st.tuples(st.lists(others, max_size=2), assistants), min_size=1, max_size=6),
    tools=tool_sets,
)
def test_each_prompt_starts_with_the_prompt_and_the_sampled_tokens_before_it(system, turns, tools):
    messages = [] if system is None else [Message(role="system", content=system)]
    held = ()
    for before, sampled in turns:
        messages += before
        prompt = RENDERER.prompt_ids(messages, tools)
        assert prompt[: len(held)] == held
        held = prompt + RENDERER.completion_ids(sampled)
        messages.append(sampled)


@given(message=st.one_of(assistants, others))
def test_text_never_becomes_a_control_token(message):
    same_shape = Message(
        role=message.role,
        content=message.content and "x",
        reasoning=message.reasoning and "x",
        tool_calls=tuple(ToolCall(id="c", name="x", arguments="x") for _ in message.tool_calls),
    )
    assert control_tokens([message]) == control_tokens([same_shape])


def control_tokens(messages):
    return [token_id for token_id in RENDERER.prompt_ids(messages, ()) if token_id < len(MARKERS)]


@given(message=assistants)
def test_parsing_gives_back_the_message_that_was_rendered(message):
    parsed = RENDERER.parse(RENDERER.completion_ids(message))
    assert (parsed.content, parsed.reasoning) == (message.content, message.reasoning)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
        (call.name, call.arguments) for call in message.tool_calls
    ]


@given(message=assistants, data=st.data())
def test_parsing_a_cut_message_gives_the_calls_that_were_closed(message, data):
    ids = RENDERER.completion_ids(message)
    cut = ids[: data.draw(st.integers(0, len(ids)))]
    closed = cut.count(MARKERS.index("</tool_call>"))
    parsed = RENDERER.parse(cut).tool_calls
    kept = [(call.name, call.arguments) for call in parsed if call.status != "unclosed_block"]
    assert kept == [(call.name, call.arguments) for call in message.tool_calls][:closed]


@given(message=assistants)
def test_the_span_of_a_call_holds_its_markers_and_what_is_between_them(message):
    ids = RENDERER.completion_ids(message)
    for call in RENDERER.parse(ids).tool_calls:
        start, end = call.span
        assert (ids[start], ids[end - 1]) == (MARKERS.index("<tool_call>"), MARKERS.index("</tool_call>"))
        assert call.arguments in RENDERER.decode(ids[start:end])


@given(
    system=st.one_of(st.none(), texts),
    turns=st.lists(st.tuples(assistants, st.lists(others, max_size=3)), min_size=1, max_size=5),
    tools=tool_sets,
    data=st.data(),
)
def test_a_row_goes_on_as_a_prompt_of_the_grown_conversation(system, turns, tools, data):
    messages = [] if system is None else [Message(role="system", content=system)]
    stop, end_of_text = RENDERER.stop_ids
    row = list(RENDERER.prompt_ids(messages, tools))
    expected = list(row)
    for message, answers in turns:
        body = RENDERER.completion_ids(message, stopped=False)
        ended = data.draw(st.sampled_from([(stop,), (end_of_text,), ()]))
        sampled = (*body, *ended)
        expected = [*row, *body, *(ended or (stop,))]
        row += [*sampled, *RENDERER.extend(sampled, answers, tools)]
        messages += [message, *answers]
        whole = RENDERER.prompt_ids(messages, tools)
        assert row == [*expected, *whole[len(expected) :]]
        assert len(row) == len(whole)


def test_a_turn_that_goes_on_after_its_stop_token_cannot_be_extended():
    sampled = RENDERER.completion_ids(Message(role="assistant", content="done"))
    with pytest.raises(CannotExtendError, match="after a stop token"):
        RENDERER.extend((*sampled, 300), [Message(role="user", content="more")])


def test_a_call_in_the_reasoning_is_no_call():
    ids = marked("<think>", "\nmaybe", "<tool_call>", '{"name": "rm"}', "</tool_call>", "</think>", "\n\nok")
    assert (RENDERER.parse(ids).content, RENDERER.parse(ids).tool_calls) == ("ok", ())


def marked(*parts):
    """Ids of text in which the markers are control tokens, as a model samples them."""
    ids = []
    for part in parts:
        text = RENDERER.completion_ids(Message(role="assistant", content=part), stopped=False)
        ids += [MARKERS.index(part)] if part in MARKERS else text
    return ids


@given(content=texts, data=st.data())
def test_text_cut_between_tokens_encodes_to_the_tokens_before_the_cut(content, data):
    ids = RENDERER.completion_ids(Message(role="assistant", content=content), stopped=False)
    cut = ids[: data.draw(st.integers(0, len(ids)))]
    text = RENDERER.parse(cut).content
    if content.startswith(text):  # the cut is not inside a character
        assert RENDERER.completion_ids(Message(role="assistant", content=text), stopped=False) == cut


@given(message=assistants, tools=tool_sets)
def test_the_decoded_prompt_is_what_the_chat_template_writes(message, tools):
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="How many?"),
        message,
        Message(role="tool", content="3", tool_call_id="c"),
    ]
    template = hugging_face_tokenizer().apply_chat_template(
        [spoken.to_openai() for spoken in messages],
        tools=[tool.to_openai() for tool in tools] or None,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert RENDERER.decode(RENDERER.prompt_ids(messages, tools)) == template


_loaded = []


def hugging_face_tokenizer():
    if not _loaded:
        _loaded.append(AutoTokenizer.from_pretrained(str(EMBEDDED_TOKENIZER_DIR), local_files_only=True))
    return _loaded[0]


def test_the_folder_loads_with_auto_tokenizer_and_has_the_same_ids():
    text = "Count the files, please."
    ids = hugging_face_tokenizer()(text)["input_ids"]
    assert tuple(ids) == RENDERER.completion_ids(Message(role="assistant", content=text), stopped=False)


def test_an_added_token_of_a_foreign_tokenizer_is_no_control_token_in_text():
    renderer = ChatMLRenderer(byte_tokenizer("<|im_end|>", "</tool_response>"))
    prompt = renderer.prompt_ids([Message(role="tool", content="</tool_response><|im_end|>")], ())
    assert [token_id for token_id in prompt if token_id >= 256] == [257, 256]


def test_a_foreign_tokenizer_without_the_markers_spells_them_out():
    messages = [Message(role="user", content="hi")]
    renderer = ChatMLRenderer(byte_tokenizer())
    assert (
        renderer.decode(renderer.prompt_ids(messages, ()))
        == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", ["embedded", str(EMBEDDED_TOKENIZER_DIR)])
def test_a_tokenizer_is_loaded_by_its_name_or_its_folder(name):
    messages = [Message(role="user", content="hi")]
    assert ChatMLRenderer.load(name).prompt_ids(messages, ()) == RENDERER.prompt_ids(messages, ())


def test_a_tokenizer_that_cannot_be_loaded_is_refused_with_what_to_give(tmp_path):
    (tmp_path / "malformed").mkdir()
    (tmp_path / "malformed" / "tokenizer.json").write_text('{"model": 1}')
    for name, problem in {
        "two words": r"^no tokenizer 'two words': .*; give `embedded`, a folder",
        "./nosuch": r"^no tokenizer folder \./nosuch; give one",
        "~/nosuch": "^no tokenizer folder ~/nosuch; give one",
        str(tmp_path): "no tokenizer at",
        str(tmp_path / "malformed"): "is not a tokenizer",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            ChatMLRenderer.load(name)


def test_a_prompt_encodes_only_its_new_messages():
    renderer = ChatMLRenderer.load(str(EMBEDDED_TOKENIZER_DIR))
    encoded = []
    encode = renderer._text
    renderer._text = lambda text: encoded.append(text) or encode(text)
    messages = [Message(role="user", content=f"question {index}") for index in range(50)]
    renderer.prompt_ids(messages, (TERMINAL,))
    encoded.clear()
    renderer.prompt_ids([*messages, Message(role="user", content="new")], (TERMINAL,))
    assert encoded == ["new"]


def test_tools_are_written_as_json_once(monkeypatch):
    written = []
    to_openai = ToolSpec.to_openai
    monkeypatch.setattr(ToolSpec, "to_openai", lambda spec: written.append(spec) or to_openai(spec))
    spec = ToolSpec(name="once", description="Only once.", parameters={})
    for number in range(3):
        RENDERER.prompt_ids([Message(role="system", content=f"system {number}")], (spec,))
    assert written == [spec]


def test_the_cache_is_bounded_by_tokens(monkeypatch):
    monkeypatch.setattr("environments.policy.rendering.chatml._CACHED_TOKENS", 200)
    renderer = ChatMLRenderer.load(str(EMBEDDED_TOKENIZER_DIR))
    messages = [Message(role="user", content=f"question {index}") for index in range(500)]
    ids = renderer.prompt_ids(messages, ())
    held = sum(len(entry) + 1 for entry in renderer._cache._entries.values())
    assert ids == RENDERER.prompt_ids(messages, ())
    assert held <= 200
