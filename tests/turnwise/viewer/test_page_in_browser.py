"""The viewer's page in a real Chromium, made from a record of real runs and of groups made by hand."""

import asyncio
import hashlib
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from environments.credit import credited
from environments.record.recorder import Recorder, read_groups
from environments.run.process_run import process
from environments.shipped.long_math import LongMathEnv
from environments.testing import group_of
from environments.trajectory import AgentRun, Artefact, Failure, Message, StopReason, ToolResult
from tests.environments.write_file import quiet
from tests.turnwise.viewer.chromium import opened, texts, watched_page
from tests.turnwise.viewer.pages import recorded
from turnwise.cli.view import command

PRICES = ToolResult(
    call_id="c", name="prices", content="\n".join(f"shelf {number}: {number} crowns" for number in range(9))
)
SAID = "the word xylophone stands once"
CONDENSED = {
    "facts": 8,
    "max_items": 1,
    "group_size": 2,
    "scripted_skill": 0.6,
    "seed": 7,
    "condenser": ["summarise", "fit_context"],
    "condenser_turns": 4,
    "condenser_tokens": 1200,
}


def chats():
    """The seller's three chats of docs/credit.md: A sells, B chats, C bores and is not scored once."""
    group = group_of([[0.5, 0.0], [0.5, 0.5, 0.5], [0.0, None]], outcomes=[1.0, 0.0, 0.0])
    a, b, c = group.trajectories
    second = replace(c.turns[1], trained=False, message=replace(c.turns[1].message, content=SAID))
    c = replace(c, turns=(c.turns[0], second), stop_reason=StopReason.ENDED, end_reason="bored")
    lost = Failure(
        sibling=3,
        stop_reason=None,
        error="ShopClosed: nobody there",
        error_class="ShopClosed",
        traceback="Traceback (most recent call last):\n  shop.py, line 3",
        turns=1,
    )
    versions = [b"<img src=x onerror=window.ran=1>\n", b"</details><script>window.ran=1</script>\n"]
    contents = {hashlib.sha256(data).hexdigest(): data for data in versions}
    named = zip((0, None), contents, versions, strict=True)
    artefacts = [Artefact(turn=turn, path="<b>.py", digest=key, size=len(data)) for turn, key, data in named]
    a = replace(a, artefacts=tuple(artefacts), contents=contents)
    return replace(group, trajectories=(a, b, c), failures=(lost,), item_id="chats", group_id="chats/0")


def recorded_agent():
    """The same chats, of which an agent with two threads played the second and then broke."""
    a, b, c = chats().trajectories
    first, second, third = (
        replace(turn, tool_results=(replace(PRICES, call_id=f"c{turn.index}"),)) for turn in b.turns
    )
    title = Message(role="system", content="You name chats.\nBriefly.")
    turns = (first, replace(second, thread=1, context=(title,)), third)
    run = AgentRun(error="Boom: it broke", exit_code=3, output="bye", wall_s=2.0, counts={"retries": 2})
    b = replace(b, turns=turns, agent=run, stop_reason=StopReason.AGENT_ERROR)
    return replace(chats(), trajectories=(a, b, c), failures=(), item_id="again", group_id="again/0")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "record.jsonl"
    env = LongMathEnv(LongMathEnv.env_config_cls(**CONDENSED, data_path_to_save_groups=str(path)), ())
    assert asyncio.run(process(env, quiet())) == 0
    real = list(read_groups(path))
    path.unlink()
    with Recorder(path) as recorder:
        for group in (chats(), recorded_agent()):
            recorder.append(credited(group, "turn_return", policy="scripted"))
        for group in real:
            recorder.append(group)
    return path


@pytest.fixture(scope="module")
def url(record):
    out = record.with_suffix(".html")
    result = CliRunner().invoke(
        command, [str(record), "--out", str(out), "--estimator", "mt_grpo"], catch_exceptions=False
    )
    assert result.exit_code == 0
    return out.as_uri()


@pytest.fixture(scope="module")
def window(url):  # after the record: the browser has an event loop of its own
    with watched_page() as page:
        yield page


