from environments.policy.scripted import example_of
from tests.tables import cases


@cases(
    ("schema", "value"),
    [
        ({"type": "string"}, "example"),
        ({"type": "string", "minLength": 9}, "exampleee"),
        ({"type": "string", "maxLength": 2}, "ex"),
        ({"type": "string", "examples": ["ls"], "default": "pwd"}, "ls"),
        ({"type": "string", "default": "pwd"}, "pwd"),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 4}, 4),
        ({"type": "integer"}, 0),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": "number", "minimum": -5, "maximum": 5}, 0),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": ["string", "null"]}, "example"),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({}, "example"),
    ],
)
def test_the_example_is_the_first_one_given_or_the_smallest_of_its_type(schema, value):
    assert example_of(schema) == value


def test_an_object_gets_its_required_properties_and_those_with_examples():
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "depth": {"type": "integer"},
            "mode": {"type": "string", "examples": ["r"]},
        },
        "required": ["path"],
    }
    assert example_of(schema) == {"path": "example", "mode": "r"}


def test_a_reference_is_looked_up_in_the_definitions():
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Point"}},
        "required": ["at"],
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }
    assert example_of(schema) == {"at": {"x": 0}}


def test_a_recursive_schema_comes_to_an_end():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
    assert "next" in example_of({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
