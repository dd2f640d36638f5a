import json

import pytest

from environments.policy.rendering.chat_template import ChatTemplate
from environments.policy.rendering.chatml import CannotExtendError
from environments.policy.rendering.families import load_renderer
from environments.policy.rendering.family_renderer import byte_tokenizer
from environments.policy.rendering.hermes import read_hermes_calls
from environments.policy.rendering.template_renderer import TemplateRenderer
from environments.trajectory import Message
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS = ["<|im_start|>", "<|im_end|>", "</s>"]
WEATHER = ToolSpec(name="weather", description="", parameters={"type": "object", "properties": {}})


def renderer_of(template, markers=MARKERS, *, end_ids=(), **tokens):
    return TemplateRenderer(
        ChatTemplate("a model", template, tokens=tokens, end_ids=end_ids),
        byte_tokenizer(markers),
        find_reader=lambda *_: read_hermes_calls,
    )


def user(content):
    return Message(role="user", content=content)


def encode(renderer, text):
    return tuple(renderer._tokenizer.encode(text))


def test_a_prompt_is_the_template_s_text_with_its_markers_as_tokens():
    renderer = renderer_of(CHATML)
    ids = renderer.prompt_ids([user("hi")], ())
    assert ids == encode(renderer, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_end|>b", "<|im_", "end|>", "<|<|im_end|>im_end|>"])
def test_a_marker_in_a_message_stays_text(role, text):
    renderer = renderer_of(CHATML)
    ids = renderer.prompt_ids([Message(role=role, content=text), user(text)], ())
    markers = [each for each in ids if each in renderer._tokenizer.markers.values()]
    assert markers == [256, 257, 256, 257, 256]
    assert renderer.decode(ids).count(text) >= 2


@pytest.mark.parametrize("stop", ["<|im_end|>", "</s>"])
def test_a_row_goes_on_behind_any_stop_token_with_what_the_template_writes(stop):
    renderer = renderer_of(CHATML, eos_token="</s>")
    sampled = (*encode(renderer, "  so "), *encode(renderer, stop))
    assert renderer.extend(sampled, [user("more")], ()) == encode(
        renderer, "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_cut_turn_gets_the_end_that_the_template_writes():
    renderer = renderer_of(CHATML)
    assert renderer.extend(encode(renderer, "so"), [user("more")], ()) == encode(
        renderer, "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_turn_that_goes_on_after_its_stop_token_cannot_be_extended():
    renderer = renderer_of(CHATML)
    with pytest.raises(CannotExtendError, match="tokens after a stop token"):
        renderer.extend(encode(renderer, "<|im_end|>so"), [user("more")], ())


def test_a_template_that_trims_turns_and_drops_their_thoughts_extends_them():
    template = CHATML.replace("m.content", "m.content.split('</think>')[-1] | trim")
    renderer = renderer_of(template)
    sampled = encode(renderer, " <think>why</think> so  <|im_end|>")
    assert renderer.extend(sampled, [user("more")], ()) == encode(
        renderer, "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_row_forks_where_the_template_moves_the_tools():
    moving = "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
    renderer = renderer_of(CHATML.replace("<|im_start|>{{ m.role", moving + "<|im_start|>{{ m.role"))
    with pytest.raises(CannotExtendError, match="rewrites what stands before the turn"):
        renderer.extend(encode(renderer, "so<|im_end|>"), [user("more")], [WEATHER])


def test_a_stop_token_that_opens_the_next_message_is_not_written_twice():
    """GLM's models end a turn with the marker of the next role."""
    template = (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    renderer = renderer_of(template, ["<|system|>", "<|user|>", "<|assistant|>"], end_ids=(257,))
    assert renderer.extend(encode(renderer, "so<|user|>"), [user("more")], ()) == encode(
        renderer, "\nmore<|assistant|>\n"
    )


REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('System role') }}{% endif %}" + CHATML


def test_a_system_message_that_the_template_refuses_stands_before_the_first_user_message():
    renderer = renderer_of(REFUSING)
    ids = renderer.prompt_ids([Message(role="system", content="be brief"), user("hi")], ())
    assert renderer.decode(ids).startswith("<|im_start|>user\nbe brief\n\nhi<|im_end|>")


def test_user_messages_are_joined_where_the_template_demands_that_roles_alternate():
    strict = CHATML.replace(
        "<|im_start|>{{",
        "{% if (m.role == 'user') == (loop.index0 % 2 == 1) %}{{ raise_exception('alternate') }}{% endif %}"
        "<|im_start|>{{",
    )
    renderer = renderer_of(strict)
    ids = renderer.extend(encode(renderer, "so<|im_end|>"), [user("a"), user("b")], ())
    assert renderer.decode(ids).startswith("\n<|im_start|>user\na\n\nb<|im_end|>")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "is not valid Jinja"),
        ("{{ raise_exception('no images') }}", "given a user message, raises 'no images'"),
        ("{{ messages[0].text + 1 }}", "given a user message, raises"),
        ("hello<|im_end|>", "given a user message, leaves it out"),
        (CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"),
         "given a system message, leaves it out"),
        ("{% if messages[1:] %}{{ raise_exception('one') }}{% endif %}" + CHATML,
         "given an assistant message, raises 'one'"),
        (CHATML.replace("<|im_end|>", ""), "no token of a model ends a turn"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_used_is_refused_with_its_cause(template, message):
    with pytest.raises(ConfigError, match=message):
        renderer_of(template)


def test_an_end_token_beyond_the_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="has the end token 300, and its tokenizer only 259 tokens"):
        renderer_of(CHATML, end_ids=(300,))


def test_the_folder_of_a_tokenizer_names_template_and_end_tokens(tmp_path):
    byte_tokenizer(MARKERS).save(str(tmp_path / "tokenizer.json"))
    config = {"chat_template": CHATML, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 257]}')
    renderer = load_renderer(family=None, model_name="mine", tokenizer_name=str(tmp_path))
    assert (renderer.name, renderer.stop_ids) == ("template", (257, 258, 256))


def test_tools_have_a_template_of_their_own_where_there_are_several():
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "{{ tools | tojson }}" + CHATML},
    ]
    renderer = renderer_of({each["name"]: each["template"] for each in named})
    assert renderer.decode(renderer.prompt_ids([user("hi")], [WEATHER])).startswith('[{"type": "function"')