@pytest.fixture
def at(window, url):
    def go(address="", wait=None):
        page = opened(window, url, address)
        if wait:
            page.wait_for_selector(wait)
        return page

    return go


def test_siblings_stand_side_by_side_and_their_turns_in_rows_of_one_index(at):
    page = at("#g=chats%2F0", ".turn")
    boxes = page.evaluate(
        "[...document.querySelectorAll('.turn')].map((turn) => [turn.dataset.turn, turn.dataset.column,"
        "turn.closest('.mrow').getBoundingClientRect().top, turn.getBoundingClientRect().left])"
    )
    tops, lefts = {}, {}
    for turn, column, top, left in boxes:
        tops.setdefault(turn, set()).add(top)
        lefts.setdefault(column, set()).add(left)
    assert len(boxes) == 7
    assert all(len(seen) == 1 for seen in [*tops.values(), *lefts.values()])
    assert len(set.union(*tops.values())) == 3
    assert len(set.union(*lefts.values())) == 3


def test_a_ledger_adds_up_on_screen_to_the_advantage_of_the_record(at, record):
    page = at("#g=chats%2F0&s=1&t=1", "#drawer .ledger")
    rows = page.locator("#drawer .ledger tr:not(.total):not(.last) td.n").evaluate_all(
        "cells => cells.map((cell) => Number(cell.dataset.exact))"
    )
    shown = float(page.locator("#drawer .ledger tr.last td.n").get_attribute("data-exact"))
    recorded = next(read_groups(record)).advantages[1][1]
    assert (sum(rows), shown) == (pytest.approx(recorded, abs=1e-12), recorded)
    assert rows == [0.5, 0.5, -0.5]


def test_kept_files_open_at_their_turn_and_at_the_end_as_text_alone(at):
    page = at("#g=chats%2F0", ".turn")
    for place in (".turn[data-turn='0'][data-column='0']", ".outcomes"):
        page.click(f"{place} summary:text('1 file kept')")
        page.wait_for_selector(f"{place} .artefact")
    assert [text.split("\n")[0] for text in texts(page, ".artefact .callhead b")] == ["<b>.py", "<b>.py"]
    first, last = texts(page, ".artefact .text")
    assert first == "<img src=x onerror=window.ran=1>"
    assert last == "</details><script>window.ran=1</script>"
    assert page.evaluate("window.ran") is None


def test_a_peer_is_a_link_to_its_own_turn(at):
    page = at("#g=chats%2F0&s=0&t=1", "#drawer .peers")
    page.click("#drawer .peerlist a >> nth=0")
    page.wait_for_selector("#drawer h2:text('sibling 1, turn 2')")
    assert page.evaluate("route()") == {"v": "group", "g": "chats/0", "s": "1", "t": "1"}


def test_a_masked_turn_trains_no_token(at):
    page = at("#g=chats%2F0&s=2&t=1", "#drawer .ledger")
    assert texts(page, "#drawer .trained") == ["masked: no token of this turn is trained"]


def test_back_returns_from_a_turn_to_its_group(at):
    page = at("#g=chats%2F0", ".turn")
    page.click(".turn[data-column='1'][data-turn='0'] .turnhead")
    page.wait_for_selector("#drawer .ledger")
    page.go_back()
    page.wait_for_selector("#drawer", state="hidden")
    assert page.evaluate("location.hash") == "#g=chats%2F0"


def test_a_dropped_sibling_has_its_error_and_traceback(at):
    page = at("#g=chats%2F0", ".failure")
    page.click(".failure summary")
    page.wait_for_selector(".failure .text")
    assert "ShopClosed: nobody there" in page.inner_text(".failure")
    assert "shop.py, line 3" in page.inner_text(".failure .text")


