"""Joins completions into training rows as they are sampled, so that spans are known and never searched."""

from environments.trajectory import NOT_SAMPLED, Completion, Span, TokenRow


class RowBuilder:
    """Grows the token rows of one rollout.

    A prompt that starts with everything the current row holds extends that row. Any other prompt (history
    was rewritten, a template dropped something) forks: a new row starts and the old one stays as it was.
    """

    def __init__(self) -> None:
        self._ids: list[list[int]] = []
        self._logprobs: list[list[float] | None] = []

    def append(self, completion: Completion) -> Span:
        """Add a completion and say where its sampled tokens sit."""
        if not self._extends(completion.prompt_ids):
            self._ids.append([])
            self._logprobs.append([])
        ids, logprobs = self._ids[-1], self._logprobs[-1]
        unsampled = completion.prompt_ids[len(ids) :]
        start = len(ids) + len(unsampled)
        ids.extend(unsampled)
        ids.extend(completion.token_ids)
        if logprobs is None or completion.logprobs is None:
            self._logprobs[-1] = None
        else:
            logprobs.extend([NOT_SAMPLED] * len(unsampled))
            logprobs.extend(completion.logprobs)
        return Span(row=len(self._ids) - 1, start=start, end=len(ids))

    def build(self) -> tuple[TokenRow, ...]:
        """The rows so far."""
        return tuple(
            TokenRow(token_ids=tuple(ids), logprobs=None if logprobs is None else tuple(logprobs))
            for ids, logprobs in zip(self._ids, self._logprobs, strict=True)
        )

    def _extends(self, prompt_ids: tuple[int, ...]) -> bool:
        return bool(self._ids) and list(prompt_ids[: len(self._ids[-1])]) == self._ids[-1]
