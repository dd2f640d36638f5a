"""The token ids and logprobs of a chat reply, wherever a server puts them, checked without a model per id."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from environments.trajectory import NOT_SAMPLED

LARGEST_ID = 2**31
"""No vocabulary is larger; a negative id could be `IGNORED` and leave its turn's mask."""
CLAMPED = -9999.0
"""What vLLM reports for a token whose logprob it does not know."""
NO_NUMBERS = "NaN happened"
"""What SGLang says it stopped at when it put a stop token in the place of an id that cannot be."""
_NUMBERS = (float, int)

TOO_DEEP = "the answer is nested too deep"
"""What a `RecursionError` of a reader says: JSON may be nested deeper than code that looks through it."""


class ReplyError(ValueError):
    """A reply that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The token ids that a server gave."""

    prompt_ids: tuple[int, ...]
    extends_row: bool = False
    """Whether `prompt_ids` are only those that follow the open row."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """One per sampled token; `None`: the server gave none."""


def tokens_of(reply: Mapping[str, Any], choice: Mapping[str, Any]) -> SampledTokens | None:
    """What was sampled, or `None` where the server gave text alone.

    vLLM gives `token_ids` and the prompt's ids at the top, SGLang `response_token_ids` and the prompt's ids
    in the choice, or pairs of logprob and id in `meta_info`.

    Raises:
        ReplyError: what it gives does not fit together.
    """
    pairs = _pairs_of(choice.get("meta_info"))
    given = [
        (name, choice[name]) for name in ("token_ids", "response_token_ids") if choice.get(name) is not None
    ]
    if not given and pairs is None:
        return None
    name, ids = given[0] if given else ("output_token_logprobs", [pair[1] for pair in pairs or ()])
    prompt = reply.get("prompt_token_ids") or choice.get("prompt_token_ids")
    if not prompt:
        raise ReplyError(
            f"the server gave {name} without prompt_token_ids, and nobody can tell what the model saw: "
            "update it, or send it the prompt's ids with --openai.server_type"
        )
    if not ids:
        raise ReplyError(f"the server gave empty {name}; a completion has at least its stop token")
    token_ids = checked_ids(ids, name)
    return SampledTokens(
        prompt_ids=checked_ids(prompt, "prompt_token_ids"),
        token_ids=token_ids,
        logprobs=checked_logprobs(_logprobs_of(choice, pairs), len(token_ids)),
    )


def checked_ids(ids: object, name: str) -> tuple[int, ...]:
    """Token ids of a reply.

    Raises:
        ReplyError: one of them is no integer, or no vocabulary has it.
    """
    if not isinstance(ids, list):
        raise ReplyError(f"{name} is no list: {ids!r:.100}")
    values = cast("list[int]", ids)
    if set(map(type, values)) - {int} or min(values, default=0) < 0 or max(values, default=0) >= LARGEST_ID:
        wrong = next(
            i for i, each in enumerate(values) if type(each) is not int or not 0 <= each < LARGEST_ID
        )
        raise ReplyError(f"{name}.{wrong} is {values[wrong]!r:.100}; a token id is an integer from 0 on")
    return tuple(values)


def checked_logprobs(logprobs: Sequence[object] | None, tokens: int) -> tuple[float, ...] | None:
    """One logprob for each sampled token; `None` stays what it is.

    Raises:
        ReplyError: another number of them, or one that no sampler gave.
    """
    if logprobs is None:
        return None
    if len(logprobs) != tokens:
        raise ReplyError(f"the server gave {len(logprobs)} logprobs for {tokens} token_ids")
    numbers = cast("Sequence[float]", logprobs)
    for index, value in enumerate(numbers):
        # NaN is in no range.
        if type(value) not in _NUMBERS or not CLAMPED < value < NOT_SAMPLED:
            raise ReplyError(
                f"the server gave the logprob {value!r:.100} at token {index} of {tokens}; a sampled token "
                f"has a finite one above {CLAMPED:g}"
            )
    return tuple(map(float, numbers))


def _logprobs_of(choice: Mapping[str, Any], pairs: list[Sequence[Any]] | None) -> list[Any] | None:
    logprobs: object = choice.get("logprobs")
    content: object = cast("dict[str, Any]", logprobs).get("content") if isinstance(logprobs, dict) else None
    if content is None:
        return None if pairs is None else [pair[0] for pair in pairs]
    try:
        return [entry["logprob"] for entry in cast("list[Any]", content)]
    except (KeyError, TypeError, IndexError):
        raise ReplyError(f"logprobs.content holds an entry without a logprob: {content!r:.100}") from None


def _pairs_of(meta_info: object) -> list[Sequence[Any]] | None:
    """SGLang's logprob, id and text of each sampled token."""
    if not isinstance(meta_info, dict):
        return None
    pairs: object = cast("dict[str, Any]", meta_info).get("output_token_logprobs")
    if pairs is None:
        return None
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(cast("list[Any]", pair)) >= 2 for pair in cast("list[object]", pairs)
    ):
        raise ReplyError(f"meta_info.output_token_logprobs is no list of logprobs and ids: {pairs!r:.100}")
    return cast("list[Sequence[Any]]", pairs)
