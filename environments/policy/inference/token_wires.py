"""Token wires: request and reply formats of servers that accept token ids."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from environments.policy.inference.chat_reply import (
    NO_NUMBERS,
    NoReplyError,
    ReplyError,
    classify_finish,
    field_of,
    find_known_ids,
    object_in,
    read_ids,
    read_logprobs,
    read_object,
    read_weight_spans,
    read_weight_version,
    token_pairs,
)
from environments.policy.inference.dialect import UNCUT, json_format
from environments.policy.inference.http_client import list_in, mapping
from environments.trajectory import WeightSpan
from tools.plain_text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    model: str
    prompt_json: tuple[bytes, ...]
    """The ids as JSON without brackets, in pieces, so that a long row is copied only into the body."""
    prompt_tokens: int
    max_tokens: int
    seed: int
    stop_ids: tuple[int, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scored_ids: tuple[int, ...] = ()
    """The last ids of the prompt, if the server scores them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReply:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None
    stopped_by: int | str | None
    weight_version: str | None
    weight_spans: tuple[WeightSpan, ...] = ()
    scored: tuple[float, ...] = ()
    """Log-probabilities of the scored ids."""


def _read_choice(content: bytes, request: TokenRequest) -> Mapping[str, Any]:
    reply = read_object(remove_echo(content, request))
    choices = field_of(reply, "choices", list)
    if choices in (None, [], [{}]):
        raise NoReplyError("no completion (choices are missing or empty)")
    if len(choices) != 1:
        raise ReplyError(f"the server gave {len(choices)} choices; one was asked for")
    choice = mapping(choices[0])
    check_prompt_tokens(field_of(object_in(reply, "usage"), "prompt_tokens", int, where="usage."), request)
    for seen in (reply.get("prompt_token_ids"), choice.get("prompt_token_ids")):
        sent: list[int] = [] if seen is None else orjson.loads(b"[%b]" % b"".join(request.prompt_json))
        if seen is None or seen == sent:
            continue
        pairs = zip(list_in(seen), sent, strict=False)
        first = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        where = f": {len(list_in(seen))} for {len(sent)}" if first is None else f", the first at {first}"
        raise ReplyError(f"the model saw other prompt ids than were sent{where}")
    return {"prompt_logprobs": reply.get("prompt_logprobs"), **choice}


def remove_echo(content: bytes, request: TokenRequest) -> bytes:
    """Drop the echoed prompt ids if they equal those sent byte for byte."""
    known = find_known_ids(content, request.prompt_json)
    if known is None or content[known[1] : known[1] + 1] != b"]":
        return content
    return b"".join((content[: known[0] - 1], b"null", content[known[1] + 1 :]))


def check_prompt_tokens(counted: int | None, request: TokenRequest) -> None:
    if counted is not None and counted != request.prompt_tokens:
        raise ReplyError(
            f"the model saw {counted} prompt tokens; {request.prompt_tokens} were sent, so the server has "
            f"tokenised or cut them anew"
        )


def read_sampled_ids(value: object, request: TokenRequest, name: str, since: str = "") -> tuple[int, ...]:
    if value is None:
        raise ReplyError(f"the server gave no {name}{since}")
    token_ids = read_ids(value, name)
    if not token_ids:
        raise NoReplyError(f"the server gave empty {name}; a completion has at least one")
    if len(token_ids) > request.max_tokens:
        raise ReplyError(f"the server gave {len(token_ids)} token ids; {request.max_tokens} were asked for")
    return token_ids


def check_same_ids(named: Sequence[object], token_ids: Sequence[int]) -> None:
    if len(named) != len(token_ids):
        raise ReplyError(f"the server gave {len(named)} logprobs for {len(token_ids)} token ids")
    for index, (name, token_id) in enumerate(zip(named, token_ids, strict=True)):
        if name is not None and (type(name) is not int or name != token_id):
            raise ReplyError(f"the logprob at token {index} is of {name!r:.40}, the token is {token_id}")


def require_logprobs(value: object, tokens: int) -> tuple[float, ...]:
    logprobs = read_logprobs(field_of({"logprobs": value}, "logprobs", list), tokens)
    if logprobs is None:
        raise ReplyError("the server gave no logprobs")
    return logprobs


