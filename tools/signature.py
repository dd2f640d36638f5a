"""Arguments of tools: JSON schema from a typed signature, values from a model's JSON text."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast, get_args, get_origin, get_type_hints

from docstring_parser import DocstringStyle, ParseError, parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo

from tools.calls import State, ToolContext, ToolErrorKind
from tools.errors import ConfigError
from tools.json_input import JsonError, check_weight, read_exact_json
from tools.sandbox.base import Sandbox

_CLOSED = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=False)
_MAX_CHARS, _MAX_WEIGHT = 1_000_000, 1 << 14
"""Validation blocks the event loop."""
_MAX_REASONS = 10
_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ArgumentsRefused(Exception):  # becomes a result, never leaves the tools layer
    def __init__(self, kind: ToolErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ToolErrorKind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    description: str
    injected: Mapping[str, type]
    """Parameters injected by the rollout, with their types."""
    schema: Mapping[str, Any]
    model: type[BaseModel]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Signature":
        where = f"tool {function.__name__!r}"
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(f"{where}: a tool returns its result, and has no `yield`")
        parameters = list(inspect.signature(function).parameters.values())
        for parameter in parameters:
            if parameter.kind not in _NAMED_KINDS:
                raise ConfigError(f"{where}: `{parameter}` cannot be in a schema; name each parameter")
        injected, hints = parameters_of(function, where)
        own = [parameter for parameter in parameters if parameter.name not in injected]
        description, described = _docstring(function, where)
        if hidden := sorted(described.keys() & injected):
            raise ConfigError(f"{where}: the docstring describes {hidden}, which no model sees")
        if unknown := sorted(described.keys() - {parameter.name for parameter in own}):
            raise ConfigError(f"{where}: the docstring describes {unknown}, which are not parameters")
        model = _model(own, hints, described, where)
        try:
            schema = model.model_json_schema()
        except PydanticUserError as error:
            raise ConfigError(f"{where}: a parameter has no JSON schema: {error.message}") from None
        return cls(description=description, injected=injected, schema=_compact(schema), model=model)

    def parse(self, text: str) -> dict[str, Any]:
        """Return the arguments by name, with defaults.

        Types are strict, but four unambiguous slips of models and parsers are repaired: an empty text for no
        arguments, an integer written as `3.0`, a quoted number or boolean where only that type fits, and null
        for an optional parameter.

        Raises:
            ArgumentsRefused: if the text is not a JSON object, too large, or does not fit the schema.
        """
        values = json_arguments(text)
        try:
            arguments = self._validate(values)
        except ValidationError as error:
            try:
                arguments = self._validate(self._repair(values, error))
            except ValidationError as still:
                raise self._refusal(still) from None
        fields = type(arguments).model_fields
        return {str(field.alias): getattr(arguments, name) for name, field in fields.items()}

    def describe_parameters(self) -> str:
        required = self.schema.get("required", ())
        properties: Mapping[str, Mapping[str, Any]] = self.schema["properties"]
        listed = [
            f"{name}: {_type_name(schema)} ({'required' if name in required else 'optional'})"
            for name, schema in properties.items()
        ]
        return ", ".join(listed) or "none"

    def _validate(self, values: Mapping[str, Any]) -> BaseModel:
        return self.model.model_validate_json(json.dumps(values))

    def _repair(self, values: dict[str, Any], error: ValidationError) -> dict[str, Any]:
        mended = json.loads(json.dumps(values))
        required = self.schema.get("required", ())
        for wrong in error.errors():
            place, given, kind = wrong["loc"], wrong["input"], wrong["type"]
            if given is None and len(place) == 1 and place[0] not in required:
                mended.pop(place[0], None)
            elif kind in _MENDERS:
                _replace(mended, place, _MENDERS[kind](given))
        return mended

    def _refusal(self, error: ValidationError) -> ArgumentsRefused:
        reasons: list[str] = []
        for wrong in error.errors():
            place, kind = ".".join(map(str, wrong["loc"])), wrong["type"]
            if kind == "json_invalid":
                return ArgumentsRefused("invalid_json", f"The arguments are not valid JSON: {wrong['msg']}.")
            if kind == "missing":
                reasons.append(f"`{place}` is missing")
            elif kind == "extra_forbidden":
                reasons.append(f"`{place}` is not a parameter")
            else:
                said = wrong["msg"][:1].lower() + wrong["msg"][1:]
                reasons.append(f"`{place}`: {said}, got {_shorten(wrong['input'])}")
        if len(reasons) > _MAX_REASONS:
            reasons[_MAX_REASONS:] = [f"and {len(reasons) - _MAX_REASONS} more"]
        return ArgumentsRefused(
            "invalid_arguments", f"{'; '.join(reasons)}. Parameters: {self.describe_parameters()}."
        )


def json_arguments(text: str) -> dict[str, Any]:
    """Parse arguments without a schema; ArgumentsRefused unless they are a JSON object of limited size."""
    if len(text) > _MAX_CHARS:
        raise ArgumentsRefused(
            "invalid_arguments",
            f"The arguments have {len(text)} characters, and at most {_MAX_CHARS} are taken: do it in parts.",
        )
    try:
        check_weight(text.encode("utf-8", "surrogatepass"), _MAX_WEIGHT)
    except JsonError:
        raise ArgumentsRefused(
            "invalid_arguments", "The arguments hold too many values: do it in parts."
        ) from None
    if not text.strip():
        return {}
    try:
        values = read_exact_json(text)
    except JsonError as error:
        raise ArgumentsRefused("invalid_json", f"The arguments are not valid JSON: {error}.") from None
    if not isinstance(values, dict):
        raise ArgumentsRefused(
            "invalid_json", f"The arguments must be one JSON object, got {_shorten(values)}."
        )
    return cast(dict[str, Any], values)


def _docstring(function: Callable[..., Any], where: str) -> tuple[str, dict[str, str]]:
    try:
        parsed = parse(inspect.getdoc(function) or "", style=DocstringStyle.GOOGLE)
    except ParseError as error:
        raise ConfigError(f"{where}: the docstring cannot be read: {error}") from None
    if not parsed.short_description:
        raise ConfigError(f"{where}: no docstring; it is what the model reads about the tool")
    described = {entry.arg_name: " ".join((entry.description or "").split()) for entry in parsed.params}
    return "\n\n".join(filter(None, [parsed.short_description, parsed.long_description])), described


def _model(
    parameters: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    described: Mapping[str, str],
    where: str,
) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        default = ... if parameter.default is parameter.empty else parameter.default
        hint, name = hints[parameter.name], parameter.name
        metadata: Sequence[object] = getattr(hint, "__metadata__", ())
        own = next((extra.description for extra in metadata if isinstance(extra, FieldInfo)), None)
        field = Field(default, alias=name, description=own or described.get(name))
        fields[f"argument_{index}"] = (hint, field)
    try:
        return create_model("Arguments", __config__=_CLOSED, **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = error.message.partition(". ")[0]
        raise ConfigError(
            f"{where}: a parameter's type cannot be in a JSON schema: {reason}; a rollout gives what is "
            "annotated Sandbox, ToolContext or with a subclass of State"
        ) from None


def _compact(schema: Any) -> Any:
    """Remove titles, and the null variant of parameters that default to null."""
    if isinstance(schema, list):
        return [_compact(entry) for entry in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    entries: dict[str, Any] = {}
    for key, value in cast(dict[str, Any], schema).items():
        if key in ("properties", "$defs"):
            entries[key] = {name: _compact(entry) for name, entry in value.items()}
        elif key in ("default", "examples", "enum", "const"):
            entries[key] = value
        elif key != "title":
            entries[key] = _compact(value)
    variants = [variant for variant in entries.get("anyOf", ()) if variant != {"type": "null"}]
    if "default" in entries and entries["default"] is None and len(variants) == 1:
        del entries["anyOf"], entries["default"]
        entries = variants[0] | entries
    return entries


def _as_integer(given: Any) -> Any:
    given = _unquote(given)
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _unquote(given: Any) -> Any:
    if not isinstance(given, str) or len(given) > 32:
        return given
    try:
        value = read_exact_json(given)
    except JsonError:
        return given
    return value if isinstance(value, int | float) else given


_MENDERS: Mapping[str, Callable[[Any], Any]] = {
    "int_type": _as_integer,
    "float_type": _unquote,
    "bool_type": _unquote,
}
"""Repairs by pydantic's error type."""


