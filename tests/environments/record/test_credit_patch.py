"""A line with another credit is byte for byte the line that the group would be written as."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.record.credit_patch import with_credit
from environments.record.group_line import encode_group, parse_line, with_origin
from environments.testing import group_of
from tests.environments.record.any_group import Draw
from tests.environments.record.recorded import TWO, credited
from tests.environments.wire.golden_groups import CASES


def patched(line, new):
    return with_credit(parse_line(line, Path("r.jsonl"), 1), new)


def with_other_credit(old, value=-0.25):
    return replace(
        old,
        advantages=tuple(
            tuple(value if turn.trained else 0.0 for turn in each.turns) for each in old.group.trajectories
        ),
        estimator="another",
        estimator_params={"gamma": 0.5},
        turns_without_peer=1,
    )


@given(st.integers(0, 2**32), st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=150, deadline=None)
def test_a_patched_line_is_the_line_of_the_group(seed, value):
    old = Draw(seed).credited()
    new = with_other_credit(old, value)
    assert patched(encode_group(old), new) in (None, encode_group(new))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_line_of_every_kind_of_group_can_be_patched(name):
    old = credited(CASES[name].group)
    new = with_other_credit(old)
    assert patched(encode_group(old), new) == encode_group(new)


def test_what_a_line_says_besides_is_kept():
    old = credited(TWO)
    line = with_origin(encode_group(old), {"env": "toy"})
    assert orjson.loads(patched(line, with_other_credit(old)))["origin"] == {"env": "toy"}


def test_a_line_that_somebody_else_wrote_is_not_patched():
    old = credited(TWO)
    line = encode_group(old).replace(b'"tokens":[[', b'"tokens": [ [')
    assert patched(line, with_other_credit(old)) is None


def test_credit_that_is_no_number_is_not_patched():
    old = credited(group_of([[1.0]]))
    assert patched(encode_group(old), with_other_credit(old, float("nan"))) is None