HERMES = CHATML.replace(
    "{% for m",
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m",
).replace(
    "<|im_end|>",
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>",
)
CALL = ToolCall(id="call_0", name="weather", arguments='{"city": "Rom"}')
RESULT = Message(role="tool", content="sunny", tool_call_id="call_0")


def load(tmp_path, template, **settings):
    byte_tokenizer(MARKERS).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(template)
    return load_renderer(family=None, model_name="mine", tokenizer_name=str(tmp_path), **settings)


@pytest.mark.parametrize(("template", "in_prompt"), [(CHATML, True), (HERMES, False)])
def test_tools_are_in_the_prompt_where_the_template_has_no_place_for_them(tmp_path, template, in_prompt):
    renderer = load(tmp_path, template)
    text = renderer.decode(renderer.prompt_ids([user("hi")], [WEATHER]))
    assert ("<tools>" in text, renderer.tools_in_prompt) == (in_prompt, in_prompt)


@pytest.mark.parametrize("template", [CHATML, HERMES])
def test_a_call_is_read_and_its_result_extends_the_row(tmp_path, template):
    renderer = load(tmp_path, template)
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
    sampled = encode(renderer, f"{text}<|im_end|>")
    message = renderer.parse(sampled, [WEATHER])
    assert message == Message(role="assistant", tool_calls=(CALL,))
    new = renderer.decode(renderer.extend(sampled, [RESULT], [WEATHER]))
    assert new.startswith("\n<|im_start|>")
    assert new.count("sunny") == 1
    assert new.count("<tool_call>") == 0


def test_tools_can_be_required_to_have_a_place_in_the_template(tmp_path):
    with pytest.raises(ConfigError, match="has no place for tools"):
        load(tmp_path, CHATML, tools="template")


def test_tools_can_be_written_into_the_prompt_though_the_template_has_a_place(tmp_path):
    assert load(tmp_path, HERMES, tools="prompt").tools_in_prompt


def test_a_marker_in_a_tool_or_its_result_stays_text(tmp_path):
    renderer = load(tmp_path, CHATML)
    tool = ToolSpec(name="weather", description="<|im_end|>", parameters={"<|im_end|>": "</s>"})
    marked = Message(role="assistant", content="<|im_end|>", tool_calls=(CALL,))
    result = Message(role="tool", content="<|im_end|>")
    ids = renderer.prompt_ids([user("hi"), marked, result], [tool])
    assert [each for each in ids if each in renderer._tokenizer.markers.values()] == [256, 257] * 4 + [256]


def test_a_call_that_is_not_json_is_written_as_text_in_a_whole_prompt(tmp_path):
    renderer = load(tmp_path, HERMES)
    broken = ToolCall(id="call_0", name="weather", arguments="{broken", status="invalid_json")
    turn = Message(role="assistant", tool_calls=(broken,))
    assert "{broken" in renderer.decode(renderer.prompt_ids([user("hi"), turn, RESULT], [WEATHER]))


def test_a_result_may_contain_the_stand_in_of_a_turn():
    renderer = renderer_of(CHATML)
    result = user("\ufdd0\ufdd3 vexq3")
    new = renderer.extend(encode(renderer, "so<|im_end|>"), [result], ())
    assert renderer.decode(new).startswith("\n<|im_start|>user\n\ufdd0\ufdd3 vexq3<|im_end|>")


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("tokenizer_config.json", b'{"chat_template": [{"name": "rag", "template": "x"}]}', "texts by name"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "neither text nor"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        ("generation_config.json", b'{"eos_token_id": "2"}', "not of whole numbers"),
    ],
    ids=["no default", "no text", "encoding", "end token"],
)
def test_a_malformed_file_beside_a_tokenizer_is_one_line(tmp_path, file, content, problem):
    (tmp_path / "chat_template.jinja").write_text(CHATML if file == "generation_config.json" else "")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        ChatTemplate.load(str(tmp_path))
