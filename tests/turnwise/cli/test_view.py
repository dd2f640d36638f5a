"""`turnwise view`."""

import gzip
import os
import re
import signal
import subprocess
import urllib.request

import pytest

from environments.record.recorder import read_groups
from environments.testing import group_of
from tests.environments.serve.loopback import TURNWISE, without_torch
from tests.turnwise.lab.credit_report.token_games import game
from tests.turnwise.viewer.pages import blocks_of, recorded
from turnwise.cli.main import main
from turnwise.cli.view import DEMO, demo_record

GROUP = group_of([[1.0, 2.0], [0.0]])


@pytest.fixture
def record(tmp_path):
    return recorded(tmp_path / "r.jsonl", GROUP, GROUP)


def test_the_page_of_a_run_stands_in_its_folder(tmp_path):
    folder = tmp_path / "runs" / "toy" / "first"
    folder.mkdir(parents=True)
    recorded(folder / "record.jsonl", GROUP)

    assert main(["view", str(folder)]) == 0

    assert blocks_of((folder / "view.html").read_text())["index"]["title"] == "toy/first"


def test_it_says_how_much_there_is_and_what_was_cut(record, capsys):
    main(["view", str(record), "--groups", "2", "--no-tokens"])

    said = capsys.readouterr().err
    assert re.search(r"^0\.\d\d MB, 1 group, 2 rollouts; not in it: 1 groups, tokens$", said, re.MULTILINE)


def test_the_credit_report_is_computed_on_request_alone(tmp_path):
    record = recorded(tmp_path / "r.jsonl", *(each.group for each in game(groups=8)))

    def index_of(*options):
        assert main(["view", str(record), *options]) == 0
        return blocks_of(record.with_suffix(".html").read_text())["index"]

    assert "credit" not in index_of()
    assert [texts[0] for texts in index_of("--credit")["credit"]["table"]] == [
        "γ = 0.7",
        "γ = 0.5",
        "γ = 0",
        "rloo",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a RECORD"),
        (["--demo", "r.jsonl"], "not both"),
        (["gone.jsonl"], "no record at"),
        (["r.jsonl", "--groups", "1-"], "--groups takes"),
        (["r.jsonl", "--groups", "9"], "no group to show in --groups"),
        (["r.jsonl", "--estimator", "gae"], "no estimator"),
        (["r.jsonl", "--tokenizer", "./gone"], "no tokenizer"),
        (["r.jsonl", "--port", "1"], "--port is for --serve"),
        (["r.jsonl", "--serve", "--out", "x.html"], "--out is of a file"),
        (["r.jsonl", "--serve", "--credit"], "--credit is of a file"),
        (["r.jsonl", "--out", "r.jsonl/x.html"], "cannot write"),
    ],
    ids=str,
)
def test_what_cannot_be_shown_is_said_in_one_line(record, options, said, capsys, monkeypatch):
    monkeypatch.chdir(record.parent)

    assert main(["view", *options]) == 2

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_page_never_takes_the_place_of_its_record(record, capsys):
    before = record.read_bytes()

    assert main(["view", str(record), "--out", str(record)]) == 2

    assert record.read_bytes() == before
    assert "is the record" in capsys.readouterr().err


def test_the_demo_shows_forks_failures_and_judges(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert main(["view", "--demo"]) == 0

    index = blocks_of((tmp_path / "demo.html").read_text())["index"]
    rollouts = [rollout for group in index["groups"] for rollout in group["rollouts"]]
    assert any(sum(rollout["turns"]["forks"]) for rollout in rollouts)
    assert any(group["failures"] for group in index["groups"])
    with demo_record() as demo:
        assert any(t.judge_calls for each in read_groups(demo) for t in each.group.trajectories)


def test_the_demo_is_small_and_names_no_machine():
    text = gzip.decompress(DEMO.read_bytes())

    assert DEMO.stat().st_size < 300_000
    assert not re.search(rb"/(?:work|home|root|usr)/", text)


def test_where_there_is_no_display_no_browser_is_opened(record, capsys, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("webbrowser.open", lambda _: pytest.fail("opened"))
    monkeypatch.setattr("sys.platform", "linux")

    assert main(["view", str(record), "--open"]) == 0

    assert "no browser can be opened here" in capsys.readouterr().err


def test_a_served_page_ends_with_the_signal_that_ends_it(record):
    command = [TURNWISE, "view", "--serve", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=without_torch()) as serving:
        url = serving.stdout.readline().split()[0]
        page = urllib.request.urlopen(url).read()
        os.kill(serving.pid, signal.SIGINT)
        assert (serving.wait(60), b"<!doctype html>" in page) == (0, True)
