"""`turnwise estimators` prints what is known of each estimator."""

import pytest
from click.testing import CliRunner

from environments.cli.estimators import command
from environments.credit import ESTIMATORS, describe
from tests.tables import cases
from tools.errors import ConfigError, CreditError


def shown(*arguments):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def words(text):
    return "".join(text.split())


@cases("name", sorted(ESTIMATORS))
def test_each_is_shown_with_formula_bias_source_and_parameters(name):
    output = words(shown(name))
    spec = describe(name)

    assert all(words(text) in output for text in (spec.name, spec.formula, spec.bias, spec.source))
    assert all(words(parameter.name) in output for parameter in spec.parameters)


def test_estimators_of_a_module_that_is_not_there_are_an_error():
    with pytest.raises(
        ConfigError, match=r"no module 'gone\.module'; give path/to/file\.py or package\.module"
    ):
        shown("--load", "gone.module")


def test_all_are_shown_with_the_default_first():
    lines = shown().splitlines()

    assert lines[0] == "turn_return"
    assert set(ESTIMATORS) <= set(lines)


def test_a_name_that_does_not_exist_gets_the_nearest():
    with pytest.raises(CreditError, match="did you mean 'gigpo'"):
        shown("gigp")
