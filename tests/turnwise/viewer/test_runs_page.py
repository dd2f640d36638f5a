"""The page over several runs, in a real Chromium: the list, curves, two runs beside each other."""

# ruff: noqa: RUF001  # the page writes minus signs

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from environments.credit import credited
from environments.record.recorder import Recorder
from environments.testing import group_of
from tests.turnwise.viewer.chromium import texts, watched_page
from turnwise.cli.view import command

HOSTILE = "<img src=x onerror=alert(1)>"


def run_in(folder: Path, rewards, *, policy="p"):
    folder.mkdir(parents=True)
    with Recorder(folder / "record.jsonl", fresh=True) as recorder:
        for number, scores in enumerate(rewards):
            group = group_of([[score] for score in scores])
            group = replace(group, env="toy", item_id=f"item {number}", group_id=str(number))
            recorder.append(credited(group, "turn_return", policy=policy))


@pytest.fixture
def runs(tmp_path):
    run_in(tmp_path / "runs/toy/one", [[0.0, 1.0], [1.0, 2.0], [5.0, 6.0]])
    run_in(tmp_path / "runs/toy/two", [[1.0, 2.0], [2.0, 3.0]])
    run_in(tmp_path / f"runs/toy/{HOSTILE.replace('/', '')}", [[0.0, 1.0]])
    (tmp_path / "runs/toy/broken").mkdir()
    (tmp_path / "runs/toy/broken/record.jsonl").write_bytes(b"no line\n")
    (tmp_path / "runs/toy/two/view.html").write_text("the page of two")
    return tmp_path / "runs"


def viewed(*args):
    return CliRunner().invoke(command, [str(each) for each in args], standalone_mode=False)


def row_of(page, name):
    return page.locator("table.runs tr", has_text=name)


def test_it_lists_runs_draws_their_curves_and_compares_two_of_them(runs):
    assert viewed(runs).exception is None
    with watched_page() as page:
        page.goto((runs / "runs.html").as_uri())
        names = texts(page, "table.runs tr td:nth-child(3)")
        assert sorted(names) == sorted(["toy/one", "toy/two", f"toy/{HOSTILE}", "toy/broken"])
        assert "not JSON" in row_of(page, "toy/broken").inner_text()
        assert row_of(page, "toy/two").locator("a").get_attribute("href") == "toy/two/view.html"
        assert page.locator("figure svg.chart").count() == 2
        row_of(page, "toy/one").locator("input[name=a]").check()
        row_of(page, "toy/two").locator("input[name=b]").check()
        assert texts(page, "table.two >> nth=0 >> tr:nth-child(3) td") == ["score", "2.5", "2", "−0.5"]
        assert "2 items in common" in page.inner_text("#view")
        assert "B − A: +1." in page.inner_text("#view")
        assert page.errors == []
        assert [url for url in page.asked if not url.startswith("file:")] == []


def test_a_hundred_runs_of_many_groups_are_a_small_page_that_is_drawn_at_once(tmp_path):
    for number in range(100):
        run_in(tmp_path / f"runs/toy/{number}", [[0.0, 1.0]] * 3)
    viewed(tmp_path / "runs")
    assert (tmp_path / "runs/runs.html").stat().st_size < 400_000
    with watched_page() as page:
        page.goto((tmp_path / "runs/runs.html").as_uri())
        assert page.locator("table.runs tr").count() == 101


def test_what_is_of_one_run_is_refused_for_several(runs):
    assert "--serve is for one run" in str(viewed(runs, "--serve").exception)


def test_as_text_it_is_the_table_of_runs(runs):
    shown = viewed(runs, "--text").output
    assert shown.splitlines()[0].split()[:3] == ["run", "started", "state"]
    assert "toy/two" in shown
