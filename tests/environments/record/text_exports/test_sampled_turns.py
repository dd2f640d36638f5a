"""Arguments become objects for chat templates where `datasets` reads them back as they were written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.io.json import ujson_dumps, ujson_loads

from environments.record.text_exports.sampled_turns import read_arguments
from tests.tables import cases

TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
NUMBERS = (
    st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 12)).map(lambda pair: pair[0] / 10 ** pair[1])
)


@given(st.dictionaries(TEXT, st.lists(NUMBERS, max_size=2) | TEXT | NUMBERS | st.none(), max_size=2))
@settings(max_examples=200, deadline=None)
def test_an_object_is_what_datasets_reads_back(value):
    arguments = read_arguments(json.dumps(value))
    if not isinstance(arguments, str):
        assert arguments == value
        assert ujson_loads(ujson_dumps(ujson_loads(json.dumps(arguments)))) == value


@cases("number", [0.5, 4.35, 100.0, -3, 2**63 - 1, 1e-3], ids=str)
def test_common_numbers_do_not_keep_arguments_from_being_an_object(number):
    assert read_arguments(json.dumps({"x": [number]})) == {"x": [number]}


@cases(
    "text",
    [
        pytest.param('{"a": 1', id="cut"),
        pytest.param("[1]", id="list"),
        pytest.param('"a"', id="text"),
        pytest.param("", id="empty"),
        pytest.param("null", id="null"),
        pytest.param('{"a": 1, "a": 2}', id="key twice"),
        pytest.param('{"a": NaN}', id="nan"),
        pytest.param('{"a": -1.7}', id="last digit"),
        pytest.param('{"a": 1e400}', id="infinite"),
        pytest.param('{"a": 0.12345678901}', id="eleven decimals"),
        pytest.param('{"a": 123456789012345678901}', id="long integer"),
        pytest.param('{"a": ' + "9" * 5000 + "}", id="endless integer"),
        pytest.param('{"a": ' + "[" * 200 + "]" * 200 + "}", id="deep"),
        pytest.param('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", id="too deep to parse"),
    ],
)
def test_what_would_be_changed_stays_the_text_that_the_model_wrote(text):
    assert read_arguments(text) == text
