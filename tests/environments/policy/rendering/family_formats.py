"""Assistant turns as the models of each family write them, in several styles of JSON, and tokenizers."""

import json
from functools import cache

import pytest
from tokenizers import AddedToken

from environments.policy.rendering.chatml import load_tokenizer
from environments.policy.rendering.families import LIBRARY_FAMILIES
from environments.policy.rendering.family_renderer import FamilyRenderer, text_reader

OFFLINE = tuple(family for family in LIBRARY_FAMILIES if family != "gpt-oss")
"""Those that need nothing from a network."""
BY_DEFAULT = {"deepseek-v3", "llama-3", "qwen3"}
"""One of each kind: calls between markers, calls as plain JSON, calls in tags after reasoning."""


def families(but=lambda family: True):
    """The families to test with, those that satisfy `but`: three of them, and with `--soak` the others."""
    return [
        family if family in BY_DEFAULT else pytest.param(family, marks=pytest.mark.soak)
        for family in OFFLINE
        if but(family)
    ]


JSON_STYLES = {
    "own": {},
    "compact": {"separators": (",", ":")},
    "indented": {"indent": 2},
    "spaced": {"separators": (" , ", " : ")},
    "escaped": {"ensure_ascii": True},
}


@cache
def renderer_of(family):
    """The family's renderer over the embedded vocabulary; every other marker is not flagged special."""
    tokenizer = load_tokenizer("embedded")
    known = tokenizer.get_vocab()
    markers = [marker for marker in [*text_reader(family).markers, "<think>"] if marker not in known]
    tokenizer.add_tokens(
        [AddedToken(text, special=bool(index % 2), normalized=False) for index, text in enumerate(markers)]
    )
    return FamilyRenderer(family, tokenizer)


def encoded(family, text):
    """Ids as a model samples them: markers in the text are tokens."""
    return tuple(renderer_of(family)._tokenizer.encode(text))


def as_text(family, text):
    """Text from which no marker is made."""
    return renderer_of(family)._tokenizer.from_message(text)


def written(family, content, calls, style="own", reasoning=None, first=0):
    """A whole turn, without its stop token; `calls` are (name, arguments), numbered from `first`."""
    if family.startswith("kimi"):
        return thinking(family, reasoning) + kimi(as_text(family, content), calls, style, first)
    texts = [(as_text(family, name), arguments) for name, arguments in calls]
    thought, answer = thinking(family, reasoning), as_text(family, content)
    return thought + WRITERS[family](answer, texts, style)


def thinking(family, reasoning):
    opening = renderer_of(family).decode(renderer_of(family)._opening)
    if opening.endswith("<think>\n"):
        return f"{as_text(family, reasoning or '')}\n</think>\n\n"
    if opening.endswith("<think>"):
        return f"{as_text(family, reasoning or '')}</think>"
    if family.startswith("qwen3") and reasoning:
        return f"<think>\n{as_text(family, reasoning)}\n</think>\n\n"
    return ""


def stop_of(family, calls):
    """The stop token that a model of the family samples."""
    renderer = renderer_of(family)
    if family.startswith("glm"):
        return renderer.markers["<|observation|>" if calls else "<|user|>"]
    if family == "gemma4":
        return renderer.markers["<|tool_response>" if calls else "<turn|>"]
    if family == "llama-3":
        return renderer.markers["<|eot_id|>"]
    return renderer.stop_ids[0]


def dumped(arguments, style):
    return json.dumps(arguments, **{"ensure_ascii": False, **JSON_STYLES[style]})


def plain(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def hermes(content, calls, style):
    blocks = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {dumped(given, style)}}}\n</tool_call>'
        for name, given in calls
    ]
    return "\n".join(filter(None, [content, *blocks]))


def xml(content, calls, style, *, before="\n\n", boolean=plain):
    blocks = []
    for name, given in calls:
        values = "".join(
            f"<parameter={key}>\n{boolean(value)}\n</parameter>\n" for key, value in given.items()
        )
        blocks.append(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>")
    return content + (before if content and blocks else "") + "\n".join(blocks)


def python_words(value):
    return str(value) if isinstance(value, bool) else plain(value)


def tagged(content, calls, style, *, line="\n", before="\n", between="", start="", end="", each=""):
    blocks = []
    for name, given in calls:
        values = "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{plain(value)}</arg_value>{line}"
            for key, value in given.items()
        )
        blocks.append(f"{each}<tool_call>{name}{line}{values}</tool_call>")
    return start + content + (before if content and blocks else "") + between.join(blocks) + end


