"""The page over several runs, in a real Chromium: the list, curves, two runs beside each other."""

# ruff: noqa: RUF001  # the page writes minus signs

import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from environments.credit import credited
from environments.record.recorder import Recorder
from environments.testing import group_of
from tests.turnwise.viewer.chromium import texts, watched_page
from turnwise.cli.view import command
from turnwise.viewer.runs_page import LiveRuns

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
    (tmp_path / "runs/toy/two/view.html").write_text("<!doctype html><p>the page of two")
    return tmp_path / "runs"


def viewed(*args):
    return CliRunner().invoke(command, [str(each) for each in args], standalone_mode=False)


def row_of(page, name):
    return page.locator("table.runs tr", has=page.locator(f"td:nth-child(3):text-is('{name}')"))


@pytest.fixture(scope="module")
def window():
    with watched_page() as page:
        yield page


@pytest.fixture
def board(runs, window):
    """Opens the board of the runs as they are now."""

    def at():
        viewed(runs)
        window.set_viewport_size({"width": 1400, "height": 900})
        window.goto((runs / "runs.html").as_uri())
        window.wait_for_selector("table.runs")
        return window

    return at


def ticks(page):
    return page.locator("figure >> nth=0 >> .tick").all_text_contents()


def test_it_lists_runs_draws_their_curves_and_compares_two_of_them(board):
    page = board()
    names = texts(page, "table.runs tr td:nth-child(3)")
    assert sorted(names) == sorted(["one", "two", HOSTILE, "broken"])
    assert "not JSON" in row_of(page, "broken").inner_text()
    assert page.locator("figure svg.chart").count() == 2
    page.check("input[aria-label='A: one']")
    page.check("input[aria-label='B: two']")
    assert texts(page, "table.two >> nth=0 >> tr:nth-child(3) td") == ["score", "2.5", "2", "−0.5"]
    assert "2 items in common" in page.inner_text("#view")
    assert "B − A: +1." in page.inner_text("#view")
    assert page.errors == []
    assert [url for url in page.asked if not url.startswith("file:")] == []


def test_a_hundred_runs_of_many_groups_are_a_small_page_that_is_drawn_at_once(tmp_path, window):
    for number in range(100):
        run_in(tmp_path / f"runs/toy/{number}", [[0.0, 1.0]] * 3)
    viewed(tmp_path / "runs")
    assert (tmp_path / "runs/runs.html").stat().st_size < 400_000
    window.goto((tmp_path / "runs/runs.html").as_uri())
    assert window.locator("table.runs tr").count() == 101


def test_every_run_has_a_link_to_its_page_or_the_command_that_makes_it(runs, board):
    page = board()
    links = [row_of(page, name).locator("td:nth-last-child(2)") for name in ("two", "one", "broken")]
    assert links[0].locator("a").get_attribute("href") == "toy/two/view.html"
    assert links[1].inner_text() == f"turnwise view {runs}/toy/one"
    assert links[2].inner_text() == "no group is recorded"


def test_one_environment_is_on_the_board_at_a_time(runs, board):
    run_in(runs / "farm/one", [[0.0, 1.0]])
    page = board()
    page.select_option("select[aria-label=environment]", "farm")
    assert texts(page, "table.runs td:nth-child(3)") == ["one"]


def test_what_all_runs_have_in_common_is_said_once(board):
    page = board()
    assert "Credit by turn_return" in page.inner_text(".head")
    assert "estimator" not in texts(page, "table.runs th")


def test_numbers_are_chosen_smoothed_and_drawn_on_a_log_scale(board):
    page = board()
    before = ticks(page), page.locator(".runcurve >> nth=0").get_attribute("d")
    page.click(".chip:text-is('turns')")
    assert texts(page, "figure h3") == ["score"]
    page.select_option("select[aria-label=smoothing]", "3")
    assert page.locator(".runcurve >> nth=0").get_attribute("d") != before[1]
    page.click(".chip:text-is('log scale')")
    assert ticks(page) != before[0]
    assert page.errors == []


def test_the_board_fits_a_narrow_window(board):
    page = board()
    page.set_viewport_size({"width": 420, "height": 900})
    assert page.evaluate("document.getElementById('view').scrollWidth") == 420
    assert (
        max(page.evaluate("[...document.querySelectorAll('.runs tr')].map((row) => row.offsetHeight)")) < 90
    )


@pytest.fixture
def served(runs, window):
    """The board of the runs, followed by a server."""
    command = [sys.executable, "-m", "turnwise", "view", "--serve", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        window.set_viewport_size({"width": 1400, "height": 900})
        window.goto(re.search(r"http://\S+", server.stdout.readline())[0])
        window.wait_for_selector("table.runs")
        yield window
        server.terminate()


def test_a_served_board_shows_a_new_run_by_itself_and_opens_its_page(runs, served):
    run_in(runs / "toy/three", [[0.0, 1.0]])
    row_of(served, "three").wait_for()
    row_of(served, "two").locator("a").click()
    served.wait_for_selector("text=the page of two")


def test_a_served_board_shows_new_groups_of_a_run_by_itself(runs, served):
    with Recorder(runs / "toy/two/record.jsonl") as recorder:
        group = replace(group_of([[7.0], [8.0]]), env="toy", item_id="more", group_id="more")
        recorder.append(credited(group, "turn_return", policy="p"))
    row_of(served, "two").locator("td:nth-child(4):text-is('3')").wait_for()


def test_a_board_in_a_file_says_of_when_it_is_and_what_follows_the_runs(runs, board):
    said = board().inner_text("#bar .live")
    assert re.fullmatch(rf"as of \S+ \S+ UTC; turnwise view --serve {runs} follows the runs", said)


def test_what_is_of_one_run_is_refused_for_several(runs):
    assert "--credit is for one run" in str(viewed(runs, "--credit").exception)


def test_as_text_it_is_the_table_of_runs(runs):
    shown = viewed(runs, "--text").output
    assert shown.splitlines()[0].split()[:3] == ["run", "started", "state"]
    assert "toy/two" in shown


def test_means_of_the_board_are_without_branches_and_no_number_is_too_large(tmp_path):
    first, other, branch = group_of([[1.0], [0.0], [9.0]]).trajectories
    trajectories = [
        replace(each, metrics={"huge": 1.7e308}) for each in (first, other, replace(branch, trunk=0))
    ]
    group = replace(group_of([[1.0]]), trajectories=tuple(trajectories))
    (tmp_path / "runs/toy/one").mkdir(parents=True)
    with Recorder(tmp_path / "runs/toy/one/record.jsonl") as recorder:
        recorder.append(credited(group, "turn_return", policy="p"))
    (run,) = json.loads(gzip.decompress(LiveRuns(tmp_path / "runs").index()))["runs"]
    assert (run["means"]["score"], run["means"]["metric huge"]) == (0.5, None)
