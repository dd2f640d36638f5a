"""What `make test` leaves out runs with `--soak`, and nothing is in neither."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import (
    KEPT,
    LEFT_OUT,
    new_reasons,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
)
from tests.tables import cases, seldom

TESTS = Path(__file__).parent
FOLDER, FILE = LEFT_OUT[0], KEPT[0]


def is_left_out(path, *arguments, soak=False):
    config = SimpleNamespace(
        getoption=lambda _: soak, args=arguments, invocation_params=SimpleNamespace(dir=TESTS.parent)
    )
    return pytest_ignore_collect(TESTS / path, config) is True


def test_without_soak_a_listed_folder_is_left_out_but_for_the_files_that_are_kept():
    assert is_left_out(f"{FOLDER}/test_any.py", "tests")
    assert is_left_out(FOLDER) == (not any(name.startswith(f"{FOLDER}/") for name in KEPT))
    assert not is_left_out(FILE, "tests")
    assert not is_left_out("test_soak.py", "tests")


def test_a_path_that_is_named_runs():
    assert not is_left_out(f"{FOLDER}/test_any.py", f"tests/{FOLDER}")
    assert not is_left_out(f"{FOLDER}/test_any.py", f"tests/{FOLDER}/test_any.py::test_one")
    assert is_left_out(f"{FOLDER}/test_any.py", f"tests/{FOLDER}/test_other.py")


def test_with_soak_everything_runs():
    assert not is_left_out(f"{FOLDER}/test_any.py", soak=True)


def test_every_listed_path_exists():
    assert [name for name in (*LEFT_OUT, *KEPT) if not (TESTS / name).exists()] == []


@pytest.mark.parametrize("soak", [False, True])
def test_a_marked_test_runs_with_soak_alone(soak):
    marked, ordinary = (
        SimpleNamespace(get_closest_marker=marks.__contains__) for marks in ({"soak"}, set[str]())
    )
    left, items = [], [marked, ordinary]
    config = SimpleNamespace(
        getoption=lambda _: soak, hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items))
    )
    pytest_collection_modifyitems(config, items)
    assert (items, left) == (([marked, ordinary], []) if soak else ([ordinary], [marked]))


def test_a_reason_to_skip_that_is_not_known_is_new():
    assert new_reasons(["needs torch, to take the steps", "it is late"]) == {"it is late"}


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
