"""Estimates of a model's tokens, where its tokenizer is not at hand: our counts, corrected by a server's."""

import logging
from collections import deque
from collections.abc import Sequence
from math import ceil, log2

from environments.policy.rendering.chatml import ChatMLRenderer, rendered
from environments.trajectory import Message
from tools.calls import ToolSpec

_LOG = logging.getLogger(__name__)
_UNKNOWN = 1.25
"""The model's tokens for one of ours, of a model that gives no counts: rather too many."""
_SIZES_PER_OCTAVE = 4
_KEPT = 16
"""Ratios of each size."""


class TokenEstimate:
    """Counts with our tokenizer, calibrated by what the model's server counted. All rollouts share it."""

    def __init__(self, renderer: ChatMLRenderer) -> None:
        """Nothing is known of the model yet."""
        self._renderer = renderer
        self._prompts = _Ratios()
        self._additions = _Ratios()
        self._gives_no_counts = False
        self._is_told = False

    async def ours(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, max_tokens: int | None = None
    ) -> int:
        """Tokens of a prompt by our own tokenizer and chat format.

        Raises:
            ContextOverflow: they are more than `max_tokens` for certain.
        """
        return await rendered(
            lambda: self._renderer.prompt_tokens(messages, tools),
            self._renderer,
            messages,
            max_tokens=max_tokens,
        )

    def of_prompt(self, ours: int) -> int:
        """The model's tokens for so many of ours, of a whole prompt."""
        return ceil(ours * self._ratio(self._prompts, ours))

    def of_addition(self, ours: int) -> int:
        """The model's tokens for so many of ours, of what joins a prompt."""
        return ceil(ours * self._ratio(self._additions if self._additions.are_known else self._prompts, ours))

    def learn_prompt(self, ours: int, counted: int | None) -> None:
        """What the model's server counted in a prompt; `None`: it does not say."""
        if counted is None:
            self._gives_no_counts = True
        else:
            self._prompts.add(ours, counted)

    def learn_addition(self, ours: int, counted: int) -> None:
        """What the model's server counted in what joined a prompt."""
        self._additions.add(ours, counted)

    def tell(self, policy: str) -> None:
        """Say once that these are estimates."""
        if not self._is_told:
            self._is_told = True
            _LOG.warning(
                "%s: prompt tokens are estimates for condensers: our tokenizer counts, and what the server "
                "counts corrects it", policy,
            )  # fmt: skip

    def _ratio(self, ratios: "_Ratios", ours: int) -> float:
        known = ratios.largest_near(ours)
        if known is not None:
            return known
        # Before the first answer there is nothing but the opening, which nothing could make shorter.
        return _UNKNOWN if self._gives_no_counts else 1.0


class _Ratios:
    """What one of our tokens is in the model's, by size: what a server adds weighs less in long prompts."""

    def __init__(self) -> None:
        self._by_size: dict[int, deque[float]] = {}

    @property
    def are_known(self) -> bool:
        return bool(self._by_size)

    def add(self, ours: int, counted: int) -> None:
        if ours > 0:
            self._by_size.setdefault(_size(ours), deque(maxlen=_KEPT)).append(counted / ours)

    def largest_near(self, ours: int) -> float | None:
        if not self._by_size:
            return None
        size = _size(max(1, ours))
        return max(self._by_size[min(self._by_size, key=lambda each: abs(each - size))])


def _size(ours: int) -> int:
    return round(_SIZES_PER_OCTAVE * log2(ours))
