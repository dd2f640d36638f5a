"""Builds the smallest arguments that a JSON schema accepts, for an agent that does not know the task."""

import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 8
"""Levels of nesting; a recursive schema ends there with `null`."""


def example_of(schema: Mapping[str, Any]) -> Any:
    """A value for `schema`: its first example, default, constant or enum entry, else a minimal one by type.

    Objects get their required properties and those that name an example. `$ref` is looked up in the schema's
    own `$defs`. Patterns, formats and conditions are not read.
    """
    return _example(schema, schema.get("$defs", {}), _DEEPEST)


def _example(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    if depth == 0:
        return None
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _example(definitions.get(name, {}), definitions, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _example(schema[key][0], definitions, depth - 1)
    return _minimal(schema, definitions, depth)


def _minimal(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if not isinstance(kind, str):
        kind = kind[0]
    match kind:
        case "object":
            required = schema.get("required", [])
            return {
                name: _example(property_schema, definitions, depth - 1)
                for name, property_schema in schema.get("properties", {}).items()
                if name in required or "examples" in property_schema
            }
        case "array":
            count = int(schema.get("minItems", 0))
            return [_example(schema.get("items", {}), definitions, depth - 1) for _ in range(count)]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            text = "example".ljust(int(schema.get("minLength", 0)), "e")
            return text[: int(schema.get("maxLength", len(text)))]


def _number(schema: Mapping[str, Any]) -> float:
    """The allowed number that is nearest to 0; bounds that exclude themselves move by 1."""
    lowest = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf) + 1)
    highest = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - 1)
    return max(lowest, min(0, highest))
