"""The format of a text: whether it keeps one, and what stands in its marked places. Linear in its length."""

import re
import unicodedata
from collections.abc import Sequence

_BOX_OR_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)")


def has_text(text: str | None) -> bool:
    """Whether there is anything to see: a character that is no space, control or format character."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text or "")


def has_tags(text: str | None, *tags: str) -> bool:
    """Whether the text is `<tag>…</tag>` for each tag, in this order, each once, and nothing else but space.

    `has_tags(text, "think", "answer")` holds for `<think>…</think> <answer>…</answer>`. What a server took
    out of the text (`Message.reasoning`) is not in it.
    """
    rest = text or ""
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        before, opened, rest = rest.partition(opening)
        content, closed, rest = rest.partition(closing)
        if not (opened and closed) or before.strip() or any(other in content for other in _markers(tags)):
            return False
    return not rest.strip()


def tagged(text: str | None, tag: str) -> str | None:
    """What stands in the last `<tag>…</tag>` that is closed, without the space around it."""
    before, closed, _ = (text or "").rpartition(f"</{tag}>")
    _, opened, content = before.rpartition(f"<{tag}>")
    return content.strip() if opened and closed else None


def boxed(text: str | None) -> str | None:
    r"""What stands in the last `\boxed{…}` that is closed, without the space around it.

    Braces may stand inside; of boxes in one another the outermost counts. `\{` and `\}` are no braces.
    """
    found: str | None = None
    open_braces: list[int | None] = []  # where a box begins, None for any other brace
    for match in _BOX_OR_BRACE.finditer(text or ""):
        mark = match[0]
        if mark == "{" or (mark[0] == "\\" and len(mark) > 2):
            open_braces.append(None if mark == "{" else match.end())
        elif mark == "}" and open_braces and (start := open_braces.pop()) is not None:
            found = match.string[start : match.start()].strip()
    return found


def code_block(text: str | None, language: str | None = None) -> str | None:
    """The code in the last fenced block that is closed; fences are those of Markdown.

    Args:
        text: where to look.
        language: only blocks that name it after their fence, in small letters or capitals; unset: any.
    """
    found: str | None = None
    fence: str | None = None
    wanted, lines = False, list[str]()
    for line in (text or "").split("\n"):
        match = _FENCE.match(line)
        if fence is None:
            if match is not None and (match[1][0] == "~" or "`" not in line[match.end(1) :]):
                fence, lines = match[1], []
                wanted = language is None or match[2].casefold() == language.casefold()
        elif match is not None and match[1].startswith(fence) and not line[match.end(1) :].strip():
            found = "\n".join(lines) if wanted else found
            fence = None
        else:
            lines.append(line.removesuffix("\r"))
    return found


def _markers(tags: Sequence[str]) -> list[str]:
    return [f"<{mark}{tag}>" for tag in tags for mark in ("", "/")]
