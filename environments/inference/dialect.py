"""What a chat server takes of a request, and how it is written for it: learned from what the server says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from environments.inference.http_client import StatusError
from environments.inference.refusals import refused_fields, without_quotes
from tools.errors import PolicyError

CAPTURE = frozenset({"logprobs", "top_logprobs", "return_token_ids"})
"""Asks for token ids and their logprobs: a server that refuses one of them gives neither."""
_SAMPLING = frozenset({"temperature", "top_p"})
_PROVEN_WITH_IDS = CAPTURE | {"max_tokens", "stream"}
"""What a server that has given token ids has taken, and takes again."""
_REASONING = frozenset({"messages.reasoning_content", "messages.reasoning"})
_TOOLS = frozenset({"tools", "tool_choice"})
_OPTIONAL = frozenset({"seed", "n", "max_tokens", "stream", *CAPTURE, *_SAMPLING, *_REASONING, *_TOOLS})
_TAKES_NO_TOOLS = re.compile(
    r"requires --enable-auto-tool-choice|requires --jinja|that support tool use|tool use is not supported",
    re.IGNORECASE,
)
_ONLY_STREAMS = re.compile(
    r"only (?:\w+ ){0,2}stream(?:ing)?\b|non-?stream\w* (?:\w+ ){0,3}not supported|not support non-?stream"
    r"|stream(?:ing)? (?:must be (?:set to )?|is )(?:true|required)|stream mode is required",
    re.IGNORECASE,
)
"""How transformers, DashScope and gateways say it."""
_WANTS_COMPLETION_TOKENS = re.compile(r"\buse\W+max_completion_tokens\b", re.IGNORECASE)
_CONTEXT = re.compile(
    r"context[ _](length|size|window)|maximum model length|max_model_len|prompt is too long"
    r"|max_new_tokens\W+must be <=",
    re.IGNORECASE,
)
"""How OpenAI, vLLM, SGLang, llama.cpp and TGI say that the prompt does not fit."""
_FILTER = re.compile(
    r"content[ _-]?(filter|policy|management)|moderation_blocked|safety system", re.IGNORECASE
)
"""How OpenAI, Azure and gateways say that they answer nothing to such a text."""


class RefusedSettingError(PolicyError):
    """What a server refuses cannot be left out; the text says which setting or flag to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What differs between servers."""

    refused: frozenset[str] = frozenset()
    """Fields that it does not take; those of a message are `messages.NAME`."""
    max_tokens: str = "max_tokens"
    streams: bool = False
    """Whether it answers as an event stream only."""
    reasoning: str | None = None
    """The field of a message in which it gave reasoning, and is given it back."""
    section: str = "env"
    """Of the settings that say how it is asked to sample."""

    @property
    def captures(self) -> bool:
        """Whether token ids and logprobs are asked for."""
        return not self.refused & CAPTURE

    @property
    def reasoning_field(self) -> str | None:
        """Where reasoning is sent back; `None`: nowhere, for many servers refuse what they do not know."""
        return None if f"messages.{self.reasoning}" in self.refused else self.reasoning

    def fields(self, sampling: Mapping[str, Any], *, seed: int, max_tokens: int) -> dict[str, Any]:
        """The fields of a request that servers differ in."""
        fields: dict[str, Any] = {"n": 1, **sampling, "seed": seed}
        if self.captures:
            # With `top_logprobs` unset, vLLM gives no logprobs at all.
            fields |= {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
        taken = {name: value for name, value in fields.items() if name not in self.refused}
        return taken | {self.max_tokens: max_tokens} | ({"stream": True} if self.streams else {})

    def joined(self, learned: "Dialect") -> "Dialect":
        """All that two requests found out."""
        return replace(
            self,
            refused=self.refused | learned.refused,
            max_tokens=max(self.max_tokens, learned.max_tokens, key=len),
            streams=self.streams or learned.streams,
            reasoning=learned.reasoning or self.reasoning,
        )

    def proven(self) -> "Dialect":
        """The same of a server that is to be asked for token ids, whatever it said once."""
        return self if self.captures else replace(self, refused=self.refused - CAPTURE)

    def without_refused(
        self, error: StatusError, sampling: Mapping[str, Any], *, gives_ids: bool
    ) -> "Dialect | None":
        """The dialect without what an error refuses, or `None` when that is nothing optional.

        Args:
            error: what the server answered.
            sampling: the settings that shape the distribution; those that are 1 may be left out.
            gives_ids: whether it has given token ids, so that it is about this one request.

        Raises:
            RefusedSettingError: it refuses what a setting or its own flags have to change.
        """
        refused = refused_fields(error, _OPTIONAL) - self.refused
        _refuse_needed(refused, error, sampling, self.section)
        if gives_ids:
            refused -= _PROVEN_WITH_IDS
            return replace(self, refused=self.refused | refused) if refused else None
        said = without_quotes(error.reason)
        streams = self.streams or "stream" in refused or bool(_ONLY_STREAMS.search(said))
        renames = "max_tokens" in refused or bool(_WANTS_COMPLETION_TOKENS.search(said))
        simpler = replace(
            self,
            refused=self.refused | refused - {"max_tokens", "stream"},
            max_tokens="max_completion_tokens" if renames else self.max_tokens,
            streams=streams,
        )
        return None if simpler == self else simpler


def _refuse_needed(
    refused: frozenset[str], error: StatusError, sampling: Mapping[str, Any], section: str
) -> None:
    """Raise where a server refuses what a rollout needs."""
    said = f"({error.status}: {error.reason})"
    if refused & _TOOLS or _TAKES_NO_TOOLS.search(error.reason):
        raise RefusedSettingError(
            f"the server takes no tools {said}: start vLLM with --enable-auto-tool-choice --tool-call-parser "
            "NAME, SGLang with --tool-call-parser NAME, llama.cpp with --jinja, or take one that calls tools"
        )
    for name in sorted(refused & _SAMPLING):
        if sampling[name] != 1:
            raise RefusedSettingError(
                f"the server refuses {name} {sampling[name]:g} {said}: set --{section}.{name} to 1, which is "
                "not sent then"
            )


def is_context_overflow(error: StatusError) -> bool:
    """Whether a refusal says that the conversation does not fit the model's context."""
    return error.status in (400, 413, 422) and bool(_CONTEXT.search(f"{error.reason} {error.code}"))


def is_filtered(error: StatusError) -> bool:
    """Whether a refusal is of what the conversation says."""
    return error.status in (400, 403, 422) and bool(_FILTER.search(f"{error.reason} {error.code}"))
