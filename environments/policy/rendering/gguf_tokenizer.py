"""A tokenizer folder made from the metadata of a GGUF, llama.cpp's model file."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tools.errors import ConfigError
from tools.extras import needs_extra

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT_4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT_2,),
    "smollm": (r"\p{N}", _GPT_2),
    "llama-bpe": (_GPT_4 % "{1,3}",),
    "qwen2": (_GPT_4 % "",),
}
"""Regexes by `tokenizer.ggml.pre`, applied one after the other."""
_WHOLE_WORDS = frozenset({"llama-bpe"})
"""Pre-tokenizers whose words are looked up whole before merges apply."""
_CONTROL, _USER_DEFINED = 3, 4


def write_tokenizer_folder(gguf: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja once into the user's cache.

    Raises:
        ConfigError: if the file is no GGUF of a chat model, or its tokenizer is not supported.
    """
    if gguf.exists() and not gguf.is_file():
        raise ConfigError(f"no GGUF at {gguf}: it is no regular file")
    try:
        with gguf.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"no GGUF at {gguf}: {error.strerror}") from error
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(caches, "turnwise", "models", f"{gguf.stem}-{digest[:16]}").absolute()
    if folder.is_dir():
        return folder
    texts = _make_files(gguf)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            for name, text in texts.items():
                (made / name).write_text(text, encoding="utf-8")
            if not folder.is_dir():  # else another process made it meanwhile
                made.rename(folder)
    except OSError as error:
        raise ConfigError(
            f"the tokenizer cannot be kept in {folder.parent} ({error.strerror}); set XDG_CACHE_HOME to a "
            f"folder that can be written"
        ) from error
    return folder


def _make_files(gguf: Path) -> Mapping[str, str]:
    with needs_extra("smol", "a GGUF"):
        reader: Any = import_module("gguf").GGUFReader
    try:
        fields: Mapping[str, Any] = reader(gguf).fields
        names = [name for name in fields if name.startswith("tokenizer.")]
        metadata = {re.sub(r"tokenizer\.(ggml\.)?", "", name): fields[name].contents() for name in names}
    except (OSError, ValueError, LookupError, OverflowError) as error:
        raise ConfigError(f"{gguf} is no whole GGUF: {error}") from error
    kind: Any = metadata.get("model")
    pre: Any = metadata.get("pre")
    if kind != "gpt2" or pre not in _SPLITS:
        raise ConfigError(
            f"{gguf} has a tokenizer of kind {kind} {pre}; gpt2 with {', '.join(_SPLITS)} is possible"
        )
    for needed in ("chat_template", "eos_token_id"):
        if needed not in metadata:
            raise ConfigError(f"{gguf} has no {needed}; take the GGUF of a chat model")
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    tokens: list[str] = metadata["tokens"]
    config: dict[str, str] = {
        f"{name}_token": tokens[metadata[f"{key}_token_id"]]
        for name, key in named.items()
        if f"{key}_token_id" in metadata
    }
    return {
        "tokenizer.json": _make_tokenizer(metadata, tokens, pre).to_str(),
        "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}),
        "chat_template.jinja": metadata["chat_template"],
    }


def _make_tokenizer(metadata: Mapping[str, Any], tokens: list[str], pre: str) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["token_type"], strict=True)
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in kinds
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType] - its stub says `list`
    return tokenizer
