import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from environments.policy.rendering.families import family_names
from environments.policy.rendering.text_calls import read_text_calls
from tests.tables import cases
from tools.calls import ToolSpec
from tools.errors import ConfigError

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


def read(case):
    content, calls = read_text_calls(case["text"], case["family"], TOOLS)
    return content, [[call.name, call.arguments, call.status] for call in calls]


def test_raw_completions_are_read_as_they_are_written_down():
    assert [case["id"] for case in CORPUS if read(case) != (case["content"], case["calls"])] == []


def test_the_corpus_has_at_least_eight_completions_of_each_format():
    assert min(Counter(case["id"].partition(":")[0] for case in CORPUS).values()) >= 8


def test_plain_text_is_left_as_it_is_by_every_family():
    text = 'Done: {"a": 1}.\n\n```\n<tool_call>{"name": "terminal", "arguments": {}}</tool_call>\n```\n'
    assert [each for each in family_names() if read_text_calls(text, each, TOOLS) != (text, ())] == []


@cases(
    ("family", "text"),
    [
        ("qwen3", "a <tool_call>" * 100_000),
        ("qwen3", "`" * 1_000_000),
        ("qwen3", "```\n" * 200_000),
        ("llama-3", "<|python_tag|>f.call(" + "(" * 20_000),
        ("mistral", "[TOOL_CALLS][" + "{" * 100_000),
        ("mistral", "[" * 1_000_000),
        ("deepseek-v3", "<｜tool▁calls▁begin｜>" + "<｜tool▁call▁begin｜>" * 100_000),
        ("gemma4", "<|tool_call>call:a{" + "{" * 50_000 + "<tool_call|>"),
    ],
    ids=["openings", "backticks", "fences", "parens", "objects", "lists", "deepseek", "gemma"],
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
        ("mistral", f"[TOOL_CALLS]{chr(0x2003) * 49_000}"),
        ("inkling", "1" * 49_000),
    ],
)
def test_no_text_that_is_read_on_the_loop_stops_it(family, text):
    read_text_calls("", family, TOOLS)
    started = time.thread_time()
    read_text_calls(text, family, TOOLS)
    # Two seconds and more where each opening is looked for in all that follows.
    assert time.thread_time() - started < 1


def test_an_unknown_family_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"no chat format 'nope'; --openai\.family is one of chatml, deepseek-r1, "
    ):
        read_text_calls("x", "nope", ())


WITHOUT_LIBRARY = """
import sys
sys.modules["renderers"] = None
from environments.policy.rendering.text_calls import read_text_calls
from environments.policy.rendering.families import family_of
print(family_of("Qwen/Qwen3-8B"))
for family, text in {
    "chatml": '<tool_call>\\n{"name": "run", "arguments": {}}\\n</tool_call>',
    "hermes": '<tool_call>\\n{"name": "run", "arguments": {}}\\n</tool_call>',
    "qwen3": '<tool_call>\\n{"name": "run", "arguments": {}}\\n</tool_call>',
    "mistral": '[TOOL_CALLS]run[ARGS]{}',
    "llama-3": '<|python_tag|>run.call()',
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
    assert read == ["qwen3", *["run"] * 5]
    assert refused == (
        "ConfigError the chat format glm-5 needs the package renderers, which is not here; "
        "pip install 'turnwise[families]'"
    )
