"""Tokenizer folders of GGUFs; tests/turnwise/cli/test_smol.py compares one with llama.cpp's own tokenizer."""

import importlib
import os

import pytest

from environments.policy.rendering.chatml import load_tokenizer
from environments.policy.rendering.gguf_tokenizer import write_tokenizer_folder
from tests.tables import cases
from tools.errors import ConfigError

if not os.environ.get("TURNWISE_REQUIRE_SMOL"):
    pytest.importorskip("gguf", reason="needs gguf, which `turnwise[smol]` brings")
gguf = importlib.import_module("gguf")
CONTROL, NORMAL = 3, 1
TOKENS = ["<|im_end|>", "a", "b", "Ġ", "1", "ab", "Ġab"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def model_in(folder, *, pre="smollm", kind="gpt2", eos=True, template="{{ messages }}"):
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL, *[NORMAL] * 6])
    writer.add_token_merges(["a b", "Ġ ab"])
    if eos:
        writer.add_eos_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_tokenizer_is_made_of_vocabulary_merges_and_control_tokens(tmp_path):
    tokenizer = load_tokenizer(str(write_tokenizer_folder(model_in(tmp_path))))
    assert tokenizer.encode("ab ab11<|im_end|>").ids == [5, 6, 4, 4, 0]


def test_the_chat_template_stands_beside_the_tokenizer(tmp_path):
    folder = write_tokenizer_folder(model_in(tmp_path))
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"


def test_files_with_equal_content_have_one_folder_which_is_written_once(tmp_path):
    folder = write_tokenizer_folder(model_in(tmp_path))
    (folder / "tokenizer.json").unlink()
    assert write_tokenizer_folder(model_in(tmp_path)) == folder
    assert not (folder / "tokenizer.json").exists()


@cases(
    ("changes", "said"),
    [
        ({"template": None}, "has no chat_template"),
        ({"eos": False}, "has no eos_token_id"),
        ({"kind": "llama"}, "kind llama smollm; gpt2 with"),
        ({"pre": "tekken"}, "kind gpt2 tekken; gpt2 with"),
    ],
)
def test_a_model_without_a_part_or_with_another_tokenizer_is_refused(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        write_tokenizer_folder(model_in(tmp_path, **changes))


@cases(
    "content",
    [b"", b"no model", b"GGUF", b"GGUF\3\0\0\0" + b"\xff" * 500],
    ids=["empty", "text", "cut", "noise"],
)
def test_a_file_that_is_no_whole_gguf_is_refused(tmp_path, content):
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.gguf is no whole GGUF"):
        write_tokenizer_folder(tmp_path / "bad.gguf")


def test_what_is_no_file_is_refused_before_it_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ConfigError, match=r"no GGUF at .*: it is no regular file"):
        write_tokenizer_folder(tmp_path / "pipe.gguf")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no GGUF at .*: No such file"):
        write_tokenizer_folder(tmp_path / "missing.gguf")
