"""What a run shows while it goes: plain lines, and a live picture on a terminal."""

import io
import re
from contextlib import ExitStack
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from environments.credit import credited
from environments.record.totals import Summary
from environments.rollout.containment.hook_calls import InFlight
from environments.run.group_source import note_of
from environments.run.progress import LiveView, Progress, RolloutsInFlight, picture
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure
from tests.tables import cases


def group_with(score, *, errors=()):
    failures = tuple(
        Failure(sibling=n, stop_reason=None, error=error, traceback="", turns=0)
        for n, error in enumerate(errors, start=1)
    )
    group = replace(group_of([[score]]), item_id="a", failures=failures)
    return CreditedGroup(group=group, advantages=((0.0,),), policy="p", estimator="e")


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Every group makes a plain line."""
    monkeypatch.setattr("environments.run.progress.PLAIN_EVERY_S", 0.0)


def progress_on(out, *, terminal, total=4, done_before=0):
    progress = Progress(Console(file=out, force_terminal=terminal, width=200))
    progress.start(total=total, done_before=done_before)
    return progress


def test_a_plain_line_tells_groups_rollouts_score_and_dropped():
    out = io.StringIO()
    progress = progress_on(out, terminal=False, done_before=1)
    with progress.rollout(InFlight(item_id="a", sibling=0)):
        progress.group_done(note_of(group_with(0.5, errors=("ValueError: x",))))
    assert out.getvalue().startswith("groups 2/4 · 1 in flight · mean score 0.500 · 1 dropped · ")
    assert "ETA" in progress.line()
    endless = progress_on(io.StringIO(), terminal=False, total=None)
    endless.group_done(note_of(group_with(0.5)))
    assert "ETA" not in endless.line()


def test_a_line_that_is_said_does_not_control_the_terminal():
    out = io.StringIO()
    progress_on(out, terminal=False).say("building \x1b[31mred\nand more")
    assert out.getvalue() == "building  [31mred\nand more\n"


def test_a_silent_run_names_the_oldest_rollout_or_where_its_setup_is(monkeypatch):
    out = io.StringIO()
    progress = progress_on(out, terminal=False)
    old, young = (InFlight(item_id=name, sibling=2, doing="model, turn 3") for name in ("old", "young"))
    with progress.rollout(old), progress.rollout(young):
        progress.heartbeat(None)
        assert out.getvalue() == ""  # something was shown a moment ago
        monkeypatch.setattr("environments.run.progress.HEARTBEAT_S", 0.0)
        progress.heartbeat(None)
    assert "2 in flight" in out.getvalue()
    assert re.search(r"oldest: item old, rollout 2, \d+\.\d s, model, turn 3", out.getvalue())
    progress.heartbeat("env.py:3 in load_items")
    assert "not ready after" in out.getvalue()
    assert out.getvalue().endswith("at env.py:3 in load_items\n")


HEAD = "groups 3/12 · 2 in flight · mean score 0.500"


def summary_of(*groups):
    summary = Summary()
    for group in groups:
        summary.add(credited(group, "turn_return", policy="p"))
    return summary


def lines(summary, *rollouts, width=80, **how):
    in_flight = RolloutsInFlight()
    out = io.StringIO()
    with ExitStack() as watched:
        for rollout in rollouts:
            watched.enter_context(in_flight.watch(rollout))
        Console(file=out, width=width).print(picture(HEAD, summary, in_flight, width=width, **how))
    return out.getvalue().splitlines()


def row(name, shown):
    return next(line.removeprefix(name).split() for line in shown if line.startswith(name))


LONG = group_of([[0.25] * 40, [0.75] * 20])


@cases("width", [24, 40, 80, 140])
def test_every_line_fits_the_terminal_and_there_are_few(width):
    failures = tuple(
        Failure(sibling=n, stop_reason=None, error=f"{'E' * 50}{n}: x", traceback="", turns=0)
        for n in range(30)
    )
    rollouts = [InFlight(item_id="i" * 500, sibling=n, doing=f"tool {n:040}, turn 3") for n in range(30)]
    shown = lines(
        summary_of(replace(LONG, failures=failures)), *rollouts, width=width, tokens_per_s=1e9, share=0.5
    )
    assert max(map(cell_len, shown)) <= width
    assert len(shown) <= 9 + 2 * len(HEAD) // width


def test_calls_in_flight_are_counted_and_the_oldest_and_failures_by_class_are_shown():
    doing = ["model, turn 1", "model, turn 7", "tool terminal, turn 3"]
    lost = Failure(sibling=9, stop_reason=None, error="SandboxError: gone", traceback="", turns=0)
    group = replace(group_of([[1.0], [0.0]]), failures=(lost, replace(lost, sibling=8)))
    flying = [InFlight(item_id="slow", sibling=n, started=0.0, doing=each) for n, each in enumerate(doing)]
    shown = lines(summary_of(group), *flying)
    assert " ".join(row("in flight", shown)) == "3: model 2, tool terminal 1"
    assert "item slow, rollout 0" in " ".join(row("oldest", shown))
    assert row("failures", shown) == ["SandboxError", "2"]


def test_names_are_text_that_neither_steers_the_terminal_nor_is_markup():
    evil = InFlight(item_id="\x1b[2J\x07[red]a[/red]", sibling=0, doing="tool \x1b]0;x\x07, turn 1")
    shown = lines(Summary(), evil)
    assert not [line for line in shown if "\x1b" in line or "\x07" in line]
    assert "[red]a[/red]" in " ".join(shown)


def test_a_picture_that_cannot_be_made_leaves_the_last_one():
    pictures = iter(["first"])
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True), lambda: next(pictures)) as view:
        view._live.refresh()
        view._live.refresh()
    assert "first" in out.getvalue()


def test_a_terminal_that_is_gone_ends_nothing_and_without_one_nothing_is_shown():
    class Gone(io.StringIO):
        def write(self, _):
            raise OSError("gone")

    with LiveView(Console(file=Gone(), force_terminal=True), lambda: "x"):
        pass
    out = io.StringIO()
    with LiveView(Console(file=out), lambda: "x") as view:
        assert not view.is_shown
    assert out.getvalue() == ""
