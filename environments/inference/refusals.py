"""Which fields of a request an error answer refuses: those that it points to, or says something of."""

import re
from collections.abc import Iterable
from typing import cast

import orjson

from environments.inference.http_client import StatusError

_STATUSES = frozenset({400, 403, 404, 422, 500, 501})
"""llama.cpp answers 500 for a field that it does not take."""
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
"""How servers begin to refuse what they name then."""
_IS_REFUSED = (
    r"[^.;\n]{0,30}?\b(?:is|are)\s+(?:not\s+(?:yet\s+)?(?:supported|permitted|allowed|enabled|available|recognized|"
    r"implemented)|unsupported|forbidden|deprecated)",
    r"[^.;\n]{0,30}?\s+(?:not\s+(?:supported|permitted|allowed|recognized)|unsupported|cannot both be)\b",
    r"\s+param\w*\s+requires\b",
)
"""How they go on from the name."""
_QUOTED_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_IDENTIFIER = re.compile(r"[\w.\[\]]+")


def refused_fields(error: StatusError, fields: Iterable[str]) -> frozenset[str]:
    """Those of `fields` that an error says it does not take.

    A field is `temperature` or, for one of a message, `messages.reasoning_content`. An error that points to
    one (`param` of OpenAI, `loc` of FastAPI) refuses that one alone; the text of any other has to say that a
    field is unknown or unsupported, since it may as well quote a conversation that mentions it.
    """
    if error.status not in _STATUSES:
        return frozenset()
    pointed, texts = _taken_apart(error)
    if pointed:
        return frozenset(fields) & pointed
    said = [without_quotes(text) for text in texts]
    return frozenset(field for field in fields if any(_says_refused(text, field) for text in said))


def without_quotes(text: str) -> str:
    """What an error says itself, without the conversation that it may quote; names stay."""
    return _QUOTED_TEXT.sub(_without_sentences, text)


def _taken_apart(error: StatusError) -> tuple[frozenset[str], list[str]]:
    """The fields that an error points to, and what it says."""
    pointed: set[str] = set()
    texts = [error.reason]
    try:
        answer: object = orjson.loads(error.details)
    except ValueError:
        return frozenset(), texts
    _collect(answer, pointed, texts, _DEEPEST)
    return frozenset(pointed), texts


def _collect(value: object, pointed: set[str], texts: list[str], deepest: int) -> None:
    """What an answer holds, however it is wrapped: OpenRouter and Mistral put JSON into its text."""
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
        pointed |= _pointed_by(fields)
        for name in ("error", "message", "msg", "detail", "metadata", "raw"):
            _collect(fields.get(name), pointed, texts, deepest - 1)


def _json_in(text: str) -> object:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def _pointed_by(fields: dict[str, object]) -> set[str]:
    param, loc = fields.get("param"), fields.get("loc")
    pointed = {_name_of(param.split("."))} if isinstance(param, str) else set[str]()
    if isinstance(loc, list):
        pointed.add(_name_of([step for step in cast("list[object]", loc) if step != "body"]))
    return pointed


def _name_of(steps: list[object] | list[str]) -> str:
    """`messages.reasoning_content` of `messages, 6, assistant, reasoning_content`; else the first step."""
    names = [step for step in steps if isinstance(step, str) and not step.strip("[]").isdigit()]
    if len(names) > 1 and names[0].startswith("messages"):
        return f"messages.{names[-1]}"
    return names[0] if names else ""


def _without_sentences(quoted: re.Match[str]) -> str:
    """Nothing for a quoted text, the name alone for a quoted name."""
    inner = quoted[0][1:-1]
    return inner if _IDENTIFIER.fullmatch(inner) else " "


def _says_refused(text: str, field: str) -> bool:
    name = rf"(?<![\w.]){re.escape(field.removeprefix('messages.'))}(?![\w])"
    return any(re.search(begin + name, text, re.IGNORECASE) for begin in _REFUSED) or any(
        re.search(name + end, text, re.IGNORECASE) for end in _IS_REFUSED
    )
