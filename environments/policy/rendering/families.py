"""The chat formats by name: which there are, which one a model has, and the renderer of one."""

import re
from typing import Final

from environments.policy.rendering.chatml import EMBEDDED, ChatMLRenderer, load_tokenizer
from environments.policy.rendering.family_renderer import FamilyRenderer
from environments.policy.rendering.renderer import Renderer
from tools.errors import ConfigError

LIBRARY_FAMILIES: Final = (
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "gemma4",
    "glm-4.5",
    "glm-5",
    "glm-5.1",
    "glm-5.3",
    "gpt-oss",
    "hy3",
    "inkling",
    "kimi-k2",
    "kimi-k2.5",
    "laguna-m.1",
    "laguna-s-2.1",
    "laguna-xs-2.1",
    "laguna-xs.2",
    "llama-3",
    "minimax-m2",
    "nemotron-3",
    "nemotron-3-ultra",
    "nemotron-3.5",
    "prime-qwen3",
    "qwen3",
    "qwen3-vl",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
)
"""Rendered by the `renderers` library, which the extra `families` brings."""
TEXT_FAMILIES: Final = ("deepseek-v3.1", "hermes", "mistral", "qwen3-coder")
"""Known for the calls in a reply's text alone."""
_CHATML: Final = "chatml"

_BY_MODEL: Final = (
    # The first that is found in the model's name counts: what is narrower stands before what is wider.
    (r"primeintellect/qwen3", "prime-qwen3"),
    (r"qwen-?3[-_.]?vl", "qwen3-vl"),
    (r"qwen-?3[-_.]?coder", "qwen3-coder"),
    (r"qwen-?3[._]5", "qwen3.5"),
    (r"qwen-?3[._]6", "qwen3.6"),
    (r"qwen-?3[._]8", "qwen3.8"),
    (r"deepseek[-_]r1[-_]distill[-_]qwen", "chatml"),
    (r"deepseek[-_]r1[-_]distill[-_]llama", "llama-3"),
    (r"qwen-?3(?![\d._])", "qwen3"),
    (r"qwen-?2|qwq|hermes", "hermes"),
    (r"deepseek[-_]r1", "deepseek-r1"),
    (r"deepseek[-_]v3[._][12]", "deepseek-v3.1"),
    (r"deepseek[-_]v3", "deepseek-v3"),
    (r"deepseek[-_]v4", "deepseek-v4"),
    (r"gemma[-_]?4", "gemma4"),
    (r"glm[-_]?4[._]5", "glm-4.5"),
    (r"glm[-_]?5[._]1", "glm-5.1"),
    (r"glm[-_]?5[._]3", "glm-5.3"),
    (r"glm[-_]?(5|4[._][67])", "glm-5"),
    (r"gpt[-_]oss", "gpt-oss"),
    (r"(^|/)hy3(?!-preview)", "hy3"),
    (r"inkling", "inkling"),
    (r"kimi[-_]k2[._][56]", "kimi-k2.5"),
    (r"kimi[-_]k2", "kimi-k2"),
    (r"laguna[-_]m[._]1", "laguna-m.1"),
    (r"laguna[-_]s[-_]2[._]1", "laguna-s-2.1"),
    (r"laguna[-_]xs[-_]2[._]1", "laguna-xs-2.1"),
    (r"laguna[-_]xs[._]2", "laguna-xs.2"),
    (r"llama[-_]?3", "llama-3"),
    (r"minimax[-_]m2", "minimax-m2"),
    (r"nemotron[-_]3[._]5", "nemotron-3.5"),
    (r"nemotron[-_]3[-_]ultra", "nemotron-3-ultra"),
    (r"nemotron[-_]3", "nemotron-3"),
    (r"mistral|mixtral|ministral|devstral|magistral|codestral", "mistral"),
)


def family_names() -> tuple[str, ...]:
    """Every name that `--openai.family` takes."""
    return tuple(sorted((_CHATML, *LIBRARY_FAMILIES, *TEXT_FAMILIES)))


def family_of(model_name: str) -> str | None:
    """The family by a model's name; `None`: unknown.

    A fine-tuned model may have another format than the model it began with; then name the family.
    """
    lowered = model_name.lower()
    return next((family for pattern, family in _BY_MODEL if re.search(pattern, lowered)), None)


def checked_family(name: str) -> str:
    """A name of a family.

    Raises:
        ConfigError: unknown name.
    """
    if name not in family_names():
        raise ConfigError(f"no chat format {name!r}; --openai.family is one of {', '.join(family_names())}")
    return name


def load_renderer(*, family: str | None, model_name: str, tokenizer_name: str) -> Renderer:
    """The renderer for ids of a model.

    Args:
        family: a name of `family_names`; `None`: by the model's name, and ChatML for the embedded tokenizer.
        model_name: as the server names it.
        tokenizer_name: `embedded`, a folder, or a Hugging Face name.

    Raises:
        ConfigError: one line that names what to set or to install.
    """
    if family is None:
        family = _CHATML if tokenizer_name == EMBEDDED else family_of(model_name) or family_of(tokenizer_name)
    if family is None:
        raise ConfigError(
            f"the chat format of {model_name!r} is not known; --openai.family is one of "
            f"{', '.join((_CHATML, *LIBRARY_FAMILIES))}"
        )
    if checked_family(family) in TEXT_FAMILIES:
        raise ConfigError(
            f"the chat format {family} is known for calls in text, not for token ids; use "
            f"--openai.server_type chat, or another --openai.family"
        )
    tokenizer = load_tokenizer(tokenizer_name)
    if family == _CHATML:
        return _chatml(ChatMLRenderer(tokenizer), tokenizer_name)
    return FamilyRenderer(family, tokenizer, model_name=model_name)


def _chatml(renderer: ChatMLRenderer, tokenizer_name: str) -> ChatMLRenderer:
    if lacking := renderer.missing_markers:
        raise ConfigError(
            f"the tokenizer {tokenizer_name} lacks {', '.join(lacking)} of the chat format chatml; name the "
            f"model's own --openai.family"
        )
    return renderer
