"""Token counts of prompts for condensers: by the policy, or estimated."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from environments.policy.base import CompletionRequest, Policy, find_prompt_counter
from environments.policy.rendering.chatml import ChatMLRenderer, count_chars, run_rendering
from environments.policy.row_prompt import new_messages
from environments.rollout.containment.hook_calls import HookCalls
from environments.trajectory import Completion, Message
from tools.calls import ToolSpec
from tools.errors import ContextOverflow, PolicyError

_LOG = logging.getLogger(__name__)
_UNKNOWN = 1.25
"""Assumed tokens of the model per token of ours if it reports no counts; an overestimate."""
_SIZES_PER_OCTAVE = 4
_KEPT = 16


class TokenEstimate:
    """Token counts by our tokenizer, calibrated with the server's usage. Shared by all rollouts."""

    def __init__(self, renderer: ChatMLRenderer) -> None:
        self._renderer = renderer
        self._prompts = _Ratios()
        self.additions = _Ratios()
        self._gives_no_counts = False
        self._is_told = False

    async def ours(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, max_tokens: int | None = None
    ) -> int:
        return await run_rendering(
            lambda: self._renderer.prompt_tokens(messages, tools),
            self._renderer,
            messages,
            max_tokens=max_tokens,
        )

    def of_prompt(self, ours: int) -> int:
        return ceil(ours * self._ratio(self._prompts, ours))

    def of_addition(self, ours: int) -> int:
        return ceil(ours * self._ratio(self.additions if self.additions.by_size else self._prompts, ours))

    def learn_prompt(self, ours: int, counted: int | None) -> None:
        if counted is None:
            self._gives_no_counts = True
        else:
            self._prompts.add(ours, counted)

    def tell(self, policy: str) -> None:
        if not self._is_told:
            self._is_told = True
            _LOG.warning(
                "%s: estimated prompt tokens are used: counts of our tokenizer, corrected for condensers by "
                "those of the server", policy,
            )  # fmt: skip

    def _ratio(self, ratios: "_Ratios", ours: int) -> float:
        if not ratios.by_size:
            # Before the first answer there is only the opening, which no condenser can shorten.
            return _UNKNOWN if self._gives_no_counts else 1.0
        size = _size(max(1, ours))
        return max(ratios.by_size[min(ratios.by_size, key=lambda each: abs(each - size))])


class _Ratios:
    """Tokens of the model per token of ours by size, since fixed additions weigh less in long prompts."""

    def __init__(self) -> None:
        self.by_size: dict[int, deque[float]] = {}

    def add(self, ours: int, counted: int) -> None:
        if ours > 0:
            self.by_size.setdefault(_size(ours), deque(maxlen=_KEPT)).append(counted / ours)


def _size(ours: int) -> int:
    return round(_SIZES_PER_OCTAVE * log2(ours))