def read_finish_reason(reason: object, detail: object) -> str | None:
    if reason is None:
        return None
    if reason in ("stop", "length"):
        return str(reason)
    more = f": {one_line(detail)}" if isinstance(detail, str) else ""
    error = NoReplyError if classify_finish(str(reason)) == "lost" else ReplyError
    raise error(f"the server gave up (finish_reason {one_line(str(reason))!r}){more}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWire:
    path: str
    at_root: bool = False
    body: Callable[[TokenRequest], bytes]
    read: Callable[[bytes, TokenRequest], TokenReply]
    absent: str
    constrain: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Return the sampling fields that enforce a JSON schema."""
    scoring: Callable[[TokenRequest], TokenRequest] | None = None
    """Add the fields that have the server score the scored ids."""
    has_stop_ids: bool = True
    """Whether a request names the ids that end a turn; else only the model's own end tokens do."""


def _constrain_vllm(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"structured_outputs": {"json": schema}}


def _constrain_sglang(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"json_schema": orjson.dumps(schema).decode()}


def _score_by_vllm(request: TokenRequest) -> TokenRequest:
    return replace(request, sampling={"prompt_logprobs": 0})


def _score_by_sglang(request: TokenRequest) -> TokenRequest:
    # The first entry has no logprob.
    start = request.prompt_tokens - len(request.scored_ids) - 1
    return replace(request, more={**request.more, "logprob_start_len": start})


def _read_scores(pairs: Sequence[Sequence[object]], request: TokenRequest) -> tuple[float, ...]:
    """Return the logprobs of the scored ids from the (logprob, id) pairs of the prompt's last ids."""
    tokens = len(request.scored_ids)
    if not tokens:
        return ()
    check_same_ids([pair[1] for pair in pairs[-tokens:]], request.scored_ids)
    return require_logprobs([pair[0] for pair in pairs[-tokens:]], tokens)


def _join_body(name: str, request: TokenRequest, fields: Mapping[str, Any]) -> bytes:
    # `%` takes 25 times as long for a long row.
    return b"".join((b'{"%b":[' % name.encode(), *request.prompt_json, b"],", orjson.dumps(fields)[1:]))


# vLLM's dialect of OpenAI's `/v1/completions`.


def _completions_body(request: TokenRequest) -> bytes:
    fields = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stop_token_ids": request.stop_ids,
        "logprobs": 0,
        "return_token_ids": True,
    }
    return _join_body("prompt", request, {**request.more, **request.sampling, **fields})


def _read_completions(content: bytes, request: TokenRequest) -> TokenReply:
    choice = _read_choice(content, request)
    token_ids = read_sampled_ids(
        choice.get("token_ids"), request, "token_ids", ", which vLLM gives from 0.10.2 on"
    )
    logprobs = mapping(choice.get("logprobs")).get("token_logprobs")
    return _vllm_reply(choice, token_ids, logprobs, request)


# vLLM's `/inference/v1/generate`, with `--enable-scale-out` or `--tokens-only`.


def _vllm_generate_body(request: TokenRequest) -> bytes:
    sampling = {
        **request.sampling,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stop_token_ids": request.stop_ids,
        "logprobs": 0,
        "detokenize": False,
    }
    if "stop" in request.sampling:  # a stop text needs detokenization
        del sampling["detokenize"]
    return _join_body(
        "token_ids", request, {**request.more, "model": request.model, "sampling_params": sampling}
    )


def _read_vllm_generate(content: bytes, request: TokenRequest) -> TokenReply:
    choice = _read_choice(content, request)
    token_ids = read_sampled_ids(choice.get("token_ids"), request, "token_ids")
    entries = _logprob_entries(choice)
    check_same_ids([_entry_id(entry) for entry in entries], token_ids)
    return _vllm_reply(choice, token_ids, [mapping(entry).get("logprob") for entry in entries], request)


def _logprob_entries(choice: Mapping[str, Any]) -> list[object]:
    entries = field_of(object_in(choice, "logprobs"), "content", list, where="logprobs.")
    if entries is None:
        raise ReplyError("the server gave no logprobs")
    return entries


def _entry_id(entry: object) -> object:
    """Return the token id of a logprobs entry; vLLM before about 0.20 wrote `token_id:17`."""
    fields = mapping(entry)
    name = fields.get("token_id", fields.get("token"))
    if isinstance(name, str) and name.startswith("token_id:") and name[9:].isdecimal():
        return int(name[9:])
    return name


