"""Where tokenizers come from: the embedded one, a folder, or the Hugging Face hub."""

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from tools.errors import ConfigError

EMBEDDED_TOKENIZER_DIR: Final = Path(__file__).parent / "embedded_tokenizer"
"""A byte-level BPE of 2,048 tokens; `transformers.AutoTokenizer.from_pretrained` loads it, too."""
EMBEDDED: Final = "embedded"


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of `embedded`, of a local folder, or of a Hugging Face name.

    Raises:
        ConfigError: there is no such tokenizer, or it has no `tokenizer.json`.
    """
    if name == EMBEDDED:
        return tokenizer_in(EMBEDDED_TOKENIZER_DIR)
    if Path(name).is_dir():
        return tokenizer_in(Path(name))
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"no tokenizer folder {name}; give one with a tokenizer.json, or `embedded`")
    try:
        return Tokenizer.from_pretrained(name)
    except Exception as error:  # the hub client raises a dozen unrelated classes
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"no tokenizer {name!r}: {reason}; give `embedded`, a folder with a tokenizer.json, or a "
            f"Hugging Face name"
        ) from error


def tokenizer_in(folder: Path) -> Tokenizer:
    """The tokenizer of a folder with a `tokenizer.json`.

    Raises:
        ConfigError: the folder has none, or it cannot be read.
    """
    path = folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"no tokenizer at {path}: {error.strerror}; give a folder that has one") from error
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # what tokenizers raises for a malformed file
        raise ConfigError(f"{path} is not a tokenizer of the `tokenizers` library: {error}") from error
