"""The texts of sampled tokens, one by one, where there is a tokenizer that they are of."""

from collections.abc import Sequence
from functools import cache
from typing import Self

from tokenizers import Tokenizer

from environments.policy.rendering.chatml import EMBEDDED, load_tokenizer

_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 8
"""Tokens that one character may be spread over."""
_SPACE = "\u2581"


class TokenTexts:
    """Texts of token ids."""

    def __init__(self, tokenizer: Tokenizer, *, is_named: bool) -> None:
        """A tokenizer that was named is trusted; else its texts must be those that were recorded."""
        self._tokenizer = tokenizer
        self._is_named = is_named
        self._of_one = cache(self._decoded_one)

    @classmethod
    def of(cls, name: str | None) -> Self:
        """Those of a named tokenizer, or else of the embedded one.

        Raises:
            ConfigError: there is no such tokenizer.
        """
        return cls(load_tokenizer(EMBEDDED if name is None else name), is_named=name is not None)

    def texts(self, ids: Sequence[int], said: str) -> list[str] | None:
        """A text per token; `None` where they are not of this tokenizer.

        Args:
            ids: the sampled tokens of a turn.
            said: the recorded text of its message, which theirs begins with, spaces aside.
        """
        if not self._is_named and not self._is_own(ids, said):
            return None
        texts: list[str] = []
        waiting: list[int] = []
        for token in ids:
            text = self._of_one(token)
            if waiting or text.endswith(_UNFINISHED):
                waiting.append(token)
                text = self._decoded(waiting)
                if text.endswith(_UNFINISHED) and len(waiting) < _LONGEST_CHARACTER:
                    texts.append("")
                    continue
                waiting = []
            texts.append(text)
        if waiting:
            texts[-1] = self._decoded(waiting)
        return texts

    def _is_own(self, ids: Sequence[int], said: str) -> bool:
        if not ids or max(ids) >= self._tokenizer.get_vocab_size():
            return False
        return said.strip()[:200] in self._decoded(ids)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _decoded_one(self, token: int) -> str:
        text = self._decoded((token,))
        piece = self._tokenizer.id_to_token(token) or ""
        # Pieces of SentencePiece lose the space that they begin with when they stand alone.
        return f" {text}" if piece.startswith(_SPACE) and not text.startswith(" ") else text