def _replace(values: Any, place: Sequence[int | str], value: Any) -> None:
    *path, last = place
    try:
        for key in path:
            values = values[key]
        values[last]
    except (KeyError, IndexError, TypeError):
        return
    values[last] = value


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(variant) for variant in schema["anyOf"])
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_type_name(schema['items'])}"
    return str(schema.get("type", "object"))


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


SELF = "self"


class Unbound:
    """Type of a method's `self` until the method is looked up on a State class."""


def parameters_of(function: Callable[..., Any], where: str) -> tuple[dict[str, type], dict[str, Any]]:
    """Return (injected parameters with their types, other annotations and `return`)."""
    parameters = list(inspect.signature(function).parameters)
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001  # an annotation is any expression
        raise ConfigError(f"{where}: an annotation cannot be read: {why_unreadable(error)}") from None
    injected: dict[str, type] = {}
    if parameters[:1] == [SELF]:
        injected[SELF] = Unbound
        hints.pop(SELF, None)
    missing = [name for name in [*parameters, "return"] if name not in hints and name not in injected]
    if missing:
        raise ConfigError(f"{where}: no type annotation for {missing}; the signature is the schema")
    for name in parameters:
        if name not in injected and is_injected(hints[name]):
            kind = hints.pop(name)
            injected[name] = state_class(kind) or kind
        elif name not in injected and (inner := _find_injected(hints[name])):
            raise ConfigError(
                f"{where}: `{name}` takes {inner.__name__} inside of another type; it is always given, "
                f"write `{name}: {inner.__name__}`"
            )
    return injected, hints


def is_injected(annotation: Any) -> bool:
    return annotation is Sandbox or annotation is ToolContext or is_state(annotation)


def is_state(annotation: Any) -> bool:
    return state_class(annotation) is not None


def state_class(annotation: Any) -> type[State] | None:
    kind = get_origin(annotation) or annotation
    return kind if inspect.isclass(kind) and issubclass(kind, State) else None


def why_unreadable(error: Exception) -> str:
    if not isinstance(error, NameError):
        return str(error)
    return (
        f"{error} where it is read; import or define it at the top of the module, not for type checkers alone"
    )


def _find_injected(annotation: Any) -> type | None:
    parts = get_args(annotation)
    direct = (part for part in parts if is_injected(part))
    return next(chain(direct, filter(None, map(_find_injected, parts))), None)
