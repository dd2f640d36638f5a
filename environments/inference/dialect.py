"""Which optional fields of a chat request a server takes, learned from its refusals."""

import re
from dataclasses import dataclass, replace
from typing import Any

from environments.inference.http_client import StatusError


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Which optional fields a server takes."""

    capture: bool = True
    """Token ids and logprobs."""
    seed: bool = True
    max_tokens: str = "max_tokens"

    def optional_fields(self, *, seed: int, max_tokens: int) -> dict[str, Any]:
        """The fields of a request that servers differ in."""
        fields: dict[str, Any] = {self.max_tokens: max_tokens}
        if self.seed:
            fields["seed"] = seed
        if self.capture:
            # With `top_logprobs` unset, vLLM gives no logprobs at all.
            fields |= {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
        return fields

    def without_refused(self, error: StatusError) -> "Dialect | None":
        """The dialect without what a refusal names, or `None` when it names nothing optional."""
        if error.status not in (400, 422):
            return None
        if self.max_tokens == "max_tokens" and "max_completion_tokens" in error.details:
            return replace(self, max_tokens="max_completion_tokens")
        if self.capture and re.search("return_token_ids|logprobs", error.details):
            return replace(self, capture=False)
        if self.seed and re.search(r"\bseed\b", error.details):
            return replace(self, seed=False)
        return None


_CONTEXT = re.compile(
    r"context[ _](length|size|window)|maximum model length|max_model_len|prompt is too long"
    r"|max_new_tokens\W+must be <=",
    re.IGNORECASE,
)
"""How OpenAI, vLLM, SGLang, llama.cpp and TGI say that the prompt does not fit."""


def is_context_overflow(error: StatusError) -> bool:
    """Whether a refusal says that the conversation does not fit the model's context."""
    return error.status in (400, 413, 422) and bool(_CONTEXT.search(f"{error.reason} {error.code}"))