def deepseek(content, calls, style):
    if not calls:
        return content
    blocks = "".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n"
        f"```json\n{dumped(given, style)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    )
    return f"{content}<｜tool▁calls▁begin｜>{blocks}<｜tool▁calls▁end｜>"


def dsml(content, calls, style):
    if not calls:
        return content
    blocks = []
    for name, given in calls:
        values = "".join(
            f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
            f"{plain(value)}</｜DSML｜parameter>\n"
            for key, value in given.items()
        )
        blocks.append(f'<｜DSML｜invoke name="{name}">\n{values}</｜DSML｜invoke>')
    return f"{content}\n\n<｜DSML｜tool_calls>\n" + "\n".join(blocks) + "\n</｜DSML｜tool_calls>"


def kimi(content, calls, style, first=0):
    if not calls:
        return content
    blocks = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}"
        f"<|tool_call_argument_begin|>{dumped(given, style)}<|tool_call_end|>"
        for index, (name, given) in enumerate(calls, first)
    )
    return f"{content}<|tool_calls_section_begin|>{blocks}<|tool_calls_section_end|>"


def minimax(content, calls, style):
    if not calls:
        return content
    blocks = []
    for name, given in calls:
        values = "".join(
            f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in given.items()
        )
        blocks.append(f'<invoke name="{name}">\n{values}</invoke>')
    return f"{content}\n<minimax:tool_call>\n" + "\n".join(blocks) + "\n</minimax:tool_call>"


def gemma(content, calls, style):
    def value_of(value):
        return f'<|"|>{value}<|"|>' if isinstance(value, str) else plain(value)

    blocks = []
    for name, given in calls:
        values = ",".join(f"{key}:{value_of(given[key])}" for key in sorted(given))
        blocks.append(f"<|tool_call>call:{name}{{{values}}}<tool_call|>")
    return content + "".join(blocks)


def hy3(content, calls, style):
    if not calls:
        return content
    blocks = []
    for name, given in calls:
        values = "".join(
            f"<arg_key:opensource>{key}</arg_key:opensource>\n"
            f"<arg_value:opensource>{plain(value)}</arg_value:opensource>\n"
            for key, value in given.items()
        )
        blocks.append(f"<tool_call:opensource>{name}<tool_sep:opensource>\n{values}</tool_call:opensource>\n")
    return f"{content}<tool_calls:opensource>\n{''.join(blocks)}</tool_calls:opensource>"


def inkling(content, calls, style):
    style = "compact" if style == "own" else style
    parts = [f"<|content_text|>{content}<|end_message|>"]
    for name, given in calls:
        call = dumped({"name": name, "args": dict(sorted(given.items()))}, style)
        parts.append(f"{name}<|content_invoke_tool_json|>{call}<|end_message|>")
    return "<|message_model|>".join(parts)


def llama(content, calls, style):
    if not calls:
        return content
    name, given = calls[0]
    return f'{{"name": "{name}", "parameters": {dumped(given, style)}}}'


def nemotron(content, calls, style):
    return xml(content, calls, style, before="\n", boolean=python_words) + ("\n" if calls else "")


WRITERS = {
    **dict.fromkeys(("qwen3", "qwen3-vl"), hermes),
    **dict.fromkeys(("qwen3.6", "qwen3.8"), xml),
    **dict.fromkeys(("qwen3.5", "prime-qwen3"), lambda *turn: xml(*turn, boolean=python_words)),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), nemotron),
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), lambda *turn: tagged(*turn, line="", before="")),
    "glm-4.5": lambda content, *turn: tagged(
        content and f"\n{content}", *turn, start="\n<think></think>", each="" if content else "\n"
    ),
    **dict.fromkeys(
        ("laguna-m.1", "laguna-xs.2"), lambda *turn: tagged(*turn, start="\n", between="\n", end="\n")
    ),
    **dict.fromkeys(("laguna-s-2.1", "laguna-xs-2.1"), lambda *turn: tagged(*turn, line="", before="")),
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), deepseek),
    "deepseek-v4": dsml,
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), kimi),
    "minimax-m2": minimax,
    "gemma4": gemma,
    "hy3": hy3,
    "inkling": inkling,
    "llama-3": llama,
}
