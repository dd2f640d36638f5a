import subprocess
import sys

import pytest
from renderers.base import MODEL_RENDERER_MAP, RENDERER_REGISTRY, _populate_registry

from environments.policy.rendering.chatml import ChatMLRenderer, load_tokenizer
from environments.policy.rendering.families import (
    LIBRARY_FAMILIES,
    family_names,
    family_of,
    load_renderer,
)
from tests.tables import cases
from tools.errors import ConfigError


def test_every_family_of_the_library_has_its_name_here():
    _populate_registry()
    assert set(LIBRARY_FAMILIES) == set(RENDERER_REGISTRY) - {"default"}


def test_models_that_the_library_knows_have_the_same_family_here():
    assert {model: family_of(model) for model in MODEL_RENDERER_MAP} == MODEL_RENDERER_MAP


@cases(
    ("model", "family"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "hermes"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
        ("qwen3:8b", "qwen3"),
        ("llama3.1:8b", "llama-3"),
        ("tencent/Hy3-preview", None),
        ("gpt-4.1", None),
        ("default", None),
    ],
)
def test_other_models_are_told_by_their_names(model, family):
    assert family_of(model) == family


def test_every_family_that_a_name_tells_is_one_of_the_names():
    assert {family_of(model) for model in MODEL_RENDERER_MAP} <= set(family_names())


def test_the_embedded_tokenizer_is_chatml_unless_a_family_is_named():
    renderer = load_renderer(family=None, model_name="Qwen/Qwen3-8B", tokenizer_name="embedded")
    assert renderer.name == "chatml"


def test_a_family_known_in_text_alone_has_no_renderer():
    with pytest.raises(ConfigError, match="for calls in text, not for token ids"):
        load_renderer(family="mistral", model_name="m", tokenizer_name="embedded")


def test_a_model_whose_format_is_not_known_asks_for_its_family(tmp_path):
    load_tokenizer("embedded").save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="the chat format of 'mine' is not known"):
        load_renderer(family=None, model_name="mine", tokenizer_name=str(tmp_path))


def test_chatml_needs_its_markers_as_tokens(tmp_path):
    from environments.policy.rendering.family_renderer import byte_tokenizer

    byte_tokenizer(["<|im_end|>"]).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ConfigError, match=r"lacks <\|im_start\|>, <tool_call>, </tool_call> of the chat format"
    ):
        load_renderer(family="chatml", model_name="m", tokenizer_name=str(tmp_path))


def test_no_family_is_imported_before_one_is_used():
    code = "import sys, environments.policy.rendering.families, environments.policy.rendering.text_calls\n"
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