_REFUSED = 1.1
"""Assumed ratio of the server's count to ours for a prompt that it refused as too long."""
_KEPT_PROMPTS = 8
_KEPT_CHARS = 4_000_000
_COUNTED_CHARS = 400_000
"""Longer texts are extrapolated from their beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    tokens: int
    row_tokens: int
    """Tokens in the training row, by our tokenizer if the server returns text."""


class PromptTokens:
    def __init__(self, policy: Policy, estimate: TokenEstimate, calls: HookCalls) -> None:
        self._policy = policy
        self._counter = find_prompt_counter(policy)
        self._estimate = estimate
        self._calls = calls
        self.is_estimate = False
        self._is_asked = False
        self._is_exact = True
        self._row_ours: int | None = None
        self._prompts: deque[tuple[tuple[Message, ...], int, PromptSize]] = deque(maxlen=_KEPT_PROMPTS)
        self._texts: dict[str, int] = {}

    async def of(self, request: CompletionRequest) -> PromptSize:
        """Return the size of a request's prompt.

        A prompt that no row could hold counts one token per character, so that counting has a bound.
        """
        self._is_asked = True
        row_tokens = 0 if request.row is None else len(request.row.token_ids)
        for messages, row, size in self._prompts:
            if row == row_tokens and messages == request.messages:
                return size
        size = await self._size(request)
        self._prompts.append((request.messages, row_tokens, size))
        return size

    async def of_text(self, text: str) -> int:
        if len(text) > _COUNTED_CHARS:
            return await self._by_beginning(text, _COUNTED_CHARS)
        if (known := self._texts.get(text)) is not None:
            return known
        if sum(map(len, self._texts)) > _KEPT_CHARS:
            self._texts.clear()
        try:
            tokens = await self._text_tokens(text)
        except ContextOverflow:  # exceeds the model's window; a condenser may keep a part
            tokens = await self._by_beginning(text, len(text) // 8) if len(text) > 64 else len(text)
        self._texts[text] = tokens
        return tokens

    async def learn(self, request: CompletionRequest, completion: Completion) -> None:
        self._is_exact = completion.exact
        if not self._is_asked or not self.is_estimate:
            return
        counted = completion.prompt_tokens
        if completion.exact:
            counted = len(completion.prompt_ids)
            if completion.extends_row and request.row is not None:
                self._estimate.additions.add(await self._estimate.ours(new_messages(request)), counted)
                counted += len(request.row.token_ids)
        ours = await self._ours(request)
        self._estimate.learn_prompt(ours, counted)
        self._row_ours = ours + await self._ours_more((completion.message,))

    async def learn_refusal(self, request: CompletionRequest) -> None:
        if self.is_estimate and request.prompt_tokens is not None:
            ours = await self._ours(request)
            self._estimate.learn_prompt(ours, ceil(request.prompt_tokens * _REFUSED))

    async def _size(self, request: CompletionRequest) -> PromptSize:
        try:
            tokens = await self._by_policy(request)
            if tokens is not None:
                return PromptSize(tokens=tokens, row_tokens=tokens)
            return await self._size_by_estimate(request)
        except ContextOverflow:
            tokens = count_chars(request.messages)
            return PromptSize(tokens=tokens, row_tokens=tokens)

    async def _by_policy(self, request: CompletionRequest) -> int | None:
        given: object = None
        if self._counter is not None:
            given = await self._calls.hook("policy prompt_tokens", self._counter, request)
        if given is None:
            self.is_estimate = True
            self._estimate.tell(self._policy.name)
        elif type(given) is not int or given < 0:
            raise PolicyError(
                f"policy {self._policy.name}: prompt_tokens gave {given!r:.100}; give a whole number, "
                "or None where it is not known"
            )
        return given

    async def _size_by_estimate(self, request: CompletionRequest) -> PromptSize:
        row, estimate, limit = request.row, self._estimate, request.max_row_tokens
        if row is not None and self._is_exact and not any(each.reasoning for each in request.messages):
            new = await estimate.ours(new_messages(request), max_tokens=limit)
            tokens = len(row.token_ids) + estimate.of_addition(new)
            return PromptSize(tokens=tokens, row_tokens=tokens)
        ours = await self._ours(request)
        tokens = estimate.of_prompt(ours)
        return PromptSize(tokens=tokens, row_tokens=tokens if self._is_exact else ours)

    async def _by_beginning(self, text: str, chars: int) -> int:
        return -(-await self.of_text(text[:chars]) * len(text) // chars)

    async def _ours(self, request: CompletionRequest) -> int:
        """Count the whole prompt by our tokenizer; after a row only the new messages are rendered."""
        limit = request.max_row_tokens
        if request.row is not None and self._row_ours is not None:
            return self._row_ours + await self._ours_more(new_messages(request), max_tokens=limit)
        return await self._estimate.ours(request.messages, request.tools, max_tokens=limit)

    async def _ours_more(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> int:
        """Count what messages add to a prompt, without the header of the next turn."""
        whole = await self._estimate.ours(messages, max_tokens=max_tokens)
        return whole - await self._estimate.ours(())

    async def _text_tokens(self, text: str) -> int:
        with_text, without = _saying(text), _saying("")
        whole = await self._by_policy(with_text)
        if whole is None:
            estimate = self._estimate
            return estimate.of_addition(
                await estimate.ours(with_text.messages) - await estimate.ours(without.messages)
            )
        return max(0, whole - (await self._by_policy(without) or 0))


def _saying(text: str) -> CompletionRequest:
    return CompletionRequest(messages=(Message(role="user", content=text),))
