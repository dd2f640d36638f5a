"""The matrix of trainers: what tests report is what the table says."""

import pytest

from tests.environments.trainers import matrix
from tests.environments.trainers.matrix import END, FOLDER_VARIABLE, START, main, report, reports_in, table

PATH = {"trainer": "Some", "version": "1.2", "path": "tensors"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "reports"))
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"before\n{START}{END}after\n")
    return tmp_path / "reports"


def rows(folder):
    return table(reports_in(folder)).splitlines()[2:]


def test_a_row_has_the_worst_of_what_was_reported_of_its_path(folder):
    report(**PATH, cosine=1.0, ratio=1.0)
    report(**PATH, cosine=0.7, ratio=0.9)
    report(**PATH, cosine=0.9, ratio=1.01)
    assert rows(folder) == ["| Some | 1.2 | tensors | its own code | 0.7000 | 0.9000 | - |"]


def test_a_row_has_all_that_is_refused_once(folder):
    report(**PATH, refused=("b=1", "a"))
    report(**PATH, refused=("a",))
    assert rows(folder) == ["| Some | 1.2 | tensors | its own code | - | - | `a`, `b=1` |"]


def test_noise_does_not_change_the_table(folder):
    report(**PATH, cosine=1.0, ratio=1.0)
    main(folder)
    report(**PATH, cosine=1.0 - 1e-7, ratio=1.0 + 1e-6)
    main(folder, "--check")


def test_another_version_is_another_table(folder):
    report(**PATH)
    main(folder)
    (only,) = folder.iterdir()
    only.unlink()
    report(**PATH | {"version": "1.3"})
    with pytest.raises(SystemExit, match=r"is not what the tests found[^$]*\| Some \| 1\.3 "):
        main(folder, "--check")


def test_the_page_around_the_table_stays(folder):
    report(**PATH)
    main(folder)
    page = matrix.PAGE.read_text()
    assert page.startswith(f"before\n{START}| trainer |")
    assert page.endswith(f"|\n{END}after\n")


def test_tests_of_one_path_on_two_versions_are_no_row(folder):
    report(**PATH)
    report(**PATH | {"version": "1.3"})
    with pytest.raises(SystemExit, match=r"do not agree on version: \['1\.2', '1\.3'\]"):
        rows(folder)


def test_without_reports_nothing_is_written(folder):
    with pytest.raises(SystemExit, match="no reports"):
        main(folder)


def test_without_a_folder_a_report_is_checked_and_goes_nowhere(folder, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE)
    report(**PATH)
    assert not folder.exists()
    with pytest.raises(TypeError, match="cosin"):
        report(**PATH, cosin=1.0)
