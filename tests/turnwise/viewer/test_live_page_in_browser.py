"""A live page in a real Chromium: what is recorded meanwhile comes to it, and its reader stays there."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from environments.credit import credited
from environments.record.recorder import Recorder
from environments.testing import group_of
from tests.turnwise.viewer.chromium import chromium, new_page


def record_one(path, number, rewards=((0.5, 0.0), (0.0, 0.0))):
    group = replace(group_of(rewards), item_id=f"item-{number}", group_id=f"item-{number}/0")
    with Recorder(path) as recorder:
        recorder.append(credited(group, "turn_return", policy="scripted"))


@pytest.fixture
def served(tmp_path):
    """A record with one group, and the URL of its page."""
    path = tmp_path / "record.jsonl"
    record_one(path, 0)
    command = [sys.executable, "-m", "turnwise", "view", "--serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield path, re.search(r"http://\S+", server.stdout.readline())[0]
        server.terminate()


@pytest.fixture(scope="module")
def window():
    with chromium() as browser:
        yield new_page(browser)


def at_a_turn(page, url):
    page.goto(url)
    page.wait_for_selector(".tile")
    page.evaluate("go({g: 'item-0/0', s: 1, t: 1})")
    page.wait_for_selector("#drawer .ledger")
    return page


def test_new_groups_come_to_an_open_turn_without_moving_its_reader(served, window):
    path, url = served
    page = at_a_turn(window, url)
    ledger = page.query_selector("#drawer .ledger")
    record_one(path, 1)
    page.wait_for_selector("#live:has-text('2 groups')")
    assert (ledger.is_visible(), page.evaluate("route().t")) == (True, "1")


def test_new_groups_come_to_the_overview_without_moving_its_reader(served, window):
    path, url = served
    window.goto(url)
    window.wait_for_selector(".tile")
    # Once there is so much to read.
    window.evaluate(
        """new Promise(done => {
            const view = document.getElementById('view');
            const scroll = () => (view.scrollTop = 90) === view.scrollTop ? done() : setTimeout(scroll, 20);
            scroll();
        })"""
    )
    record_one(path, 1)
    window.wait_for_selector(".tile b:text-is('2')")
    assert window.evaluate("document.getElementById('view').scrollTop") == 90


def test_a_record_that_was_replaced_leaves_nothing_of_the_old_one(served, window):
    path, url = served
    page = at_a_turn(window, url)
    path.unlink()
    record_one(path, 0, rewards=[[0.5, 0.0], [0.0, 4.0]])
    page.wait_for_selector("#drawer .ledger td.n[data-exact='4']")
    assert page.evaluate("page.rollouts.map(({entry}) => entry.turns.rewards)") == [[0.5, 0.0], [0.0, 4.0]]