def _vllm_reply(
    choice: Mapping[str, Any], token_ids: tuple[int, ...], logprobs: object, request: TokenRequest
) -> TokenReply:
    ids = request.scored_ids
    entries = list_in(choice.get("prompt_logprobs"))[-len(ids) :]
    found = [mapping(mapping(entry).get(str(i))) for i, entry in zip(ids, entries, strict=False)]
    pairs = [(each.get("logprob"), i) for i, each in zip(ids, found, strict=False)]
    return TokenReply(
        token_ids=token_ids,
        logprobs=require_logprobs(logprobs, len(token_ids)),
        finish_reason=read_finish_reason(choice.get("finish_reason"), choice.get("stop_reason")),
        stopped_by=field_of(choice, "stop_reason", int, str),
        weight_version=read_weight_version(choice),
        weight_spans=read_weight_spans(choice),
        scored=_read_scores(pairs, request),
    )


# SGLang's `/generate`.


def _sglang_generate_body(request: TokenRequest) -> bytes:
    beside = {name: value for name, value in request.sampling.items() if name in _NO_SAMPLING_PARAMS}
    sampling = {
        **{name: value for name, value in request.sampling.items() if name not in beside},
        "max_new_tokens": request.max_tokens,
        "sampling_seed": request.seed,
        "stop_token_ids": request.stop_ids,
        "skip_special_tokens": False,
    }
    return _join_body(
        "input_ids", request, {**request.more, **beside, "sampling_params": sampling, "return_logprob": True}
    )


def _read_sglang_generate(content: bytes, request: TokenRequest) -> TokenReply:
    reply = _read_nonempty(content)
    meta = object_in(reply, "meta_info")
    check_prompt_tokens(field_of(meta, "prompt_tokens", int, where="meta_info."), request)
    token_ids = read_sampled_ids(reply.get("output_ids"), request, "output_ids")
    pairs = token_pairs(meta, "input_token_logprobs") if request.scored_ids else None
    return replace(_sglang_reply(token_ids, meta), scored=_read_scores(pairs or (), request))


def _read_nonempty(content: bytes) -> Mapping[str, Any]:
    reply = read_object(content)
    if not reply:
        raise NoReplyError("no completion (an empty object)")
    return reply


def _sglang_reply(token_ids: tuple[int, ...], meta: Mapping[str, Any]) -> TokenReply:
    pairs = token_pairs(meta)
    if pairs is None:
        raise ReplyError("the server gave no output_token_logprobs")
    check_same_ids([pair[1] for pair in pairs], token_ids)
    finish = field_of(meta, "finish_reason", str, dict)
    how = mapping(finish)
    matched = field_of(how, "matched", int, str, where="finish_reason.")
    if matched == NO_NUMBERS:
        raise ReplyError(f"the server gave up ({matched}): its last id was not sampled")
    return TokenReply(
        token_ids=token_ids,
        logprobs=require_logprobs([pair[0] for pair in pairs], len(token_ids)),
        finish_reason=read_finish_reason(
            how.get("type", finish if isinstance(finish, str) else None), how.get("message")
        ),
        stopped_by=matched,
        weight_version=read_weight_version({}, meta),
    )


# SGLang's `/v1/chat/completions` with `input_ids`, which ignores the messages.


def _sglang_chat_body(request: TokenRequest) -> bytes:
    fields = {
        "model": request.model,
        "messages": [{"role": "user", "content": ""}],
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stop_token_ids": request.stop_ids,
        "logprobs": True,
        "return_token_ids": True,
        "return_meta_info": True,
        "separate_reasoning": False,
        "skip_special_tokens": False,
    }
    return _join_body("input_ids", request, {**request.more, **request.sampling, **fields})


def _read_sglang_chat(content: bytes, request: TokenRequest) -> TokenReply:
    choice = _read_choice(content, request)
    given = choice.get("response_token_ids", choice.get("token_ids"))
    token_ids = read_sampled_ids(given, request, "response_token_ids", ", which SGLang gives from 0.5.13 on")
    finish = {"type": choice.get("finish_reason"), "matched": choice.get("matched_stop")}
    meta = object_in(choice, "meta_info")
    if meta.get("output_token_logprobs") is None:
        entries = _logprob_entries(choice)
        pairs = [[mapping(entry).get("logprob"), None] for entry in entries]
        meta = {**meta, "output_token_logprobs": pairs}
    return _sglang_reply(token_ids, {**meta, "finish_reason": finish})


