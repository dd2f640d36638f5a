"""A model's own chat template: its files, and Jinja with the settings and functions of transformers."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from environments.policy.rendering.chatml import EMBEDDED, EMBEDDED_TOKENIZER_DIR, TokenizerError
from tools.json_input import JsonError, read_json

_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class TemplateRefusal(Exception):
    """The template raised an error on a conversation; the text is that error."""


class ChatTemplate:
    """A template as text, or several by name, of which `tool_use` is for conversations with tools.

    A date that it writes is that of the day on which it was loaded.
    """

    def __init__(
        self,
        source: str,
        template: str | Mapping[str, str],
        *,
        tokens: Mapping[str, str],
        end_ids: tuple[int, ...] = (),
    ) -> None:
        """Compile the template.

        Args:
            source: the tokenizer's folder or name, for messages.
            template: Jinja.
            tokens: the special tokens by name (`eos_token`, …), which the template may write.
            end_ids: tokens that end a turn, beside `eos_token`.

        Raises:
            TokenizerError: if the template cannot be compiled.
        """
        self.source, self.tokens, self.end_ids = source, tokens, end_ids
        texts = {"default": template} if isinstance(template, str) else template
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        functions: Any = {"raise_exception": _raise_error, "strftime_now": datetime.now().strftime}
        environment.globals.update(functions)
        try:
            self._compiled = {name: environment.from_string(text) for name, text in texts.items()}
        except TemplateError as error:
            raise TokenizerError(f"the chat template of {source} is not valid Jinja: {error}") from error

    @classmethod
    def load(cls, name: str) -> "ChatTemplate | None":
        """Return the chat template of a local folder or a Hugging Face model, or None if there is none."""
        config = _read_json_file(name, "tokenizer_config.json")
        given = _read_file(name, "chat_template.jinja") or config.get("chat_template")
        if not given:
            return None
        by_name: dict[str, Any] = {}
        try:
            if isinstance(given, list):
                given = {each["name"]: each["template"] for each in cast("list[Any]", given)}
            by_name = {"default": given} if isinstance(given, str) else dict(given)
            is_readable = all(isinstance(each, str) for each in (by_name["default"], *by_name.values()))
        except (LookupError, TypeError, ValueError):
            is_readable = False
        if not is_readable:
            raise TokenizerError(f"chat_template of {name} is neither text nor texts by name with `default`")
        tokens = {
            key: value if type(value) is str else value.get("content", "")
            for key, value in config.items()
            if key.endswith("_token") and type(value) in (str, dict)
        }
        ends = _read_json_file(name, "generation_config.json").get("eos_token_id")
        end_ids = cast("list[int]", ends if type(ends) is list else [] if ends is None else [ends])
        if any(type(each) is not int for each in end_ids):
            raise TokenizerError(f"eos_token_id in generation_config.json of {name} is not of whole numbers")
        return cls(name, by_name, tokens=tokens, end_ids=tuple(end_ids))

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, opened: bool
    ) -> str:
        """Return the conversation as text, with the start of an assistant message if `opened`.

        Raises:
            TemplateRefusal: if the template raises an error.
        """
        compiled = (self._compiled.get("tool_use") if tools else None) or self._compiled["default"]
        try:
            return compiled.render(
                messages=messages, tools=tools or None, add_generation_prompt=opened, **self.tokens
            )
        except _ERRORS as error:
            raise TemplateRefusal(" ".join(str(error).split())[:200] or type(error).__name__) from error


class _Generation(Extension):
    """The block `{% generation %}`, whose content is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_error(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _read_file(name: str, file: str) -> str | None:
    folder = EMBEDDED_TOKENIZER_DIR if name == EMBEDDED else Path(name)
    path: Any = folder / file
    if not folder.is_dir():
        hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
        try:
            path = hub.try_to_load_from_cache(name, file)
            path = Path(path if isinstance(path, str) else hub.hf_hub_download(name, file))
        except errors.EntryNotFoundError:
            return None
        except Exception as error:
            raise TokenizerError(f"no {file} of {name!r}: {' '.join(str(error).split())[:300]}") from error
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{file} of {name} cannot be read: {error}") from error


def _read_json_file(name: str, file: str) -> dict[str, Any]:
    try:
        content = read_json(_read_file(name, file) or "{}")
    except JsonError as error:
        raise TokenizerError(f"{file} of {name} cannot be read: {error}") from error
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
