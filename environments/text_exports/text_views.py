"""The views of a record as text, by name."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from environments.text_exports.openai_chat import openai_chat
from environments.text_exports.preference import preference
from environments.text_exports.prompt_response import prompt_response
from environments.trajectory import CreditedGroup

TEXT_VIEWS: Mapping[str, Callable[[CreditedGroup, Counter[str]], Iterable[dict[str, Any]]]] = {
    "prompt_response": prompt_response,
    "openai": openai_chat,
    "preference": preference,
}
"""`TEXT_VIEWS[name](credited, notes)` gives a group's lines; `notes` counts what is to be said of them."""