# llama.cpp's `/completion`.


def _llama_cpp_body(request: TokenRequest) -> bytes:
    fields = {
        "n_predict": request.max_tokens,
        "seed": request.seed,
        "n_probs": 1,
        "post_sampling_probs": False,
        "return_tokens": True,
        "response_fields": ["tokens", "completion_probabilities", "tokens_evaluated", *_LLAMA_CPP_STOP],
    }
    return _join_body("prompt", request, {**UNCUT, **request.more, **request.sampling, **fields})


def _read_llama_cpp(content: bytes, request: TokenRequest) -> TokenReply:
    reply = _read_nonempty(content)
    check_prompt_tokens(field_of(reply, "tokens_evaluated", int), request)
    token_ids = read_sampled_ids(reply.get("tokens"), request, "tokens")
    entries = [mapping(entry) for entry in field_of(reply, "completion_probabilities", list) or ()]
    how, text = (field_of(reply, name, str) for name in _LLAMA_CPP_STOP)
    if how == "word":
        # A stop string's tokens lose their logprobs, so they leave the turn, and no later prompt has them.
        token_ids = token_ids[: len(entries)]
        if not token_ids:
            raise ReplyError(f"the turn is the stop string {text!r} alone, which llama.cpp gives no logprobs")
    check_same_ids([entry.get("id") for entry in entries], token_ids)
    return TokenReply(
        token_ids=token_ids,
        logprobs=require_logprobs([entry.get("logprob") for entry in entries], len(token_ids)),
        finish_reason=read_finish_reason(_LLAMA_CPP_FINISHES.get(how, how), None),
        stopped_by=text if how == "word" else token_ids[-1] if how == "eos" else None,
        weight_version=None,
    )


_LLAMA_CPP_STOP = ("stop_type", "stopping_word")
_LLAMA_CPP_FINISHES = {"eos": "stop", "word": "stop", "limit": "length", "none": None}

WIRES: Mapping[tuple[str, str], TokenWire] = {
    ("vllm", "completions"): TokenWire(
        path="/completions",
        body=_completions_body,
        constrain=_constrain_vllm,
        scoring=_score_by_vllm,
        read=_read_completions,
        absent="it has no /completions; ask by messages, with --openai.server_type chat",
    ),
    ("vllm", "generate"): TokenWire(
        path="/inference/v1/generate",
        at_root=True,
        body=_vllm_generate_body,
        constrain=_constrain_vllm,
        scoring=_score_by_vllm,
        read=_read_vllm_generate,
        absent="vLLM has /inference/v1/generate when it is started with --enable-scale-out or --tokens-only; "
        "--openai.server_type vllm needs no flag",
    ),
    ("sglang", "generate"): TokenWire(
        path="/generate",
        at_root=True,
        body=_sglang_generate_body,
        constrain=_constrain_sglang,
        scoring=_score_by_sglang,
        read=_read_sglang_generate,
        absent="SGLang has /generate beside /v1; is it SGLang?",
    ),
    ("sglang", "chat"): TokenWire(
        path="/chat/completions",
        body=_sglang_chat_body,
        constrain=lambda schema: {"response_format": json_format(schema)},
        read=_read_sglang_chat,
        absent="it has no /chat/completions; is it SGLang?",
    ),
    ("llama.cpp", "completion"): TokenWire(
        path="/completion",
        at_root=True,
        body=_llama_cpp_body,
        constrain=lambda schema: {"json_schema": schema},
        read=_read_llama_cpp,
        absent="llama.cpp has /completion beside /v1; is it llama.cpp?",
        has_stop_ids=False,
    ),
}
"""Wires by (server kind, wire name); the first of a kind is its default."""

MESSAGE_FIELDS = frozenset({"chat_template", "chat_template_kwargs", "tool_choice", "reasoning_effort"})
"""Fields that act on messages, and have no effect on token ids."""
_NO_SAMPLING_PARAMS = frozenset({"custom_logit_processor", "lora_path", "session_params"})
