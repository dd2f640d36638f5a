"""Chat formats by name: detection, renderers, and tool calls in text."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

from environments.policy.rendering.chat_template import ChatTemplate
from environments.policy.rendering.chatml import EMBEDDED, ChatMLRenderer, Renderer, load_tokenizer
from environments.policy.rendering.family_renderer import FamilyRenderer, text_reader
from environments.policy.rendering.hermes import CALL, Block, number_calls, read_blocks, read_hermes_block
from environments.policy.rendering.template_renderer import ReadCalls, TemplateRenderer
from tools.calls import ToolCall, ToolSpec
from tools.errors import ConfigError

HERMES: Final = "hermes"
TEXT_FAMILIES: Final = (HERMES, "qwen3-coder")
ToolsIn = Literal["auto", "template", "prompt"]
_CHATML: Final = "chatml"
_TEMPLATE: Final = "template"
_MAX_TEXT_CHARS: Final = 4_000_000
"""No turn is that long, and parsing it would take minutes."""
_HERMES_FAMILIES: Final = frozenset({"chatml", "hermes", "inkling", "qwen3", "qwen3-vl", "template"})
_INKLING_NAME: Final = re.compile(
    r"(?:<\|message_model\|>)?(?<![\w.-])[\w.-]*+(?=<\|content_invoke_tool_json\|>)"
)
_SECTIONS: Final = {
    "deepseek-r1": ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"),
    "deepseek-v3": ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"),
    "deepseek-v4": ("<\uff5cDSML\uff5ctool_calls>", "</\uff5cDSML\uff5ctool_calls>"),
    "gemma4": ("<|tool_call>", "<tool_call|>"),
    "gpt-oss": ("<|channel|>commentary to=", "<|call|>"),
    "hy3": ("<tool_calls:opensource>", "</tool_calls:opensource>"),
    "inkling": ("<|content_invoke_tool_json|>", "<|end_message|>"),
    "kimi-k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "kimi-k2.5": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "minimax-m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
}

_BY_MODEL: Final = (
    # The first match counts, so narrow patterns precede wide ones.
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
    (r"deepseek[-_]v3(?![._][12])", "deepseek-v3"),
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
)
LIBRARY_FAMILIES: Final = tuple(sorted({name for _, name in _BY_MODEL} - {_CHATML, *TEXT_FAMILIES}))


def family_names() -> tuple[str, ...]:
    return tuple(sorted((_CHATML, _TEMPLATE, *LIBRARY_FAMILIES, *TEXT_FAMILIES)))


def detect_family(model_name: str) -> str | None:
    """Return the family by a model's name, or None. A fine-tuned model may use another format."""
    lowered = model_name.lower()
    return next((family for pattern, family in _BY_MODEL if re.search(pattern, lowered)), None)


def validate_family(name: str) -> str:
    if name not in family_names():
        raise ConfigError(f"no chat format {name!r}; --openai.family is one of {', '.join(family_names())}")
    return name


def read_text_calls(content: str, family: str, tools: Sequence[ToolSpec]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return (content without calls, calls), for servers that do not parse calls.

    Quoted calls and calls in reasoning or code stay text. Calls are named `call_0`, `call_1`, …; unreadable
    ones carry their status.

    Raises:
        ConfigError: if the family is unknown or needs the extra `families`.
    """
    validate_family(family)
    if len(content) > _MAX_TEXT_CHARS:
        return content, ()
    if family == "llama-3":  # its calls have no marker
        read = (
            text_reader(family).parse_text(content, tools).tool_calls if content.lstrip()[:1] == "{" else ()
        )
        names = {tool.name for tool in tools}
        is_call = any(call.name in names or call.arguments != "{}" for call in read)
        return ("", number_calls(read)) if is_call else (content, ())
    searched = _INKLING_NAME.sub("", content) if family == "inkling" else content

    def read_block(block: Block) -> Sequence[ToolCall]:
        if family in _HERMES_FAMILIES:
            return read_hermes_block(block)
        reader = text_reader("qwen3.5" if family == "qwen3-coder" else family)
        return reader.parse_text(searched[block.start : block.end], tools).tool_calls

    found = read_blocks(searched, _SECTIONS.get(family, CALL), read_block)
    return found if found[1] else (content, ())


def find_call_reader(text: str, call: ToolCall, tool: ToolSpec) -> ReadCalls | None:
    """Return a reader that parses `call` as the only call in `text`, or None if no family has one."""
    for family in (HERMES, "qwen3-coder", "glm-4.5", *_SECTIONS, "llama-3"):
        opening = "{" if family == "llama-3" else _SECTIONS.get(family, CALL)[0]
        if opening not in text or family == "gpt-oss":  # its reader needs a network
            continue
        with suppress(ConfigError):  # it needs an extra
            _, found = read_text_calls(text, family, [tool])
            read = [(each.name, each.status, each.arguments.replace(" ", "")) for each in found]
            if read == [(call.name, "ok", call.arguments.replace(" ", ""))]:
                return lambda content, tools: read_text_calls(content, family, tools)
    return None


def load_renderer(
    *, family: str | None, model_name: str, tokenizer_name: str, tools: ToolsIn = "auto"
) -> Renderer:
    """Return the renderer of a model; the default family follows from the model's or tokenizer's name.

    A model of no family is rendered by its tokenizer's own chat template. With `auto`, tools are written into
    the prompt if that template has no place for them, or writes calls in a form that cannot be read.

    Raises:
        ConfigError: if no renderer fits; the message names what to set or install.
    """
    family = family or (_CHATML if tokenizer_name == EMBEDDED else None)
    known = validate_family(family) if family else detect_family(model_name) or detect_family(tokenizer_name)
    if tools == "prompt" and family in LIBRARY_FAMILIES:
        raise ConfigError(
            f"--openai.tools prompt has no effect on the chat format {family}, which has a place for tools; "
            f"leave one of the two out, or choose --openai.family template"
        )
    if known in LIBRARY_FAMILIES and tools != "prompt":
        return FamilyRenderer(known, load_tokenizer(tokenizer_name), model_name=model_name)
    tokenizer = load_tokenizer(tokenizer_name)
    if known == _CHATML:
        renderer = ChatMLRenderer(tokenizer)
        if not (lacking := renderer.missing_markers):
            return renderer
        if family == _CHATML:
            raise ConfigError(
                f"the tokenizer {tokenizer_name} lacks {', '.join(lacking)} of the chat format chatml; name "
                f"the model's own --openai.family"
            )
    template = ChatTemplate.load(tokenizer_name)
    if template is None:
        raise ConfigError(
            f"the chat format of {model_name!r} is not known: {tokenizer_name} has no chat template "
            f"(chat_template.jinja, or chat_template in tokenizer_config.json); give a folder with one, or "
            f"--openai.family as one of {', '.join((_CHATML, *LIBRARY_FAMILIES))}"
        )
    find_reader = None if tools == "prompt" else find_call_reader
    renderer = TemplateRenderer(template, tokenizer, find_reader=find_reader)
    if tools == "template" and renderer.tools_in_prompt:
        raise ConfigError(
            f"the chat template of {tokenizer_name} has no place for tools, or writes calls in a form that "
            f"cannot be read; choose --openai.tools prompt"
        )
    return renderer
