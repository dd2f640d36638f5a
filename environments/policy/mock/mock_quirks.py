"""The quirks of real model servers, by name: `turnwise mock-model --quirk NAME`.

Sources: the servers' code and documentation, and the errors that their users report.
"""

from collections.abc import Mapping, Sequence

from environments.policy.mock import refused_requests as refused
from environments.policy.mock import reply_shapes as shapes
from environments.policy.mock.quirky_server import Quirk
from tools.errors import ConfigError

QUIRKS: Mapping[str, Quirk] = {
    "openai-no-ids": Quirk(
        says="token ids are an unrecognized argument",
        refuses=refused.unknown_argument,
        replies=shapes.without_tokens,
    ),
    "openai-no-logprobs": Quirk(
        says="logprobs are not allowed (403)", refuses=refused.where_asked("logprobs", refused.no_logprobs)
    ),
    "openai-max-tokens": Quirk(
        says="max_tokens is max_completion_tokens",
        refuses=refused.where_asked("max_tokens", refused.max_tokens),
    ),
    "openai-sampling": Quirk(says="the default temperature alone, no top_p", refuses=refused.sampling),
    "openai-refusal": Quirk(says="an answer in `refusal`", replies=shapes.refusal),
    "openai-filter": Quirk(says="finish_reason content_filter", replies=shapes.filtered),
    "openai-function-call": Quirk(says="the former `function_call`", replies=shapes.legacy_call),
    "vllm-no-parser": Quirk(says="tool calls as text, finish_reason stop", replies=shapes.calls_as_text),
    "vllm-no-auto-tools": Quirk(
        says="tools refused without its flags", refuses=refused.where_asked("tools", refused.no_auto_tools)
    ),
    "vllm-reasoning": Quirk(says="reasoning in `reasoning`", replies=shapes.reasoning_as("reasoning")),
    "vllm-null-ids": Quirk(says="token_ids null", replies=shapes.null_tokens),
    "vllm-clamped": Quirk(says="a logprob of -9999.0", replies=shapes.clamped),
    "sglang-response-ids": Quirk(
        says="response_token_ids, all ids in the choice", replies=shapes.response_ids
    ),
    "sglang-meta-info": Quirk(says="ids and logprobs in meta_info", replies=shapes.meta_info),
    "sglang-abort": Quirk(says="finish_reason abort", replies=shapes.finished("abort")),
    "sglang-finish": Quirk(
        says="finish_reason as an object", replies=shapes.finished({"type": "stop", "matched": 2})
    ),
    "llamacpp-no-ids": Quirk(says="fields that it does not know are ignored", replies=shapes.without_tokens),
    "llamacpp-no-jinja": Quirk(
        says="tools refused without --jinja (500)", refuses=refused.where_asked("tools", refused.no_jinja)
    ),
    "llamacpp-calls": Quirk(says="calls without ids", replies=shapes.each_call(shapes.without_id)),
    "llamacpp-models": Quirk(says="two lists of models in one", models=shapes.llamacpp_models),
    "ollama-calls": Quirk(
        says="arguments as objects, or null", replies=shapes.each_call(shapes.object_arguments)
    ),
    "ollama-finish": Quirk(says="finish_reason stop beside calls", replies=shapes.finished("stop")),
    "ollama-no-tools": Quirk(
        says="a model that takes no tools", refuses=refused.where_asked("tools", refused.no_tools)
    ),
    "ollama-models": Quirk(
        says="names with :latest",
        models=shapes.ollama_models,
        plain_name=lambda name: name.removesuffix(shapes.OLLAMA_TAG),
    ),
    "ollama-no-models": Quirk(says="no list of models: null", models=shapes.no_models),
    "openrouter-error": Quirk(says="first an error with the status 200", fails_first=refused.provider_error),
    "openrouter-comments": Quirk(says="comments before the JSON", writes=shapes.after_comments),
    "openrouter-reasoning": Quirk(says="reasoning_details", replies=shapes.reasoning_details),
    "openrouter-models": Quirk(
        says="names with their maker's",
        models=shapes.openrouter_models,
        plain_name=lambda name: name.removeprefix(shapes.OPENROUTER_MAKER),
    ),
    "mistral-fields": Quirk(
        says="extra fields forbidden (422), in messages too",
        refuses=refused.mistral_fields,
        replies=shapes.without_tokens,
    ),
    "mistral-call-ids": Quirk(
        says="ids of nine letters and digits",
        refuses=refused.mistral_call_ids,
        replies=shapes.each_call(shapes.nine_characters),
    ),
    "mistral-roles": Quirk(says="no user right after a tool", refuses=refused.mistral_roles),
    "mistral-thinking": Quirk(says="thinking as content parts", replies=shapes.thinking_parts),
    "mistral-length": Quirk(says="finish_reason model_length", replies=shapes.finished("model_length")),
    "transformers-fields": Quirk(
        says="unexpected fields (422)", refuses=refused.transformers_fields, replies=shapes.without_tokens
    ),
    "transformers-models": Quirk(says="a list of models that breaks (500)", models=refused.internal_error),
    "transformers-stream": Quirk(
        says="event streams only", refuses=refused.whole_answers, writes=shapes.event_stream
    ),
    "silent": Quirk(says="no finish_reason, no role, no type", replies=shapes.with_fields_left_out),
}
SERVERS: Mapping[str, Sequence[str]] = {
    "openai": ("openai-no-ids", "openai-max-tokens", "openai-sampling"),
    "vllm": ("vllm-reasoning",),
    "sglang": ("sglang-response-ids", "sglang-finish"),
    "llamacpp": ("llamacpp-no-ids", "llamacpp-calls", "llamacpp-models"),
    "ollama": ("llamacpp-no-ids", "ollama-calls", "ollama-finish", "ollama-models", "vllm-reasoning"),
    "openrouter": (
        "llamacpp-no-ids", "openrouter-error", "openrouter-comments", "openrouter-reasoning",
        "openrouter-models",
    ),
    "mistral": ("mistral-fields", "mistral-call-ids", "mistral-roles", "mistral-thinking"),
    "transformers": ("transformers-fields", "transformers-models", "transformers-stream"),
}  # fmt: skip
"""What a server does without any setting of its user."""


def quirks_named(names: Sequence[str]) -> tuple[Quirk, ...]:
    """The quirks of these names; a server's name stands for what it does by default.

    Raises:
        ConfigError: no quirk has such a name.
    """
    wanted = dict.fromkeys(quirk for name in names for quirk in SERVERS.get(name, (name,)))
    for name in wanted:
        if name not in QUIRKS:
            raise ConfigError(f"no quirk {name!r}; choose one of {', '.join([*SERVERS, *QUIRKS])}")
    return tuple(QUIRKS[name] for name in wanted)
