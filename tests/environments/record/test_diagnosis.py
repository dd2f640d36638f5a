"""Why nothing is to be learned from groups: counted by cause, in one sentence, with what to do."""

from dataclasses import replace

import pytest

from environments.credit import GroupRules, credited
from environments.record.diagnosis import cause_of, diagnosis, diagnosis_of
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.testing import group_of
from environments.trajectory import Failure
from tests.environments.record.any_group import all_withheld
from tests.tables import cases


def failure(error, sibling=0, **fields):
    return Failure(sibling=sibling, stop_reason=None, error=error, traceback="", turns=0, **fields)


def group(rewards, outcomes=None, estimator="turn_return", least=0, **fields):
    made = replace(group_of(rewards, outcomes=outcomes), **fields)
    return credited(made, estimator, policy="p", rules=GroupRules(min_trajectories=least))


OK = group([[1.0], [0.0]])
EVALUATED = replace(OK, status="no_credit", group=replace(OK.group, is_evaluation=True))
MISSING = group([[1.0]] * 3, [1.0, None, None])
STALE = credited(all_withheld(group_of([[1.0], [0.0]]), "2 newer versions"), "turn_return", policy="p")
BROKEN = group([[1.0]], least=2, failures=(failure("KeyError: 'a'", 1), failure("KeyError: 'a'", 2)))
REFUSES = (
    failure("RewardError: environment 'e', item '7': gave 3 rewards for 4 acts", 2, refuses_group=True),
)


@cases(
    ("made", "cause", "remedy"),
    [
        (OK, None, None),
        (EVALUATED, None, None),
        (MISSING, "refused: no outcome beside siblings with one", "drop or a number"),
        (group([[1.0], [1.0]], failures=REFUSES), "refused: RewardError: gave N rewards for N acts", "view"),
        (group([[1.0]] * 2, error="score_group broke: KeyError: 'x3' (env.py:3 in f)"),
         "refused: score_group broke: KeyError (env.py:3 in f)", "mend what it names"),
        (group([[None], [None]]), "unscored: nothing was scored", "`return`"),
        (group([[1.0], [1.0]]), "all alike: every sibling earned the same", "--env.group_size"),
        (group([[1.0, 0.0], [0.5, 0.5]], estimator="grpo"),
         "no credit: rewards differ, and grpo sees no difference", "--env.estimator"),
        (group([[1.0]], estimator="grpo"), "no credit: a single rollout is compared with nothing",
         "--env.group_size"),
        (BROKEN, "broken: KeyError: 'a'", "tries these groups again"),
        (STALE,
         "too old: newer weights than --env.max_staleness permits were met", "--env.max_staleness"),
    ],
)  # fmt: skip
def test_a_group_has_one_cause_with_what_to_do(made, cause, remedy):
    found = cause_of(made)
    assert (None if found is None else str(found)) == cause
    assert found is None or remedy in found.remedy


def test_one_cause_is_one_line_whichever_siblings_it_names():
    outcomes = [[1.0 if index != missing else None for index in range(27)] for missing in range(27)]
    refused = [group([[1.0]] * 27, each) for each in outcomes]
    assert len({each.reason for each in refused}) == 27
    found = diagnosis([OK, EVALUATED, *refused])
    assert found.sentence == (
        "1 of 28 groups can be learned from: 27 refused (no outcome beside siblings with one)"
    )
    assert "--missing-outcome" in found.remedy
    assert not found.is_nothing


@pytest.mark.parametrize("groups", [[], [EVALUATED], [OK, MISSING, BROKEN, BROKEN], [MISSING, BROKEN]])
def test_the_numbers_of_a_summary_give_the_same_diagnosis(groups):
    summary = Summary()
    for each in groups:
        summary.add(each)
    assert diagnosis_of(summary.values()) == diagnosis(groups)
    assert diagnosis(groups).is_nothing == (groups == [MISSING, BROKEN])


URL = "http://127.0.0.1:8000/v1/completions"


@cases(
    ("error", "shown"),
    [
        (f"PolicyError: {URL}: connection refused: 3 tries", f"PolicyError: {URL}: connection refused"),
        (f"PolicyError: {URL} answered 500: no memory, 7 GB", f"PolicyError: {URL} answered 500: no memory"),
        (f"PolicyError: {URL} answered 404: no model", f"PolicyError: {URL} answered 404: no model"),
        (f"PolicyError: {URL}/{'x' * 300}: timed out", f"PolicyError: {URL}/{'x' * 30}…: timed out"),
    ],
)  # fmt: skip
def test_causes_behind_one_address_are_told_apart(error, shown):
    assert failure(error).kind == shown


def rows_of(*rewards):
    summary = Summary()
    for each in rewards:
        summary.add(group(each))
    return dict(summary_rows(summary.values(), wall_s=0.0))


def test_the_summary_says_whether_longer_rollouts_score_more_than_their_siblings():
    rows = rows_of([[1.0], [1.0, 1.0]], [[5.0], [5.0, 1.0, 1.0], [5.0, 1.0]])
    assert rows["score against"] == "turns +1.00, tokens +1.00 (correlation among siblings)"
    # Items that are harder and take longer say nothing of siblings.
    assert "score against" not in rows_of([[1.0], [1.0]], [[0.0, 0.0], [0.0, 0.0]])
