import io
from dataclasses import replace

import pytest
from rich.console import Console

from environments.containment.in_flight import InFlight
from environments.run.progress import Progress
from environments.trajectory import (
    CreditedGroup,
    Failure,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def group_of(score, *, errors=()):
    turn = Turn(index=0, message=Message(role="assistant"), span=Span(row=0, start=0, end=1))
    trajectory = Trajectory(
        item_id="a",
        turns=(turn,),
        rows=(TokenRow(token_ids=(0,), logprobs=None),),
        rewards=Rewards(score=score),
    )
    failures = tuple(
        Failure(sibling=n, stop_reason=None, error=error, traceback="", turns=0)
        for n, error in enumerate(errors, start=1)
    )
    group = TrajectoryGroup(item_id="a", trajectories=(trajectory,), failures=failures)
    return CreditedGroup(group=group, advantages=((0.0,),), policy="p", estimator="e")


def shown(progress):
    """The picture, as a wide terminal has it."""
    out = io.StringIO()
    Console(file=out, width=200).print(progress._picture())
    return out.getvalue()


def progress_on(out, *, terminal, **options):
    console = Console(file=out, force_terminal=terminal, width=200)
    return Progress(console, **{"total": 4, "plain_every_s": 0.0} | options)


def test_a_plain_line_tells_groups_rollouts_score_and_dropped():
    out = io.StringIO()
    with (
        progress_on(out, terminal=False, done_before=1) as progress,
        progress.rollout(InFlight(item_id="a", sibling=0)),
    ):
        progress.group_done(group_of(0.5, errors=("ValueError: x",)))
    assert out.getvalue().startswith("groups 2/4 · 1 in flight · mean score 0.500 · 1 dropped · ")


def test_plain_lines_keep_their_distance():
    out = io.StringIO()
    with progress_on(out, terminal=False, plain_every_s=3600.0) as progress:
        progress.group_done(group_of(0.5))
    assert out.getvalue() == ""


def test_a_terminal_gets_a_live_line_and_no_plain_ones():
    out = io.StringIO()
    with progress_on(out, terminal=True) as progress:
        progress.group_done(group_of(0.5))
    assert "groups 1/4" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")


def test_a_run_without_an_end_has_no_eta():
    with progress_on(io.StringIO(), terminal=False, total=None) as progress:
        progress.group_done(group_of(0.5))
        assert "ETA" not in progress.line()


def test_a_rollout_that_raises_is_no_longer_in_flight():
    progress = progress_on(io.StringIO(), terminal=False)
    with pytest.raises(ValueError, match="broken"), progress.rollout(InFlight(item_id="a", sibling=0)):
        raise ValueError("broken")
    assert len(progress.in_flight) == 0


def test_a_silent_run_tells_the_oldest_rollout(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("environments.run.progress.HEARTBEAT_S", 0.0)
    progress = progress_on(out, terminal=False)
    old, young = (InFlight(item_id=name, sibling=2, doing="model, turn 3") for name in ("old", "young"))
    with progress.rollout(old), progress.rollout(young):
        progress.heartbeat(None)
    assert "2 in flight" in out.getvalue()
    assert "oldest: item old, rollout 2, 0.0 s, model, turn 3" in out.getvalue()


def test_a_run_that_shows_something_has_no_heartbeat():
    out = io.StringIO()
    progress = progress_on(out, terminal=False)
    with progress.rollout(InFlight(item_id="a", sibling=0)):
        progress.heartbeat(None)
    assert out.getvalue() == ""


def test_a_long_setup_tells_where_it_is(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("environments.run.progress.HEARTBEAT_S", 0.0)
    progress = progress_on(out, terminal=False)
    progress.heartbeat("env.py:3 in load_items")
    assert "not ready after" in out.getvalue()
    assert out.getvalue().endswith("at env.py:3 in load_items\n")


def test_the_live_line_tells_a_rollout_that_takes_long():
    progress = progress_on(io.StringIO(), terminal=True)
    with progress.rollout(InFlight(item_id="a", sibling=1, started=0.0, doing="compute_reward")):
        assert "item a, rollout 1" in shown(progress)


def test_a_line_tells_of_forks_when_there_are_some():
    progress = progress_on(io.StringIO(), terminal=False)
    progress.group_done(group_of(0.5))
    assert "fork" not in progress.line()
    group = group_of(0.5)
    (only,) = group.group.trajectories
    forked = replace(only, turns=(replace(only.turns[0], fork="template"),))
    progress.group_done(replace(group, group=replace(group.group, trajectories=(forked,))))
    assert "forks 1, 1 trainer tokens per sampled one" in progress.line()
