"""The request fields that a chat server accepts, learned from its refusals."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from environments.policy.inference.http_client import StatusError
from tools.errors import PolicyError
from tools.json_input import JsonError, read_json

SET_ELSEWHERE: Mapping[str, str] = {
    "messages": "format_prompt of the environment writes them",
    "model": "set --openai.model_name",
    "n": "set --env.group_size",
    "stream": "answers are read whole",
    "seed": "set --env.seed",
    "temperature": "set --openai.temperature",
    "top_p": "set --openai.top_p",
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"),
        "set --env.max_tokens_per_turn",
    ),
    "sampling_seed": "set --env.seed",
    "sampling_params": "give each of its fields by itself",
    "tools": "set `tools` of the environment, or --env.enabled_toolsets",
    **dict.fromkeys(
        ("logprobs", "top_logprobs", "return_token_ids", "return_tokens", "n_probs", "response_fields"),
        "token ids and logprobs are asked for where a server has them",
    ),
    **dict.fromkeys(
        ("prompt", "input_ids", "token_ids", "prompt_token_ids"),
        "ids are sent with --openai.server_type vllm, sglang or llama.cpp",
    ),
}
UNNAMED_MODEL = "default"
"""Stands for the only model of a server."""
_SHAPES_NOTHING = frozenset({
    "cache_salt", "data_parallel_rank", "extra_key", "kv_transfer_params", "metadata", "priority",
    "prompt_cache_key", "request_id", "return_weight_versions", "rid", "routed_dp_rank", "safety_identifier",
    "service_tier", "store", "stream_options", "user",
})  # fmt: skip
UNCUT: Mapping[str, Any] = {
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "dry_multiplier": 0.0,
    "dynatemp_range": 0.0, "mirostat": 0, "adaptive_target": -1.0,
}  # fmt: skip
"""Settings with which llama.cpp samples from the model's whole distribution, which its defaults cut."""
_STATUSES = frozenset({400, 403, 404, 422, 500, 501})
"""llama.cpp answers 500 for an unsupported field."""
_DEEPEST = 6
_ARGUMENT = r"(?:argument|parameter|param|field|propert(?:y|ie)|input|keyword|key|option)s?"
_REFUSED = (
    rf"(?:unrecognized|unknown|unsupported|unexpected|extra|forbidden)\s+(?:\w+\s+){{0,2}}?{_ARGUMENT}\b"
    r"[^.;\n]{0,80}?",
    r"extra inputs are not permitted[^.;\n]{0,40}?",
    r"unsupported value:\s*",
    r"does not support\s+(?:the\s+)?(?:\w+\s+)?",
    r"not allowed to request\s+",
)
_IS_REFUSED = (
    r"[^.;\n]{0,30}?\b(?:is|are)\s+(?:not\s+(?:yet\s+)?(?:supported|permitted|allowed|enabled|available|recognized|"
    r"implemented)|unsupported|forbidden|deprecated)",
    r"[^.;\n]{0,30}?\s+(?:not\s+(?:supported|permitted|allowed|recognized)|unsupported|cannot both be)\b",
    r"\s+param\w*\s+requires\b",
)
_QUOTED_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_IDENTIFIER = re.compile(r"[\w.\[\]]+")
CAPTURE = frozenset({"logprobs", "top_logprobs", "return_token_ids"})
"""A server that refuses one of these gives neither ids nor logprobs."""
_SAMPLING = frozenset({"temperature", "top_p"})
_PROVEN_WITH_IDS = CAPTURE | {"max_tokens", "stream"}
"""A server that once gave token ids supports these."""
_REASONING = frozenset({"messages.reasoning_content", "messages.reasoning"})
_TOOLS = frozenset({"tools", "tool_choice"})
_OPTIONAL = frozenset(
    {"seed", "n", "max_tokens", "stop", "stream", *CAPTURE, *_SAMPLING, *_REASONING, *_TOOLS}
)
_TAKES_NO_TOOLS = re.compile(
    r"requires --enable-auto-tool-choice|requires --jinja|that support tool use|tool use is not supported",
    re.IGNORECASE,
)
_ONLY_STREAMS = re.compile(
    r"only (?:\w+ ){0,2}stream(?:ing)?\b|non-?stream\w* (?:\w+ ){0,3}not supported|not support non-?stream"
    r"|stream(?:ing)? (?:must be (?:set to )?|is )(?:true|required)|stream mode is required",
    re.IGNORECASE,
)
_WANTS_COMPLETION_TOKENS = re.compile(r"\buse\W+max_completion_tokens\b", re.IGNORECASE)
_CONTEXT = re.compile(
    r"context[ _](length|size|window)|maximum model length|max_model_len|prompt is too long"
    r"|max_new_tokens\W+must be <=",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content[ _-]?(filter|policy|management)|moderation_blocked|safety system", re.IGNORECASE
)


