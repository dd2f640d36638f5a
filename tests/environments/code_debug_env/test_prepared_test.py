"""A task's test, rewritten so that each assertion is recorded."""

import ast

import pytest

from environments.code_debug_env.prepared_test import prepare_test
from tools.errors import DatasetError


@pytest.mark.parametrize("test", ["def check(", "x = 1", "assert True, 'always'"])
def test_a_test_without_assertions_is_refused(test: str):
    with pytest.raises(DatasetError, match="task 't'"):
        prepare_test(test, "t")


def test_the_prepared_test_is_python_with_one_record_per_assertion():
    prepared, total = prepare_test("assert a\nif b:\n    assert c\nassert True", "t")
    ast.parse(prepared)
    assert (total, prepared.count("evaluating(")) == (2, 2)
