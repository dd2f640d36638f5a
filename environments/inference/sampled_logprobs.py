"""Whether a server's logprobs are of the distribution that it samples from: a trainer's ratios rest on it."""

from collections.abc import Mapping
from typing import Any

from environments.inference.server_kind import TEXT_ONLY, ServerFacts

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
}
"""Settings that reshape the distribution, and their values that do not."""
_AFTER_LOGPROBS = frozenset({"top_p", "top_k", "min_p"})
"""What SGLang applies after it has taken its logprobs."""


def logprobs_warning(sampling: Mapping[str, Any], facts: ServerFacts) -> str | None:
    """What is wrong with the logprobs that a server gives for these settings, and what to change."""
    reshaping = [name for name, neutral in _NEUTRAL.items() if sampling.get(name, neutral[0]) not in neutral]
    if facts.kind == "sglang":
        reshaping = [name for name in reshaping if name in _AFTER_LOGPROBS]
    processed = str(facts.logprobs_mode).startswith("processed")
    if not reshaping or processed or facts.kind in TEXT_ONLY:
        return None
    shown = ", ".join(f"{name} {sampling[name]}" for name in reshaping)
    if facts.kind == "sglang":
        return (
            f"{shown}: SGLang's logprobs are those before this, so a trainer's ratios are off; leave it out"
        )
    server = "vLLM's" if facts.kind == "vllm" else "the server's"
    return (
        f"{shown}: {server} logprobs are those of the model before any such setting, so a trainer's ratios "
        f"are off, unless vLLM is started with --logprobs-mode processed_logprobs"
    )