def test_the_run_of_a_recorded_agent_stands_below_its_turns_and_they_have_their_thread(at):
    page = at("#g=again%2F0&s=1&t=1", "#drawer .facts")
    page.wait_for_selector(".outcomes .agent")
    assert texts(page, ".turn .part") == ["thread 1", "thread 2", "thread 1"]
    assert "thread 2" in " ".join(texts(page, "#drawer .facts tr >> nth=0")[0].split())
    agent = texts(page, ".outcomes .agent")[0]
    assert all(each in agent for each in ("exit code 3", "2 s", "retries 2", "Boom: it broke", "output"))


def test_search_finds_the_one_rollout_that_said_a_word(at):
    page = at("#v=turns&text=xylophone", ".list .row")
    page.wait_for_selector(".count:has-text('hits in')")
    assert texts(page, ".row .c-turn") == ["turn 2", "turn 2"]
    assert set(texts(page, ".row mark")) == {"xylophone"}


@pytest.mark.parametrize(
    ("query", "turns"),
    [
        ("untrained", [(2, 1), (2, 1)]),
        ("not-scored", [(2, 1), (2, 1)]),
        ("no-peer", [(1, 2), (1, 2)]),
        ("minus-passed,last", []),
    ],
    ids=["masked", "not-scored", "no-peer", "none"],
)
def test_turn_queries_give_the_turns_they_ask_for(at, query, turns):
    page = at(f"#v=turns&q={query}", ".list")
    found = page.evaluate(
        "results.items.filter(({rollout}) => rollout.group.item !== page.index.groups[2].item)"
        ".map(({rollout, at}) => [rollout.entry.sibling, at])"
    )
    assert [tuple(each) for each in found] == turns


def test_rollouts_are_filtered_by_score(at):
    page = at("#v=rollouts&text=chats", ".list .row")
    page.fill("input[aria-label='score from']", "1.5")
    page.wait_for_selector(".count:has-text('2 of')")
    assert set(texts(page, ".row .c-score")) == {"1.5"}


