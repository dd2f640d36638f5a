"""Completions of a policy, checked and joined into training rows as they are sampled."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from operator import countOf
from typing import Any, cast, get_args

import orjson

from environments.policy.base import CompletionRequest, OpenRow
from environments.trajectory import (
    LARGEST_FLOAT32,
    NOT_SAMPLED,
    SEVERAL_VERSIONS,
    Completion,
    Message,
    Span,
    TokenRow,
    WeightSpan,
)
from tools.calls import CallStatus, ToolCall
from tools.errors import PolicyError
from tools.plain_text import is_utf8

UNEXPLAINED_FORK = "template"
"""Cause of a fork that the policy does not explain: the server's template."""
LARGEST_LOGPROB = 1e-3
LARGEST_VOCABULARY = 2**31
_NOT_SAMPLED = array("d", [NOT_SAMPLED])


class RowBuilder:
    """Grows the token rows of one rollout.

    A prompt that starts with the whole open row extends it. Any other prompt (history was rewritten, a
    template dropped something) forks: a new row starts.
    """

    def __init__(self, others: "RowBuilder | None" = None) -> None:
        self.open: OpenRow | None = None
        self.fork: str | None = None
        self._rows: list[_Row] = [] if others is None else others._rows
        self._index = 0

    def append(self, completion: Completion, *, messages: int = 0, rewritten: str | None = None) -> Span:
        """Add a checked completion and return the span of its sampled tokens.

        `messages` is their number in the row afterwards. `rewritten` says why the prompt does not continue
        the open row, if that is known beforehand.
        """
        completion = completion if rewritten else _extend(completion, self.open)
        self.fork = None
        if not completion.extends_row:
            if self.open is not None:
                self.fork = rewritten or completion.fork or UNEXPLAINED_FORK
            self.open, self._index = OpenRow(), len(self._rows)
            self._rows.append(_Row(self.open))
        assert self.open is not None, "a completion extends a row, and there is none"
        row = self._rows[self._index]
        if row.logprobs is None or completion.logprobs is None:
            row.logprobs = None
        else:
            row.logprobs.extend(_NOT_SAMPLED * len(completion.prompt_ids))
            row.logprobs.extend(array("d", completion.logprobs))
        self.open.extend(completion.prompt_ids, completion.token_ids, messages=messages)
        return Span(row=self._index, start=self.open.sampled_start, end=self.open.size)

    def build(self) -> tuple[TokenRow, ...]:
        return tuple(TokenRow(token_ids=row.ids.token_ids, logprobs=row.logprobs) for row in self._rows)


class _Row:
    def __init__(self, ids: OpenRow) -> None:
        self.ids = ids
        self.logprobs: array[float] | None = array("d")


def _extend(completion: Completion, row: OpenRow | None) -> Completion:
    """Return the completion as an extension of the row if its whole prompt begins with all of the row."""
    if row is None or completion.extends_row:
        return completion
    rest = row.rest_of(completion.prompt_ids)
    return completion if rest is None else replace(completion, prompt_ids=rest, extends_row=True)


def check_completion(given: object, request: CompletionRequest, *, vocabulary_size: int | None) -> Completion:
    """Return a policy's completion if its row, the record and a trainer can hold it.

    Of a prompt that continues the request's row, only the ids after the row are kept.

    Raises:
        PolicyError: if the completion is invalid.
    """
    if not isinstance(given, Completion):
        raise PolicyError(f"the policy gave {given!r:.100}; give a turnwise.Completion")
    prompt_ids: Any = given.prompt_ids
    if isinstance(prompt_ids, list | tuple):
        given = _extend(given, request.row)
    problem = (
        _message_problem(given)
        or _ids_problem(given, request, vocabulary_size or LARGEST_VOCABULARY)
        or _logprobs_problem(given.logprobs, len(given.token_ids))
        or _calls_problem(given.message.tool_calls, len(given.token_ids))
        or _versions_problem(given)
        or _sampling_problem(given.sampling)
    )
    if problem is not None:
        raise PolicyError(f"the policy gave a completion that cannot be used: {problem}")
    return given


def texts_problem(message: Message, **more: Any) -> str | None:
    texts: dict[str, Any] = {"content": message.content}
    if message.reasoning is not None:
        texts["reasoning"] = message.reasoning
    calls: Any = message.tool_calls
    if not isinstance(calls, tuple):
        return f"its tool_calls are {calls!r:.100}; give a tuple of turnwise.ToolCall"
    for index, call in enumerate(cast("tuple[Any, ...]", calls)):
        if not isinstance(call, ToolCall):
            return f"tool call {index} is {call!r:.100}; give a turnwise.ToolCall"
        for name in ("id", "name", "arguments"):
            texts[f"the {name} of tool call {index}"] = getattr(call, name)
    texts |= more
    if all(isinstance(text, str) for text in texts.values()) and is_utf8("".join(texts.values())):
        return None
    return next((problem for name, text in texts.items() if (problem := text_problem(name, text))), None)


def text_problem(name: str, text: object) -> str | None:
    if not isinstance(text, str):
        return f"{name} is {text!r:.100}; give text"
    return None if is_utf8(text) else f"{name} is {text!r:.100}, which is not UTF-8 text"


