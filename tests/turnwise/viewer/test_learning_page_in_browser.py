"""The page of what was learned, in a real Chromium: verdicts, curves, states and the way to rollouts."""

from dataclasses import replace

import pytest

from environments.credit import credited
from environments.testing import group_of
from tests.turnwise.viewer.chromium import texts, watched_page
from tests.turnwise.viewer.pages import content
from turnwise.viewer.record_page import IndexBuilder, PageFile

HOSTILE = "<img src=x onerror=alert(1)></script>\u202e"


def values(steps=25, *, end=1.0):
    curve = [step / max(1, steps) for step in range(steps)]
    change = {"name": "score", "start": 0.1, "end": end, "reference": 1.0, "direction": "up"}
    state = {
        "state": HOSTILE,
        "visits": 3,
        "choices": [{"message": f"{HOSTILE} {n}", "probability": 0.1} for n in range(10)],
    }
    tried = {
        "curves": {"score": [curve, [value / 2 for value in curve]], "turns": [[1.0] * steps] * 2},
        "changes": [change, {**change, "name": "cut turns", "start": 0.0, "end": 0.0, "reference": 0.0}],
        "parts": [{"part": HOSTILE, "verdict": "gamed", "why": "it rises"}],
        "states": [state],
    }
    return {
        "env": "toy", "estimator": "turn_return", "seeds": 2, "steps": steps, "groups_a_step": 2,
        "group_size": 4, "items": 1, "learning_rate": 0.6, "seconds": 3.0,
        "verdicts": [
            {"about": "learnable", "good": True, "text": "yes"},
            {"about": "gamed", "good": False, "text": HOSTILE},
        ],
        **tried,
        "rollouts": [{"label": "start", "groups": ["first"]}],
    }  # fmt: skip


def credit_values():
    row = {
        "estimator": HOSTILE, "gamma": 0.5, "baseline": None, "snr": 0.5, "snr_low": 0.25, "snr_high": 0.75,
        "groups_per_step": 4, "bias": None, "tier": "proxy",
    }  # fmt: skip
    return {"rows": [{**row, "snr": 0.0, "groups_per_step": None}, row], "groups": 9, "sentences": [HOSTILE]}


def written(path, learning, credit=None):
    builder = IndexBuilder(title="toy, learned", source="record.jsonl", content=content())
    group = replace(group_of([[1.0], [0.0]]), env="toy", item_id="start: sky", group_id="first")
    with PageFile(path, max_bytes=10**7) as page:
        builder.add(credited(group, "turn_return", policy="learned"), 1, page.add)
        index = builder.index(cut=[], live=False)
        if learning is not None:
            index["learning"] = learning
        if credit is not None:
            index["credit"] = credit
        page.finish(index)
    return path.as_uri()


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learning")
    pages = {"some": values(), "none": values(0), "many": values(1000), "without": None}
    urls = {name: written(folder / f"{name}.html", learning) for name, learning in pages.items()}
    return {**urls, "credit": written(folder / "credit.html", None, credit_values())}


@pytest.fixture(scope="module")
def window(urls):
    with watched_page() as page:
        yield page


@pytest.fixture
def learning(window, urls):
    def at(name="some", address=""):
        window.asked.clear()
        window.errors.clear()
        window.goto("about:blank")
        window.goto(urls[name] + address)
        window.wait_for_selector(".verdicts, .tile, .changes")
        return window

    return at


def test_the_page_opens_on_what_was_learned(learning):
    assert texts(learning(), "nav .tab[aria-current]") == ["Learning"]


def test_what_should_not_be_so_is_marked(learning):
    assert texts(learning(), ".verdicts .flagged th") == ["gamed"]


def test_there_is_a_chart_for_each_number_that_moved_and_no_other(learning):
    page = learning()
    assert texts(page, "figure h3") == ["score"]
    assert page.locator("figure path.curve").count() == 1


def test_a_number_that_nobody_has_is_no_row(learning):
    assert [row.split("\t")[0] for row in texts(learning(), ".changes tr")] == ["a rollout", "score"]


def test_of_many_choices_the_first_are_shown_and_the_others_counted(learning):
    page = learning()
    assert page.locator(".state").first.locator(".choice").count() == 8
    assert "and 2 others" in texts(page, ".state")[0]


@pytest.mark.parametrize("name", ["some", "none", "many"])
def test_texts_of_others_stay_texts_and_nothing_is_asked_for(learning, name):
    page = learning(name)
    assert page.locator("#view img").count() == 0
    assert "⟨U+202E⟩" in texts(page, ".state b")[0]
    assert page.errors == []
    assert len(page.asked) == 1


def test_without_a_step_the_page_says_so(learning):
    assert "No step was taken." in texts(learning("none"), ".note")


def test_a_rollout_is_a_click_away(learning):
    page = learning()
    page.click(".links a")
    page.wait_for_selector(".group")
    assert "g=first" in page.url


def test_a_page_of_a_record_has_no_such_view(learning):
    page = learning("without", "#v=learning")
    assert texts(page, "nav .tab[aria-current]") == ["Overview"]
    assert "Learning" not in texts(page, "nav .tab")


def test_the_credit_report_stands_beside_the_record_the_best_arm_first(learning):
    page = learning("credit", "#v=credit")
    assert texts(page, "nav .tab[aria-current]") == ["Which credit"]
    assert [row.split("\t")[3] for row in texts(page, ".changes tr")] == ["snr", "0.5", "0"]
    assert page.locator("#view img").count() == 0
    assert page.errors == []
