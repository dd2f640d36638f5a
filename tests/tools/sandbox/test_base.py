"""Limits that no sandbox can have are refused before one is opened."""

import math

import pytest

from tests.tables import cases
from tools.errors import ConfigError
from tools.sandbox import SandboxLimits


@cases("word", ["off", "None", "", None, "NONE", False])
def test_a_network_that_is_neither_none_nor_full_is_refused_and_never_opened(word):
    with pytest.raises(ConfigError, match="give 'none' or 'full'"):
        SandboxLimits(network=word)


@cases("name", ["memory_mb", "pids", "disk_mb", "file_mb", "output_mb"])
@cases("value", [0, -1, 512.5, math.nan, "64", None, True])
def test_a_limit_is_a_whole_number_above_zero(name, value):
    with pytest.raises(ConfigError, match=f"cannot have {name}="):
        SandboxLimits(**{name: value})


@cases("value", [0, -0.5, math.nan, math.inf, "1"])
def test_processors_are_a_number_above_zero(value):
    with pytest.raises(ConfigError, match="cannot have cpus="):
        SandboxLimits(cpus=value)


@pytest.mark.parametrize("value", [None, 1, 0.25])
def test_part_of_a_processor_or_no_limit_is_fine(value):
    assert SandboxLimits(cpus=value).cpus == value