def test_keys_move_through_a_group_open_a_turn_and_close_it(at):
    page = at("#g=chats%2F0", ".turn.selected")
    for key in ("ArrowRight", "j", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#drawer h2:text('sibling 1, turn 2')")
    page.keyboard.press("j")
    page.wait_for_selector("#drawer h2:text('sibling 1, turn 3')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#drawer", state="hidden")
    assert page.evaluate("route().s") == "1"


def test_a_slash_goes_to_the_search_and_a_question_mark_shows_the_keys(at):
    page = at("", ".tile")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.is_visible("#help kbd:text('j')")


def test_a_chosen_theme_is_that_of_the_next_page(at):
    page = at()
    page.keyboard.press("d")
    assert at().evaluate("document.documentElement.style.colorScheme") == "dark"
    page.keyboard.press("d")
    assert at().evaluate("document.documentElement.style.colorScheme") == "light"


def test_a_copy_button_says_whether_it_copied(at):
    page = at("#g=chats%2F0")
    copy = page.get_by_label("Copy the link to this group")
    # It says so for a second, in which a busy machine may not come to look.
    copy.evaluate(
        "node => new MutationObserver(() => (document.body.dataset.said ??= node.textContent))"
        ".observe(node, {childList: true, characterData: true, subtree: true})"
    )
    copy.click()
    page.wait_for_selector("body[data-said]")
    assert page.get_attribute("body", "data-said") in ("copied", "not permitted")


def test_condensed_contexts_and_forks_are_marked_in_a_real_run(at):
    page = at("#v=turns&q=condensed,fork", ".list .row")
    page.click(".row >> nth=0")
    page.wait_for_selector("#drawer .saw")
    assert {"fork", "condensed"} <= set(texts(page, "#drawer .drawerhead .badge"))


def test_a_summary_stands_in_the_row_of_the_act_that_follows_it(at):
    page = at("#v=turns&q=summary", ".list .row")
    page.click(".row >> nth=0")
    page.wait_for_selector("#drawer .ledger")
    row = page.evaluate(
        "[...document.querySelector('.turn.selected').closest('.cell').querySelectorAll('.turn')]"
        ".map((each) => drawer.rollout.entry.turns.kind[each.dataset.turn]).join('')"
    )
    assert row == "sa"


def test_of_three_siblings_two_stand_beside_each_other_and_a_third_that_is_gone_to_takes_a_place(at):
    page = at("#g=chats%2F0", ".turn")
    page.select_option("select[aria-label='sibling on the left']", "2")
    page.select_option("select[aria-label='sibling on the right']", "0")
    page.wait_for_selector(".mhead .sibling >> nth=1")
    chosen = texts(page, ".sibline .name")
    page.evaluate("location.hash = turnHash('chats/0', 1, 0)")
    page.wait_for_selector("#drawer h2:text('sibling 1, turn 1')")
    siblings = page.evaluate("views.current.siblings.map(({entry}) => entry.sibling)")
    assert (chosen, siblings) == (["sibling 2", "sibling 0"], [2, 1])


def test_a_transcript_is_one_sibling_over_the_whole_width(at):
    page = at("#g=chats%2F0", ".turn")
    page.click(".name:text('sibling 1')")
    page.wait_for_selector(".transcript .words .text >> nth=2")
    widths = page.evaluate("[...document.querySelectorAll('.turn')].map((turn) => turn.clientWidth)")
    assert (len(widths), min(widths) > 1340) == (3, True)


@pytest.mark.parametrize("view", ["rollouts", "turns", "estimators"])
def test_a_list_fits_a_narrow_window_with_its_credit(at, view):
    page = at(f"#v={view}", ".list .row")
    page.set_viewport_size({"width": 420, "height": 900})
    box = page.locator(".row .c-credit >> nth=0").bounding_box()
    page.set_viewport_size({"width": 1440, "height": 900})
    assert box["x"] + box["width"] < 420


def test_a_list_of_turns_shows_rewards_whole(at):
    page = at("#v=turns", ".list .c-reward")
    shown = "[...document.querySelectorAll('.c-reward')].map((each) => each.scrollWidth <= each.clientWidth)"
    assert set(page.evaluate(shown)) == {True}


def test_a_long_name_makes_no_chart_wider_than_its_column(at):
    page = at("#v=overview", "figure h3")
    widths = page.evaluate(
        "[...document.querySelectorAll('figure')].map((figure) => (figure.querySelector('h3')"
        ".append('name'.repeat(60)), figure.scrollWidth - figure.clientWidth))"
    )
    assert set(widths) == {0}


def test_a_transcript_fits_a_narrow_window(at):
    page = at("#g=again%2F0&only=1", ".turn.lane")
    page.set_viewport_size({"width": 420, "height": 900})
    sizes = page.evaluate(
        "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(views.current.matrix)"
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    assert sizes[0] == sizes[1]


def test_turns_of_a_transcript_fold_to_their_first_words(at):
    page = at("#g=chats%2F0&only=2&s=2&t=0", ".transcript .words .text >> nth=1")
    page.keyboard.press("Escape")
    page.wait_for_selector("#drawer", state="hidden")
    page.keyboard.press("j")
    page.keyboard.press("f")
    one = page.locator(".turn.folded").count()
    assert (one, texts(page, ".folded .gist")) == (1, [SAID])
    page.keyboard.press("F")
    assert page.locator(".turn.folded").count() == 2


def test_a_number_after_g_goes_to_that_turn(at):
    page = at("#g=chats%2F0&only=1", ".turn.selected")
    page.keyboard.press("g")
    page.keyboard.type("3")
    page.wait_for_selector(".turn.selected[data-turn='2']")


def test_threads_of_a_transcript_have_the_names_of_their_prompts(at):
    page = at("#g=again%2F0&only=1", ".turn .thread")
    assert texts(page, ".turn .thread") == [
        "thread 1: prompt",
        "thread 2: You name chats.",
        "thread 1: prompt",
    ]
    lefts = page.evaluate(
        "[...document.querySelectorAll('.turn')].map((turn) => turn.getBoundingClientRect().left)"
    )
    assert lefts[0] == lefts[2] < lefts[1]


def test_a_result_that_an_earlier_turn_has_is_folded_in_a_transcript(at):
    page = at("#g=again%2F0&only=1", ".turn .thread")
    assert texts(page, ".result summary") == ["the same as in turn 1"] * 2
    page.click(".result summary >> nth=0")
    page.wait_for_selector(".turn[data-turn='1'] .result .text")  # a part is told of its opening afterwards
    assert texts(page, ".turn[data-turn='1'] .result .text") == [PRICES.content]


def test_a_rollout_is_downloaded_as_json(at):
    page = at("#g=chats%2F0&only=1", ".transcript .turn")
    with page.expect_download() as download:
        page.click("button:text('download JSON')")
    rollout = json.loads(download.value.path().read_bytes())
    assert download.value.suggested_filename == "chats-1.json"
    assert (rollout["item"], rollout["sibling"], rollout["score"], len(rollout["turns"])) == (
        "chats",
        1,
        1.5,
        3,
    )


@pytest.fixture
def branched(window, tmp_path):
    """A page whose sibling 2 replayed the first turn of sibling 0."""
    group = group_of([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    trunk, other, branch = group.trajectories
    trunk, branch = replace(trunk, branch_turn=1), replace(branch, trunk=0, branch_turn=1)
    branch = replace(branch, turns=(replace(branch.turns[0], trained=False), branch.turns[1]))
    record = recorded(tmp_path / "branched.jsonl", replace(group, trajectories=(trunk, other, branch)))
    CliRunner().invoke(command, [str(record)], catch_exceptions=False)
    return opened(window, record.with_suffix(".html").as_uri())


def test_a_branch_says_from_which_turn_of_which_sibling_it_comes(branched):
    branched.evaluate("go({g: page.index.groups[0].id})")
    branched.wait_for_selector(".turn")
    assert texts(branched, ".mhead .sibling >> nth=2 >> a") == [
        "sibling 2",
        "branch of sibling 0 from turn 2",
    ]
    assert texts(branched, ".turn .badge") == [
        "replayed",
        "branched: sibling 2",
        "branch of sibling 0 from turn 2",
    ]


def test_turns_that_a_branch_replayed_count_once(branched):
    assert texts(branched, ".tile b")[3] == "5"
    assert branched.evaluate("matchingTurns({}).length") == 5


def test_rewards_by_turn_are_those_of_the_summary_without_branches(branched):
    shown = branched.evaluate("byAct().map((each) => mean(each.rewards))")
    by_turn = branched.evaluate("page.index.aggregates.by_turn")
    assert shown == [each["reward"]["mean"] for each in by_turn] == [0.5, 0.0]


def test_a_group_that_failed_and_was_done_again_is_in_the_lists_and_in_no_number(window, tmp_path):
    again = credited(replace(group_of([[1.0], [0.0]]), item_id="a", group_id="a"), "turn_return", policy="p")
    kept = replace(again.group, trajectories=again.group.trajectories[:1])
    failed = replace(again, group=kept, advantages=((0.0,),), status="failed", reason="a failure")
    record = tmp_path / "again.jsonl"
    with Recorder(record) as recorder:
        recorder.append(failed)
        recorder.append(again)
    CliRunner().invoke(command, [str(record)], catch_exceptions=False)
    page = opened(window, record.with_suffix(".html").as_uri())
    assert texts(page, ".tile b")[:3] == ["1", "2", "0.5"]
    page.evaluate("go({v: 'rollouts'})")
    page.wait_for_selector(".list .row")
    assert page.locator(".list .row").count() == 3


def test_only_in_a_record_of_one_environment_a_score_says_who_passed(branched, at):
    branched.evaluate("go({v: 'rollouts'})")
    branched.wait_for_selector(".list .row")
    of_one = branched.locator(".row .dot").count()
    assert (of_one, at("#v=rollouts", ".list .row").locator(".row .dot").count()) == (3, 0)


def test_a_refused_group_shows_no_advantage(at):
    page = at("#g=chats%2F0", ".turn")
    shown = page.locator(".turnhead .heat").count()
    page.evaluate("page.groupById.get('again/0').status = 'failed'; go({g: 'again/0'})")
    page.wait_for_selector("h1:text('again')")
    page.wait_for_selector(".turn")
    assert (shown, page.locator(".turnhead .heat, .mhead .strip").count()) == (7, 0)


BOARD = "1 2 3\nX . O\n. X ."
READ = f"# Plan\n- **first** `x < 1`\n\n{BOARD}\n```python\nprint('<b>')\n```\n<img src=x onerror=alert(1)>"


def test_boards_and_code_of_a_message_have_one_width_and_its_markdown_is_read_as_text_alone(at):
    page = at("", ".tile")
    page.evaluate("said => document.body.append(textBlock(said))", READ)
    read = "body > .text:last-child "
    assert texts(page, read + ".code") == [BOARD, "print('<b>')"]
    assert texts(page, f"{read}.heading, {read}b, {read}code") == ["Plan", "first", "x < 1"]
    assert page.locator(read + "img").count() == 0
    assert "<img src=x" in page.inner_text(read)


def test_both_estimators_stand_beside_each_other_with_their_sign_flips(at):
    page = at("#v=estimators&flips=1", ".list .row")
    pairs = page.evaluate("results.items.map(({own, other}) => own * other)")
    assert (len(pairs) > 1, max(pairs) < 0) == (True, True)


def test_the_overview_begins_with_what_is_wrong_in_two_lines(at):
    rollouts, turns = texts(at("", ".tile"), ".head + .wrong p")
    assert rollouts.startswith(
        "Rollouts 1 of 9 rollouts dropped in 1 of 3 groups, most often by ShopClosed: nobody"
    )
    assert "2 not scored · 2 no peer" in turns


def test_a_line_of_what_is_wrong_leads_to_its_turns(at):
    page = at("", ".tile")
    page.click(".wrong a:text('not scored')")
    page.wait_for_selector(".list .row")
    assert page.evaluate("results.items.map(({rollout, at}) => [rollout.group.item, at])") == [
        ["chats", 1],
        ["again", 1],
    ]


def test_panels_of_the_overview_share_one_legend(at):
    page = at("", ".tile")
    assert page.locator(".figures .keys").count() == 0
    assert page.locator(".figurehead .keys").count() == page.locator(".figures").count() == 3


def test_curves_have_ticks_at_whole_groups(at):
    ticks = at("", ".tile").locator(".curves .tick.mid").all_text_contents()
    assert set(ticks) == {"1", "2", "3"}


def test_a_group_says_how_many_of_its_siblings_were_dropped(at):
    page = at("#v=rollouts&text=chats", ".list .row")
    assert texts(page, ".row >> nth=0 >> .status") == ["ok", "1 of 4 dropped"]


def test_health_by_turn_index_is_that_of_the_summary(at):
    page = at("", ".tile")
    counted = page.evaluate("byAct().map((each) => [each.reached, each.alone, each.unscored])")
    summary = page.evaluate("page.index.aggregates.by_turn")
    assert counted == [[e["rollouts"], e["without_peer"], e["rollouts"] - e["scored"]] for e in summary]


def test_a_long_text_is_folded_until_it_is_asked_for(at):
    page = at("#v=overview", ".tile")
    page.evaluate("document.body.append(textBlock('line\\n'.repeat(5000)))")
    folded = page.evaluate("document.body.lastChild.textContent.length")
    page.click("body > .folded > .more")
    assert (folded < 2000, page.evaluate("document.body.lastChild.textContent.length") > 25_000) == (
        True,
        True,
    )


def test_a_text_that_was_cut_says_how_much_is_not_there(at):
    page = at("#v=overview", ".tile")
    said = page.evaluate("textBlock({head: 'a', tail: 'z', chars: 1002}).textContent")
    assert said == "a[… 1,000 of 1,002 characters are not in this page …]z"


def test_nothing_leaves_the_page_and_nothing_breaks(at, window):
    at("#g=chats%2F0&s=0&t=0", "#drawer .ledger")
    strangers = [each for each in window.asked if not each.startswith(("file:", "data:", "about:"))]
    assert (strangers, window.errors) == ([], [])
