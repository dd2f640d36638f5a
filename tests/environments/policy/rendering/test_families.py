import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from renderers.base import MODEL_RENDERER_MAP, RENDERER_REGISTRY, _populate_registry

from environments.policy.rendering.chatml import ChatMLRenderer, load_tokenizer
from environments.policy.rendering.families import (
    LIBRARY_FAMILIES,
    detect_family,
    family_names,
    load_renderer,
    read_text_calls,
)
from tests.tables import cases
from tools.calls import ToolSpec
from tools.errors import ConfigError


def test_every_family_of_the_library_has_its_name_here():
    _populate_registry()
    assert set(LIBRARY_FAMILIES) == set(RENDERER_REGISTRY) - {"default"}


def test_models_that_the_library_knows_have_the_same_family_here():
    assert {model: detect_family(model) for model in MODEL_RENDERER_MAP} == MODEL_RENDERER_MAP


@cases(
    ("model", "family"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "hermes"),
        ("mistralai/Mistral-7B-Instruct-v0.3", None),
        ("deepseek-ai/DeepSeek-V3.1", None),
        ("qwen3:8b", "qwen3"),
        ("llama3.1:8b", "llama-3"),
        ("tencent/Hy3-preview", None),
        ("gpt-4.1", None),
        ("default", None),
    ],
)
def test_other_models_are_told_by_their_names(model, family):
    assert detect_family(model) == family


def test_the_embedded_tokenizer_is_chatml_unless_a_family_is_named():
    renderer = load_renderer(family=None, model_name="Qwen/Qwen3-8B", tokenizer_name="embedded")
    assert renderer.name == "chatml"


def test_a_family_known_in_text_alone_is_rendered_by_its_template():
    renderer = load_renderer(family="hermes", model_name="m", tokenizer_name="embedded")
    assert renderer.name == "template"


def test_a_model_whose_format_is_not_known_asks_for_its_family(tmp_path):
    load_tokenizer("embedded").save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="the chat format of 'mine' is not known"):
        load_renderer(family=None, model_name="mine", tokenizer_name=str(tmp_path))


def test_chatml_needs_its_markers_as_tokens(tmp_path):
    from environments.policy.rendering.family_renderer import byte_tokenizer

    byte_tokenizer(["<|im_end|>"]).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"lacks <\|im_start\|> of the chat format"):
        load_renderer(family="chatml", model_name="m", tokenizer_name=str(tmp_path))


def test_no_family_is_imported_before_one_is_used():
    code = "import sys, environments.policy.rendering.families\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print([n for n in ('renderers', 'openai') if n in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_renderer_keeps_its_ids_when_its_tokenizer_is_changed_afterwards():
    tokenizer = load_tokenizer("embedded")
    renderer = ChatMLRenderer(tokenizer)
    before = renderer.prompt_ids([], ())
    tokenizer.enable_truncation(1)
    assert renderer.prompt_ids([], ()) == before


# Calls in the text of a reply.

CORPUS = [
    json.loads(line) for line in (Path(__file__).parent / "raw_completions.jsonl").read_text().splitlines()
]
TOOLS = (
    ToolSpec(
        name="terminal",
        description="",
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "all": {"type": "boolean"},
                "options": {"type": "object"},
            },
        },
    ),
    ToolSpec(
        name="add", description="", parameters={"type": "object", "properties": {"a": {"type": "number"}}}
    ),
)


def test_raw_completions_are_read_as_they_are_written_down():
    for case in CORPUS:
        content, calls = read_text_calls(case["text"], case["family"], TOOLS)
        read = [[call.name, call.arguments, call.status] for call in calls]
        assert (content, read) == (case["content"], case["calls"]), case["id"]


def test_plain_text_is_left_as_it_is_by_every_family():
    text = 'Done: {"a": 1}.\n\n```\n<tool_call>{"name": "terminal", "arguments": {}}</tool_call>\n```\n'
    assert [each for each in family_names() if read_text_calls(text, each, TOOLS) != (text, ())] == []


@cases(
    ("family", "text"),
    [
        ("qwen3", "a <tool_call>" * 100_000),
        ("qwen3", "`" * 1_000_000),
        ("qwen3", "```\n" * 200_000),
        ("qwen3", '<tool_call>{"a":' + "[" * 100_000 + "</tool_call>"),
        ("llama-3", "{" * 100_000),
        ("deepseek-v3", "<｜tool▁calls▁begin｜>" + "<｜tool▁call▁begin｜>" * 100_000),
        ("gemma4", "<|tool_call>call:a{" + "{" * 50_000 + "<tool_call|>"),
    ],
    ids=["openings", "backticks", "fences", "lists", "objects", "deepseek", "gemma"],
)
def test_text_made_to_be_slow_or_deep_gives_no_call(family, text):
    _, calls = read_text_calls(text, family, TOOLS)
    assert "ok" not in [call.status for call in calls]


@cases(
    ("family", "text"),
    [
        ("qwen3-coder", f"<tool_call>{'<function=' * 5_000}</tool_call>"),
        ("qwen3.5", f"<tool_call>{'<function=f' * 4_500}</tool_call>"),
        ("minimax-m2", f"<minimax:tool_call>{'<invoke name=' * 3_500}</minimax:tool_call>"),
        ("deepseek-v4", f"<｜DSML｜tool_calls>{chr(0x2003) * 49_000}</｜DSML｜tool_calls>"),
        ("inkling", "1" * 49_000),
    ],
)
def test_no_text_that_is_read_on_the_loop_stops_it(family, text):
    read_text_calls("", family, TOOLS)
    started = time.thread_time()
    read_text_calls(text, family, TOOLS)
    # Two seconds and more where each opening is looked for in all that follows.
    assert time.thread_time() - started < 1


@cases(
    ("family", "text"),
    [
        ("hermes", '<tool_call>{"name": "ad\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>'),
        ("llama-3", '{"name": "add", "parameters": {"a": "\\ud800"}}'),
    ],
)
def test_half_a_character_in_a_call_is_text_that_can_be_recorded(family, text):
    _, (call,) = read_text_calls(text, family, TOOLS)
    assert r"\ud800" in (call.name + call.arguments).encode().decode()


def test_an_unknown_family_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"no chat format 'nope'; --openai\.family is one of chatml, deepseek-r1, "
    ):
        read_text_calls("x", "nope", ())


WITHOUT_LIBRARY = """
import sys
sys.modules["renderers"] = None
from environments.policy.rendering.families import detect_family, read_text_calls
print(detect_family("Qwen/Qwen3-8B"))
for family, text in {
    "chatml": '<tool_call>\\n{"name": "run", "arguments": {}}\\n</tool_call>',
    "hermes": '<tool_call>\\n{"name": "run", "arguments": {}}\\n</tool_call>',
    "qwen3": '<tool_call>\\n{"name": "run", "arguments": {}}\\n</tool_call>',
}.items():
    print(read_text_calls(text, family, ())[1][0].name)
try:
    read_text_calls("<tool_call>x</tool_call>", "glm-5", ())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_without_the_extra_the_usual_formats_are_read_and_the_others_name_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBRARY], capture_output=True, text=True, check=True)
    *read, refused = done.stdout.splitlines()
    assert read == ["qwen3", *["run"] * 3]
    assert refused == (
        "ConfigError the chat format glm-5 needs the package renderers, which is not here; "
        "pip install 'turnwise[families]'"
    )
