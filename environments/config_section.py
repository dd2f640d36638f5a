"""A section of settings: flat fields, entries of mappings, and Atropos' names for what has no effect here."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator

from tools.errors import ConfigError

WithoutEffect = Mapping[str, tuple[tuple[object, ...], str]]
"""Settings that do nothing: the values that are accepted all the same, and what to do instead."""


class Section(BaseModel):
    """Settings of one section of the command line or of a YAML file."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    section: ClassVar[str]
    """`env` for `--env.NAME`."""
    without_effect: ClassVar[WithoutEffect] = {}
    by_entry: ClassVar[frozenset[str]] = frozenset()
    """Mappings whose entries are settings of their own: layers join, and `None` unsets an entry."""
    json_entries: ClassVar[frozenset[str]] = frozenset()
    """Those of them whose entries a command line writes as JSON, where they are none as text."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a field that nobody would read.

        Raises:
            ConfigError: it has the name of one that has no effect.
        """
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            accepted, instead = cls.without_effect.get(name, ((field.default,), ""))
            if not any(_same(field.default, each) for each in accepted):
                raise ConfigError(f"{cls.__name__}.{name} has no effect in Turnwise: {instead}")

    @model_validator(mode="before")
    @classmethod
    def _accept_other_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        named: dict[str, Any] = {}
        for name, value in cast("Mapping[str, Any]", values).items():
            field, _, key = name.partition(".")
            if field in cls.without_effect:
                cls._refuse_without_effect(field, value)
            elif field in cls.by_entry:
                entries = {key: value} if key else _mapping(value, f"{cls.section}.{field}")
                named[field] = {**named.get(field, {}), **entries}
            else:
                named[field] = value
        for field in cls.by_entry & named.keys():
            named[field] = {key: value for key, value in named[field].items() if value is not None}
        return named

    @classmethod
    def _refuse_without_effect(cls, name: str, value: object) -> None:
        accepted, instead = cls.without_effect[name]
        if not any(_same(value, each) for each in accepted):
            raise ValueError(f"--{cls.section}.{name} has no effect in Turnwise: {instead}")


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    """A mapping of settings, also as the JSON text in which Atropos' command line gives it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(f"--{name} must be a mapping of names to values, got {value!r}") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"--{name} must be a mapping of names to values, got {value!r}")
    return cast("Mapping[str, Any]", value)


def _same(value: object, accepted: object) -> bool:
    """Whether a value, perhaps still text, is the accepted one."""
    if isinstance(accepted, int | float) and not isinstance(accepted, bool):
        try:
            return float(str(value)) == accepted
        except ValueError:
            return False
    return str(value).lower() == str(accepted).lower()
