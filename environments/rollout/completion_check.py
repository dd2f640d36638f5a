"""What a policy hands over, checked before it joins its row: a violation costs this rollout alone."""

from collections.abc import Mapping, Sequence
from math import isfinite
from operator import countOf
from typing import Any, cast, get_args

import orjson

from environments.policy.base import CompletionRequest
from environments.rollout.rows import going_on
from environments.trajectory import LARGEST_FLOAT32, SEVERAL_VERSIONS, Completion, Message, WeightSpan
from tools.calls import CallStatus, ToolCall
from tools.errors import PolicyError
from tools.plain_text import is_utf8

LARGEST_LOGPROB = 1e-3
"""A log-probability is at most 0; what a server's rounding adds stays below this."""
LARGEST_VOCABULARY = 2**31
"""No vocabulary is larger: trainers keep ids in 32 bits, and a negative one could be `IGNORED`."""


def checked_completion(
    given: object, request: CompletionRequest, *, vocabulary_size: int | None
) -> Completion:
    """The completion, when its row, the record and a trainer can take it.

    Args:
        given: what the policy gave. Of a whole prompt that goes on from the request's row, only what is new
            is checked, and left.
        request: what it was asked; ids made from text may be more than `max_tokens`, which another tokenizer
            counted.
        vocabulary_size: ids of the policy's vocabulary, if it states them.

    Raises:
        PolicyError: names what is wrong, what was got and what is possible.
    """
    if not isinstance(given, Completion):
        raise PolicyError(f"the policy gave {given!r:.100}; give a turnwise.Completion")
    if _is_list(given.prompt_ids):
        given = going_on(given, request.row)
    problem = (
        _message_problem(given.message)
        or text_problem("finish_reason", given.finish_reason)
        or _row_problem(given, request)
        or _ids_problem(given, vocabulary_size or LARGEST_VOCABULARY)
        or _count_problem(given, request.max_tokens)
        or _logprobs_problem(given.logprobs, len(given.token_ids))
        or _calls_problem(given.message.tool_calls, len(given.token_ids))
        or _names_problem(given)
    )
    if problem is not None:
        raise PolicyError(f"the policy gave a completion that cannot be used: {problem}")
    return given


def _message_problem(message: Any) -> str | None:
    if not isinstance(message, Message):
        return f"its message is {message!r:.100}; give a turnwise.Message"
    if message.role != "assistant":
        return f"its message has the role {message.role!r:.100}; a policy speaks as 'assistant'"
    return texts_problem(message)


def texts_problem(message: Message) -> str | None:
    """What a record could not hold of a message's texts and calls, whatever its fields are."""
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
    if all(isinstance(text, str) for text in texts.values()) and is_utf8("".join(texts.values())):
        return None
    return next((problem for name, text in texts.items() if (problem := text_problem(name, text))), None)


def text_problem(name: str, text: object) -> str | None:
    """Why a field is no text that a record could hold."""
    if not isinstance(text, str):
        return f"{name} is {text!r:.100}; give text"
    return None if is_utf8(text) else f"{name} is {text!r:.100}, which is no UTF-8 text"


def _row_problem(completion: Completion, request: CompletionRequest) -> str | None:
    if completion.extends_row and request.row is None:
        return "it extends a row, and the request has none to go on from; give the whole prompt_ids"
    return None


def _ids_problem(completion: Completion, size: int) -> str | None:
    # The types require it; a policy of the user's may not follow.
    given: dict[str, Any] = {"prompt_ids": completion.prompt_ids, "token_ids": completion.token_ids}
    for name, ids in given.items():
        if not _is_list_of(int, ids):
            return f"{name} must be a tuple of plain integers, got {_start_of(ids)}"
        if ids and not 0 <= min(ids) <= max(ids) < size:
            return f"{name} go from {min(ids)} to {max(ids)}; possible: 0 to {size - 1}"
    return None