def _message_problem(completion: Completion) -> str | None:
    message: Any = completion.message
    if not isinstance(message, Message):
        return f"its message is {message!r:.100}; give a turnwise.Message"
    if message.role != "assistant":
        return f"its message has the role {message.role!r:.100}; a policy speaks as 'assistant'"
    return texts_problem(message, finish_reason=completion.finish_reason)


def _ids_problem(completion: Completion, request: CompletionRequest, size: int) -> str | None:
    if completion.extends_row and request.row is None:
        return "it extends a row, and the request has none to go on from; give the whole prompt_ids"
    # The types require it; a user's policy may not follow them.
    given: dict[str, Any] = {"prompt_ids": completion.prompt_ids, "token_ids": completion.token_ids}
    for name, ids in given.items():
        if not _is_list_of(int, ids):
            return f"{name} must be a tuple of plain integers, got {_kinds_in(ids)}"
        if ids and not 0 <= min(ids) <= max(ids) < size:
            return f"{name} go from {min(ids)} to {max(ids)}; possible: 0 to {size - 1}"
    sampled = len(completion.token_ids)
    for name in ("prompt_tokens", "sampled_tokens"):
        counted: Any = getattr(completion, name)
        if counted is not None and (type(counted) is not int or counted < 0):
            return f"{name} is {counted!r:.100}; give a whole number, or None where it is not known"
    if not completion.prompt_ids and not completion.extends_row:
        return "prompt_ids is empty; a model samples after at least one token"
    if completion.exact and not sampled:
        return "token_ids is empty; a model samples at least its stop token"
    if completion.exact and sampled > request.max_tokens:
        return f"it has {sampled} token_ids; {request.max_tokens} were asked for"
    return None


def _logprobs_problem(logprobs: Sequence[float] | None, sampled: int) -> str | None:
    if logprobs is None:
        return None
    if not _is_list_of(float, logprobs):
        return f"logprobs must be a tuple of plain floats, got {_kinds_in(logprobs)}"
    if len(logprobs) != sampled:
        return f"it has {len(logprobs)} logprobs for {sampled} token_ids"
    # NaN and infinity make the sum not finite; within float32 it cannot overflow.
    in_range = not logprobs or (min(logprobs) >= -LARGEST_FLOAT32 and max(logprobs) <= LARGEST_LOGPROB)
    if in_range and isfinite(sum(logprobs)):
        return None
    for index, logprob in enumerate(logprobs):
        if not -LARGEST_FLOAT32 <= logprob <= LARGEST_LOGPROB:  # also true for NaN
            return f"the logprob of token {index} is {logprob}; it must be finite and at most 0"
    return None


def _calls_problem(calls: Sequence[ToolCall], sampled: int) -> str | None:
    for index, call in enumerate(calls):
        if call.status not in get_args(CallStatus):
            return f"tool call {index} has the status {call.status!r:.100}; one of {get_args(CallStatus)}"
        span: Any = call.span
        if span is not None and not (
            _is_list_of(int, span) and len(span) == 2 and 0 <= span[0] <= span[1] <= sampled
        ):
            return f"tool call {index} has the span {span!r:.100} of {sampled} token_ids"
    return None


def _versions_problem(completion: Completion) -> str | None:
    for name in ("fork", "weight_version"):
        text: Any = getattr(completion, name)
        if text is not None and (problem := text_problem(name, text)) is not None:
            return problem
    version = completion.weight_version
    if version is not None and not all(version.split(SEVERAL_VERSIONS)):
        return f"weight_version is {version!r:.100}; give its name, or None where it is not known"
    spans: Any = completion.weight_spans
    if spans != () and not _are_weight_spans(spans, len(completion.token_ids)):
        return (
            f"weight_spans is {spans!r:.200}; give a tuple of WeightSpan, the first one from token 0, or ()"
        )
    return None


def _are_weight_spans(spans: Any, sampled: int) -> bool:
    given: list[Any] = [*spans] if isinstance(spans, tuple) else [spans]
    if not all(isinstance(each, WeightSpan) for each in given):
        return False
    starts, names = [each.start for each in given], [each.version for each in given]
    if not _is_list_of(int, starts) or not all(
        name and text_problem("version", name) is None for name in names
    ):
        return False
    return starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < sampled


def _sampling_problem(sampling: Any) -> str | None:
    if not isinstance(sampling, Mapping):
        return f"sampling is {sampling!r:.100}; give a mapping"
    held = dict(cast("Mapping[Any, Any]", sampling))
    try:
        is_json = orjson.loads(orjson.dumps(held)) == held
    except TypeError:
        is_json = False
    return None if is_json else f"sampling is {held!r:.200}, which is not JSON"


def _is_list_of(kind: type, values: object) -> bool:
    """Whether all entries are of exactly this type: a bool is not an id, a numpy number not JSON."""
    if not isinstance(values, list | tuple):
        return False
    entries = cast("Sequence[object]", values)
    return countOf(map(type, entries), kind) == len(entries)


def _kinds_in(values: object) -> str:
    if not isinstance(values, list | tuple):
        return f"{values!r:.100}"
    kinds = {type(value).__name__ for value in cast("Sequence[object]", values)}
    return f"a {type(values).__name__} of {' and '.join(sorted(kinds))}"  # pyright: ignore[reportUnknownArgumentType]