def validate_extra_body(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields; ValueError for a reserved name or a value that is not JSON."""
    ends = fields.get("stop_token_ids", [])
    if not isinstance(ends, list) or any(type(each) is not int for each in cast("list[object]", ends)):
        raise ValueError("cannot send stop_token_ids: give a list of token ids, such as [2, 7]")
    for name, value in fields.items():
        if name in SET_ELSEWHERE:
            raise ValueError(f"cannot set {name}: {SET_ELSEWHERE[name]}")
        if "." in name or not name:
            outer, _, inner = name.partition(".")
            raise ValueError(
                f"has no entry {name}: a value within another is JSON, "
                f"--openai.extra_body.{outer} '{{\"{inner}\": …}}'"
            )
        try:
            orjson.dumps(value)
            json.dumps(value, allow_nan=False)  # orjson writes a NaN as null
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot send {name}: {error}") from error
    return fields


def sampling_of(temperature: float, top_p: float, extra_body: Mapping[str, Any]) -> dict[str, Any]:
    return {"temperature": temperature, "top_p": top_p, **shaping_fields(extra_body)}


def with_stops(sampling: Mapping[str, Any], stops: Sequence[str]) -> Mapping[str, Any]:
    if not stops:
        return sampling
    given: Any = sampling.get("stop") or []
    return {**sampling, "stop": [*dict.fromkeys([*([given] if isinstance(given, str) else given), *stops])]}


def json_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema == {"type": "object"}:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def shaping_fields(extra_body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extra_body.items() if name not in _SHAPES_NOTHING}


def find_refused_fields(error: StatusError, fields: Iterable[str]) -> frozenset[str]:
    """Return those of `fields` that an error refuses.

    Message fields are named `messages.NAME`. A pointer in the error (`param` of OpenAI, `loc` of FastAPI) is
    decisive. Otherwise the text must call the field unknown or unsupported, since it may quote a conversation
    that mentions it.
    """
    if error.status not in _STATUSES:
        return frozenset()
    pointed: set[str] = set()
    texts = [error.reason]
    _collect(_json_in(error.details), pointed, texts, _DEEPEST)
    if pointed:
        return frozenset(fields) & pointed
    own = [remove_quotes(text) for text in texts]
    named = {field: rf"(?<![\w.]){re.escape(field.removeprefix('messages.'))}(?![\w])" for field in fields}
    return frozenset(
        field
        for field, name in named.items()
        for text in own
        if any(re.search(begin + name, text, re.IGNORECASE) for begin in _REFUSED)
        or any(re.search(name + end, text, re.IGNORECASE) for end in _IS_REFUSED)
    )


def remove_quotes(text: str) -> str:
    """Remove quoted sentences from a text, and keep quoted names."""
    return _QUOTED_TEXT.sub(
        lambda each: inner if _IDENTIFIER.fullmatch(inner := each[0][1:-1]) else " ", text
    )


class RefusedSettingError(PolicyError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    refused: frozenset[str] = frozenset()
    max_tokens: str = "max_tokens"
    streams: bool = False
    reasoning: str | None = None
    section: str = "openai"

    @property
    def captures(self) -> bool:
        return not self.refused & CAPTURE

    @property
    def reasoning_field(self) -> str | None:
        """The field for reasoning in requests; None if unknown, since many servers refuse extra fields."""
        return None if f"messages.{self.reasoning}" in self.refused else self.reasoning

    def fields(self, sampling: Mapping[str, Any], *, seed: int, max_tokens: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"n": 1, **sampling, "seed": seed}
        if self.captures:
            # vLLM gives no logprobs if `top_logprobs` is unset.
            fields |= {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
        taken = {name: value for name, value in fields.items() if name not in self.refused}
        return taken | {self.max_tokens: max_tokens} | ({"stream": True} if self.streams else {})

    def merge(self, learned: "Dialect") -> "Dialect":
        return replace(
            self,
            refused=self.refused | learned.refused,
            max_tokens=max(self.max_tokens, learned.max_tokens, key=len),
            streams=self.streams or learned.streams,
            reasoning=learned.reasoning or self.reasoning,
        )

    def with_capture(self) -> "Dialect":
        return self if self.captures else replace(self, refused=self.refused - CAPTURE)

    def without_refused(
        self, error: StatusError, sampling: Mapping[str, Any], *, gives_ids: bool
    ) -> "Dialect | None":
        """Return the dialect without refused optional fields, or None if nothing optional is refused.

        Raises:
            RefusedSettingError: if a setting or a flag of the server must change.
        """
        refused = find_refused_fields(error, _OPTIONAL) - self.refused
        why = f"({error.status}: {error.reason})"
        if refused & _TOOLS or _TAKES_NO_TOOLS.search(error.reason):
            raise RefusedSettingError(
                f"the server takes no tools {why}: start vLLM with --enable-auto-tool-choice "
                "--tool-call-parser NAME, SGLang with --tool-call-parser NAME, llama.cpp with --jinja, or "
                "take one that calls tools"
            )
        if name := next((each for each in sorted(refused & _SAMPLING) if sampling[each] != 1), None):
            raise RefusedSettingError(
                f"the server refuses {name} {sampling[name]:g} {why}: set --{self.section}.{name} to 1, "
                "which is not sent then"
            )
        if gives_ids:
            refused -= _PROVEN_WITH_IDS
            return replace(self, refused=self.refused | refused) if refused else None
        reason = remove_quotes(error.reason)
        renames = "max_tokens" in refused or bool(_WANTS_COMPLETION_TOKENS.search(reason))
        simpler = replace(
            self,
            refused=self.refused | refused - {"max_tokens", "stream"},
            max_tokens="max_completion_tokens" if renames else self.max_tokens,
            streams=self.streams or "stream" in refused or bool(_ONLY_STREAMS.search(reason)),
        )
        return None if simpler == self else simpler


def is_context_overflow(error: StatusError) -> bool:
    return error.status in (400, 413, 422) and bool(_CONTEXT.search(f"{error.reason} {error.code}"))


def is_filtered(error: StatusError) -> bool:
    return error.status in (400, 403, 422) and bool(_FILTER.search(f"{error.reason} {error.code}"))


def _collect(value: object, pointed: set[str], texts: list[str], deepest: int) -> None:
    if deepest == 0:
        return
    if isinstance(value, str):
        texts.append(value)
        value = _json_in(value)
    if isinstance(value, list):
        for each in cast("list[object]", value)[:100]:
            _collect(each, pointed, texts, deepest - 1)
    elif isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        param, loc = fields.get("param"), fields.get("loc")
        if isinstance(param, str):
            pointed.add(_field_name(param.split(".")))
        if isinstance(loc, list):
            pointed.add(_field_name([step for step in cast("list[object]", loc) if step != "body"]))
        for name in ("error", "message", "msg", "detail", "metadata", "raw"):
            _collect(fields.get(name), pointed, texts, deepest - 1)


def _json_in(text: str) -> object:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return read_json(text)
    except JsonError:
        return None


def _field_name(steps: list[object] | list[str]) -> str:
    names = [step for step in steps if isinstance(step, str) and not step.strip("[]").isdigit()]
    if len(names) > 1 and names[0].startswith("messages"):
        return f"messages.{names[-1]}"
    return names[0] if names else ""
