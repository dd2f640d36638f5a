"""Trains the embedded tokenizer on the text of this repository.

Run `python -m scripts.train_tokenizer` in the root of a checkout. It rewrites `tokenizer.json` and
`tokenizer_config.json` in `environments/policy/rendering/embedded_tokenizer/`; the chat template beside them
is written by hand. The result is deterministic. Training again changes every recorded token id, and is
not needed when the sources change.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, MARKERS

VOCAB_SIZE = 2048
CORPUS = ("docs/**/*.md", "environments/**/*.py", "tools/**/*.py", "*.md")
WORDS = r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
"""No lookahead, so text cut between two tokens encodes to the tokens before the cut."""


def main() -> None:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(WORDS), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(marker, special=True, normalized=False) for marker in MARKERS],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(Path(__file__).parents[1]), trainer)
    tokenizer.save(str(EMBEDDED_TOKENIZER_DIR / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": [
            marker for marker in MARKERS if marker not in ("<|im_end|>", "<|endoftext|>")
        ],
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
    }
    path = EMBEDDED_TOKENIZER_DIR / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _corpus(root: Path) -> Iterator[str]:
    for pattern in CORPUS:
        for path in sorted(root.glob(pattern)):
            yield path.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
