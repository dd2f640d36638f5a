"""What an agent, a tool or an item writes does nothing in the viewer's page but stand there."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import turnwise.viewer
from environments.credit import credited
from environments.record.recorder import Recorder
from environments.testing import group_of
from environments.trajectory import Failure, JudgeCall, Message, StopReason
from tests.turnwise.viewer.chromium import opened, watched_page
from tests.turnwise.viewer.pages import page, recorded
from tools.calls import ToolCall, ToolResult
from turnwise.cli.main import main
from turnwise.cli.view import command

MARKUP = (
    "<img src=x onerror=window.ran=1></script><script>window.ran=1</script><!--<script>"
    "</textarea></title><svg onload=window.ran=1><a href=javascript:window.ran=1>link</a>{{hit}}${hit}"
)
TERMINAL = "\x1b[31mred\x1b[0m\x07\r\x08 \u202egnp.exe\u2066 \u200b\ufeff \x00"
FOLDER = Path(turnwise.viewer.__file__).parent / "page"
FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc")


def hostile_group(markup=MARKUP, text=MARKUP + TERMINAL):
    """Markup and control characters wherever somebody's text gets into a record."""
    group = group_of([[0.5, 1.0], [0.0, 0.5]], outcomes=[1.0, 0.0])
    first, second = group.trajectories
    asked = JudgeCall(
        hook=markup, turn=0, model=markup, messages=(Message(role="user", content=text),), answer=text
    )
    turn = replace(
        first.turns[0],
        message=Message(
            role="assistant",
            content=text,
            reasoning=text,
            tool_calls=(ToolCall(id="1", name=text, arguments=text),),
        ),
        tool_results=(ToolResult(call_id="1", name=text, content=text, error="tool_error", exit_code=1),),
        replies=(Message(role="user", content=text),),
        anchor=text,
        fork=text,
        weight_version=text,
        finish_reason=text,
        sampling={text: text},
        noted={markup: 1.0},
    )
    parts = replace(
        first.rewards, turn_components=({markup: 0.5}, {"b": 1.0}), outcome_components={markup: 1.0}
    )
    first = replace(
        first,
        prompt=(Message(role="system", content=text),),
        turns=(turn, first.turns[1]),
        rewards=parts,
        metrics={markup: 1.0},
        judge_calls=(asked,),
        stop_reason=StopReason.ENDED,
        end_reason=text,
    )
    lost = Failure(
        sibling=7, stop_reason=None, error=text, error_class=markup, traceback=text, turns=0, where=markup
    )
    return replace(
        group,
        trajectories=(first, second),
        failures=(lost,),
        env=markup,
        item_id=text,
        item={markup: text},
        group_id=f"{markup}/0",
        judge_calls=(replace(asked, turn=None),),
    )


def test_no_text_gets_out_of_its_block(tmp_path):
    around = []
    for name, text in {"a": "x", "b": MARKUP + "\u2028\x00\u202e\U0001f600\"'&amp;"}.items():
        record = recorded(tmp_path / f"{name}.jsonl", hostile_group(text, text))
        page(record)
        shown = re.sub(r'(id="block-[\w.]+">)[^<]*', r"\1", record.with_suffix(".html").read_text())
        around.append(shown.replace(record.name, ""))
    assert around[0] == around[1]


@pytest.mark.parametrize("name", ["</title><script>alert(1)</script>", "a\"b'c&lt;", "\udcff"], ids=ascii)
def test_the_name_of_a_record_is_text(tmp_path, name):
    folder = tmp_path / "runs" / "toy" / name.replace("/", "%")
    folder.mkdir(parents=True)
    recorded(folder / "record.jsonl", group_of([[1.0, 2.0], [0.0]]))
    assert main(["view", str(folder)]) == 0
    text = (folder / "view.html").read_text()
    assert text.count("<title>") == text.count("</title>") == 1
    assert "<script>alert" not in text


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    record = tmp_path_factory.mktemp("hostile") / "record.jsonl"
    with Recorder(record) as recorder:
        recorder.append(credited(hostile_group(), "turn_return", policy=MARKUP))
    out = record.with_suffix(".html")
    result = CliRunner().invoke(command, [str(record), "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    return out.as_uri()


@pytest.fixture(scope="module")
def window(url):  # after the record: the browser has an event loop of its own
    with watched_page() as page:
        yield page


VIEWS = {
    "overview": ("", ".tile"),
    "rollouts": ("#v=rollouts", ".list .row"),
    "turns": ("#v=turns", ".list .row"),
    "search": ("#v=turns&text=onerror", ".list .row"),
    "estimators": ("#v=estimators", ".list .row"),
    "group": (None, ".turn"),
    "turn": (None, "#drawer .ledger"),
}


def shown(window, url, view):
    address, selector = VIEWS[view]
    page = opened(window, url, address or "")
    if address is None:
        turn = ", t: 0" if view == "turn" else ""
        page.evaluate(f"go({{ g: page.index.groups[0].id, s: 0{turn} }})")
    page.wait_for_selector(selector)
    if view in ("group", "turn"):
        page.wait_for_selector(".turn .result")
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        page.wait_for_timeout(50)
    return page


@pytest.mark.parametrize("view", VIEWS)
def test_hostile_text_runs_nothing_and_loads_nothing(window, url, view):
    page = shown(window, url, view)
    strangers = [each for each in window.asked if not each.startswith((url, "data:", "about:"))]
    made = page.evaluate(
        "document.querySelectorAll('img, iframe, object, embed, [onerror], a[href^=javascript]').length"
    )
    assert (page.evaluate("typeof window.ran"), strangers, made, window.errors) == ("undefined", [], 0, [])


@pytest.mark.parametrize("view", ["group", "turn"])
def test_control_characters_and_overrides_of_direction_are_shown_by_name(window, url, view):
    page = shown(window, url, view)
    text = page.inner_text("body")
    assert "\u241b[31mred\u241b[0m" in text
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_hostile_text_is_there_whole_to_be_read(window, url):
    page = shown(window, url, "turn")
    assert MARKUP in page.inner_text("#drawer .said")


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.js")), ids=lambda path: path.stem)
def test_no_script_makes_markup_of_text(script):
    assert FORBIDDEN.findall(script.read_text()) == []