def _count_problem(completion: Completion, max_tokens: int) -> str | None:
    sampled = len(completion.token_ids)
    counted: Any = completion.prompt_tokens
    if counted is not None and (type(counted) is not int or counted < 0):
        return f"prompt_tokens is {counted!r:.100}; give a whole number, or None where it is not known"
    if not completion.prompt_ids and not completion.extends_row:
        return "prompt_ids is empty; a model samples after at least one token"
    if completion.exact and not sampled:
        return "token_ids is empty; a model samples at least its stop token"
    if completion.exact and sampled > max_tokens:
        return f"it has {sampled} token_ids; {max_tokens} were asked for"
    return None


def _logprobs_problem(logprobs: Sequence[float] | None, sampled: int) -> str | None:
    if logprobs is None:
        return None
    if not _is_list_of(float, logprobs):
        return f"logprobs must be a tuple of plain floats, got {_start_of(logprobs)}"
    if len(logprobs) != sampled:
        return f"it has {len(logprobs)} logprobs for {sampled} token_ids"
    # NaN and infinity leave no sum; in the range of float32 it is finite.
    in_range = not logprobs or (min(logprobs) >= -LARGEST_FLOAT32 and max(logprobs) <= LARGEST_LOGPROB)
    if in_range and isfinite(sum(logprobs)):
        return None
    for index, logprob in enumerate(logprobs):
        # NaN is in no range.
        if not -LARGEST_FLOAT32 <= logprob <= LARGEST_LOGPROB:
            return f"the logprob of token {index} is {logprob}; it must be finite and at most 0"
    return None


def _calls_problem(calls: Sequence[ToolCall], sampled: int) -> str | None:
    for index, call in enumerate(calls):
        if call.status not in get_args(CallStatus):
            return f"tool call {index} has the status {call.status!r:.100}; one of {get_args(CallStatus)}"
        if call.span is not None and not _is_span(call.span, sampled):
            return f"tool call {index} has the span {call.span!r:.100} of {sampled} token_ids"
    return None


def _is_span(span: Any, sampled: int) -> bool:
    return _is_list_of(int, span) and len(span) == 2 and 0 <= span[0] <= span[1] <= sampled


def _are_weight_spans(spans: Any, sampled: int) -> bool:
    given: list[Any] = [*spans] if isinstance(spans, tuple) else [spans]
    if not all(isinstance(each, WeightSpan) for each in given):
        return False
    starts, names = [each.start for each in given], [each.version for each in given]
    if not _is_list_of(int, starts) or not all(
        name and text_problem("version", name) is None for name in names
    ):
        return False
    return not starts or (starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < sampled)


def _names_problem(completion: Completion) -> str | None:
    for name in ("fork", "weight_version"):
        text: Any = getattr(completion, name)
        if text is not None and (problem := text_problem(name, text)) is not None:
            return problem
    version = completion.weight_version
    if version is not None and not all(version.split(SEVERAL_VERSIONS)):
        return f"weight_version is {version!r:.100}; give its name, or None where it is not known"
    if not _are_weight_spans(completion.weight_spans, len(completion.token_ids)):
        return (
            f"weight_spans is {completion.weight_spans!r:.200}; give a tuple of WeightSpan, the "
            f"first one from token 0, or ()"
        )
    sampling: Any = completion.sampling
    if not isinstance(sampling, Mapping):
        return f"sampling is {sampling!r:.100}; give a mapping"
    held = dict(cast("Mapping[Any, Any]", sampling))
    if not _is_json(held):
        return f"sampling is {held!r:.200}, which is no JSON"
    return None


def _is_json(value: dict[Any, Any]) -> bool:
    try:
        return orjson.loads(orjson.dumps(value)) == value
    except TypeError:
        return False


def _is_list_of(kind: type, values: object) -> bool:
    """Whether all entries are of exactly this type: a bool is no id, a number of numpy no JSON."""
    if not _is_list(values):
        return False
    entries = cast("Sequence[object]", values)
    return countOf(map(type, entries), kind) == len(entries)


def _is_list(values: object) -> bool:
    return isinstance(values, list | tuple)


def _start_of(values: object) -> str:
    if not _is_list(values):
        return f"{values!r:.100}"
    kinds = {type(value).__name__ for value in cast("Sequence[object]", values)}
    return f"a {type(values).__name__} of {' and '.join(sorted(kinds))}"  # pyright: ignore[reportUnknownArgumentType]
