"""Forks are counted by cause, with what they cost a trainer and what to do."""

import pytest

from environments.record.forks import Forks
from environments.trajectory import Message, Span, TokenRow, Trajectory, Turn


def trajectory(*causes, prompt=10, sampled=2):
    """A turn for each cause; one that forked is in a row of its own, whose prompt holds all before."""
    turns, rows, tokens = [], [], prompt
    for index, cause in enumerate(causes):
        if rows and cause is None:
            rows.pop()
        span = Span(row=len(rows), start=tokens, end=tokens + sampled)
        tokens += sampled
        rows.append(TokenRow(token_ids=(0,) * tokens, logprobs=None))
        turns.append(Turn(index=index, message=Message(role="assistant"), span=span, fork=cause))
    return Trajectory(item_id="a", turns=tuple(turns), rows=tuple(rows))


def forks_of(*trajectories):
    forks = Forks()
    for each in trajectories:
        forks.add(each)
    return forks


def test_rows_that_go_on_are_nothing_to_tell():
    forks = forks_of(trajectory(None, None))
    assert (forks.text(), forks.short()) == ("", "")


def test_forks_are_counted_by_cause_the_most_frequent_first():
    first, *_ = (
        forks_of(trajectory(None, "template", None, "history"), trajectory(None, "template"))
        .text()
        .splitlines()
    )
    assert first == "3 of 6 turns began a new row: template 2, history 1"


def test_what_a_trainer_gets_is_told_per_sampled_token():
    forks = forks_of(trajectory(None, *["template"] * 49, prompt=470, sampled=600))
    assert (
        "a trainer gets 788,500 tokens for 30,000 sampled (26.3 trainer tokens per sampled one)"
        in forks.text()
    )
    assert forks.short() == "forks 49, 26.3 trainer tokens per sampled one"


@pytest.mark.parametrize(
    ("cause", "setting"),
    [
        ("template", "--openai.server_type"),
        ("renderer: no close", "--openai.family"),
        ("history: fit_context", "--env.condenser_tokens"),
    ],
    ids=["template", "renderer", "history"],
)
def test_what_to_do_is_told_with_the_setting(cause, setting):
    assert setting in forks_of(trajectory(None, cause)).text()


def test_a_fork_of_a_policys_own_making_needs_no_remedy():
    assert len(forks_of(trajectory(None, "mine")).text().splitlines()) == 2


def test_causes_stay_few_however_different_they_are():
    forks = forks_of(*(trajectory(None, f"renderer: {number}") for number in range(500)))
    assert (len(forks.causes), forks.causes.total()) == (21, 500)
