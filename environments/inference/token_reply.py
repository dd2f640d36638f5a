"""What is sent to go on from token ids, and what every reply with ids is held to.

A reply is refused where its ids, its logprobs and what was sent do not fit together: servers are known to
leave out a stop token, to shift logprobs by one, and to tokenise a prompt anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from environments.inference.reply_tokens import ReplyError, checked_ids, checked_logprobs
from environments.inference.server_text import one_line, start_of

_ECHO = b'"prompt_token_ids":['


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What a server is asked to go on from."""

    model: str
    prompt_json: tuple[bytes, ...]
    """The ids as they stand in a JSON list, in pieces: a row of many is copied into the body alone."""
    prompt_tokens: int
    max_tokens: int
    seed: int
    stop_ids: tuple[int, ...]
    """Every id that ends the turn."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`temperature`, `top_p` and whatever else shapes what is sampled."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReply:
    """What a server sampled."""

    token_ids: tuple[int, ...]
    """With the stop token."""
    logprobs: tuple[float, ...]
    """One per id."""
    finish_reason: str | None
    stopped_by: int | str | None
    """The id or the text that ended it, where the server says so."""
    weight_version: str | None


def object_of(content: bytes) -> Mapping[str, Any]:
    """The JSON object that a reply is."""
    try:
        reply: object = orjson.loads(content)
    except ValueError as error:
        raise ReplyError(f"no JSON ({error}): {start_of(content)}") from error
    if not isinstance(reply, dict):
        raise ReplyError(f"no completion: {start_of(content)}")
    return cast("dict[str, Any]", reply)


def one_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one completion of a reply."""
    choices = list_of(reply.get("choices"), "choices")
    if len(choices) != 1:
        raise ReplyError(f"the server gave {len(choices)} choices; one was asked for")
    return mapping(choices[0])


def mapping(value: object) -> Mapping[str, Any]:
    """The object that a field holds; empty for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_of(value: object, name: str) -> list[object]:
    """The list that a field holds; ReplyError for anything else."""
    if not isinstance(value, list):
        raise ReplyError(f"the server gave no {name}")
    return cast("list[object]", value)


def without_echo(content: bytes, request: TokenRequest) -> bytes:
    """A reply without the prompt's ids, where those are byte for byte what was sent: compared, not parsed.

    A turn's cost would grow with its row. The name cannot stand inside a text: a quote in one is escaped.
    """
    start = content.find(_ECHO)
    if start < 0:
        return content
    end = after = start + len(_ECHO)
    for piece in request.prompt_json:
        if not content.startswith(piece, end):
            return content
        end += len(piece)
    if content[end : end + 1] != b"]":
        return content
    return b"".join((content[: after - 1], b"null", content[end + 1 :]))


def check_prompt(reply: Mapping[str, Any], choice: Mapping[str, Any], request: TokenRequest) -> None:
    """Raise ReplyError where the reply says that the model saw other ids than were sent."""
    check_prompt_tokens(mapping(reply.get("usage")).get("prompt_tokens"), request)
    for where in (reply, choice):
        seen = where.get("prompt_token_ids")
        if seen is None:
            continue
        sent = orjson.loads(b"[%b]" % b"".join(request.prompt_json))
        if seen != sent:
            raise ReplyError(f"the model saw other prompt ids than were sent{_first_difference(seen, sent)}")


def _first_difference(seen: object, sent: Sequence[int]) -> str:
    if not isinstance(seen, list):
        return ""
    given = cast("list[object]", seen)
    pairs = zip(given, sent, strict=False)  # the shorter one ends the comparison
    index = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    return f": {len(given)} for {len(sent)}" if index is None else f", the first at {index}"


def check_prompt_tokens(counted: object, request: TokenRequest) -> None:
    """Raise ReplyError where the server counted another prompt than was sent."""
    if isinstance(counted, int) and counted != request.prompt_tokens:
        raise ReplyError(
            f"the model saw {counted} prompt tokens; {request.prompt_tokens} were sent, so the server has "
            f"tokenised or cut them anew"
        )


def ids_of(value: object, request: TokenRequest, name: str, since: str = "") -> tuple[int, ...]:
    """The ids that were sampled, no more than were asked for.

    Args:
        value: of the reply.
        request: that was sent.
        name: of the field.
        since: what gives it.
    """
    if value is None:
        raise ReplyError(f"the server gave no {name}{since}")
    token_ids = checked_ids(value, name)
    if not token_ids:
        raise ReplyError(f"the server gave empty {name}; a completion has at least one")
    if len(token_ids) > request.max_tokens:
        raise ReplyError(f"the server gave {len(token_ids)} token ids; {request.max_tokens} were asked for")
    return token_ids


def check_same_ids(named: Sequence[object], token_ids: Sequence[int]) -> None:
    """Raise ReplyError where logprobs are of other ids than were sampled; `None` names none."""
    if len(named) != len(token_ids):
        raise ReplyError(counts(len(named), len(token_ids)))
    for index, (name, token_id) in enumerate(zip(named, token_ids, strict=True)):
        if name is not None and (type(name) is not int or name != token_id):
            raise ReplyError(f"the logprob at token {index} is of {name!r:.40}, the token is {token_id}")


def logprobs_of(value: object, tokens: int) -> tuple[float, ...]:
    """Finite logprobs, one per token."""
    logprobs = checked_logprobs(list_of(value, "logprobs"), tokens)
    assert logprobs is not None
    return logprobs


def counts(logprobs: int, tokens: int) -> str:
    """What is said when they are not equal."""
    return f"the server gave {logprobs} logprobs for {tokens} token ids"


def finish_reason_of(reason: object, detail: object) -> str | None:
    """`stop`, `length`, or `None` where the server says neither."""
    if reason is None:
        return None
    if reason in ("stop", "length"):
        return str(reason)
    more = f": {one_line(detail)}" if isinstance(detail, str) else ""
    raise ReplyError(f"the server gave up (finish_reason {one_line(str(reason))!r}){more}")


def id_or_text(value: object) -> int | str | None:
    """What a server names as the cause of a stop."""
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
