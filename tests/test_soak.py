"""What `make test` leaves out or cuts short runs with `--soak`, and nothing is in neither."""

import os
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.tables import cases, seldom

MARKED, CUT_SHORT, ORDINARY = ({"soak"}, []), (set(), ["soak"]), (set(), [])


def ran(*, soak):
    items = [
        SimpleNamespace(fixturenames=fixtures, get_closest_marker=marks.intersection({"soak"}).__contains__)
        for marks, fixtures in (MARKED, CUT_SHORT, ORDINARY)
    ]
    left = []
    config = SimpleNamespace(
        getoption=lambda _: soak, hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    )
    every = list(items)
    pytest_collection_modifyitems(config, items)
    assert len(items) + len(left) == len(every)
    return [item in items for item in every]


def test_without_soak_what_is_marked_is_left_out():
    assert ran(soak=False) == [False, True, True]


def test_with_soak_what_would_run_the_same_is_left_out():
    assert ran(soak=True) == [True, True, False]


def test_a_table_keeps_every_case_in_one_of_the_two():
    kept, other = seldom({"a": 1, "b": 2}, ["a"])
    assert (kept.values, list(kept.marks)) == ((1,), [])
    assert (other.values, [mark.name for mark in other.marks]) == ((2,), ["soak"])


def test_a_name_that_no_table_has_is_a_mistake():
    with pytest.raises(AssertionError):
        seldom({"a": 1}, ["b"])


def test_every_case_that_fails_is_named_and_each_has_a_folder_and_patches_of_its_own(tmp_path, monkeypatch):
    @cases("number", [1, 2, 3])
    def check(number, tmp_path, monkeypatch):
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").touch()
        assert os.environ.get("CASE") is None
        monkeypatch.setenv("CASE", str(number))
        assert number == 2

    with pytest.raises(ExceptionGroup, match="2 of 3 cases") as failed:
        check(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert [error.__notes__ for error in failed.value.exceptions] == [["case 0: 1"], ["case 2: 3"]]
