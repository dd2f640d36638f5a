"""Joins completions into training rows as they are sampled, so that spans are known and never searched."""

from array import array
from dataclasses import replace

from environments.policy.base import OpenRow
from environments.trajectory import NOT_SAMPLED, Completion, Span, TokenRow

_NOT_SAMPLED = array("d", [NOT_SAMPLED])
UNEXPLAINED_FORK = "template"
"""Why a row forked where the policy names no cause: the server's prompt does not go on from the row."""


class RowBuilder:
    """Grows the token rows of one rollout.

    A prompt that starts with everything the open row holds extends that row. Any other prompt (history was
    rewritten, a template dropped something) forks: a new row starts and the old one stays as it was.
    """

    def __init__(self, others: "RowBuilder | None" = None) -> None:
        """No row yet; the rows of `others`, of the same rollout, are counted in the same list."""
        self.open: OpenRow | None = None
        """The row that the next completion may extend."""
        self.fork: str | None = None
        """Why the last completion started a new row; `None` where it went on, and for the first."""
        self._rows: list[_Row] = [] if others is None else others._rows
        self._index = 0

    def append(self, completion: Completion, *, messages: int = 0, rewritten: str | None = None) -> Span:
        """Add a completion and return the span of its sampled tokens.

        Args:
            completion: checked; with `extends_row` nothing of the open row is looked at.
            messages: what the row holds from now on, the completion's own message included.
            rewritten: why what the model saw does not go on from the open row, where that is known before.
        """
        completion = completion if rewritten else going_on(completion, self.open)
        self.fork = None
        if not completion.extends_row:
            self._start_row(rewritten or completion.fork or UNEXPLAINED_FORK)
        row = self._row
        self._append_logprobs(completion)
        row.extend(completion.prompt_ids, completion.token_ids, messages=messages)
        return Span(row=self._index, start=row.sampled_start, end=len(row.token_ids))

    def build(self) -> tuple[TokenRow, ...]:
        """The rows so far."""
        return tuple(TokenRow(token_ids=row.ids.token_ids, logprobs=row.logprobs) for row in self._rows)

    @property
    def open_tokens(self) -> int:
        """Tokens of the open row."""
        return 0 if self.open is None else len(self.open.token_ids)

    @property
    def _row(self) -> OpenRow:
        assert self.open is not None, "a completion extends a row, and there is none"
        return self.open

    def _start_row(self, cause: str) -> None:
        if self.open is not None:
            self.fork = cause
        self.open, self._index = OpenRow(), len(self._rows)
        self._rows.append(_Row(self.open))

    def _append_logprobs(self, completion: Completion) -> None:
        row = self._rows[self._index]
        if row.logprobs is None or completion.logprobs is None:
            row.logprobs = None
        else:
            row.logprobs.extend(_NOT_SAMPLED * len(completion.prompt_ids))
            row.logprobs.extend(array("d", completion.logprobs))


class _Row:
    def __init__(self, ids: OpenRow) -> None:
        self.ids = ids
        self.logprobs: array[float] | None = array("d")


def going_on(completion: Completion, row: OpenRow | None) -> Completion:
    """The completion with only what follows the row, where its whole prompt begins with all of the row."""
    if row is None or completion.extends_row:
        return completion
    rest = row.rest_of(completion.prompt_ids)
    return completion if rest is None else replace(completion, prompt_ids=rest, extends_row=True)
