"""Aggregates: the numbers of a run as every reader gets them."""

import json
from dataclasses import replace

import pytest

from environments.credit import credited
from environments.record.aggregates import CHARTED_TURNS, aggregates, flat
from environments.record.summary import Summary
from environments.record.tally import MAX_TEXTS
from environments.record.turn_totals import MAX_INDICES
from environments.testing import group_of
from environments.trajectory import Failure, JudgeCall
from tools.calls import ToolResult


def of(*groups, estimator="turn_return", **params):
    summary = Summary()
    for group in groups:
        summary.add(credited(group, estimator, policy="p", params=params))
    return aggregates(summary)


def at(numbers, name):
    return [each[name] for each in numbers["by_turn"]]


RAGGED = group_of([[1.0, 0.0, 2.0], [0.0, 0.0], [2.0]])


def test_rollouts_that_are_left_are_counted_by_turn():
    assert at(of(RAGGED, RAGGED), "rollouts") == [6, 4, 2]


def test_rewards_have_their_spread_by_turn():
    first, second, _ = at(of(RAGGED), "reward")
    assert first == {"count": 3, "mean": 1.0, "sd": 1.0, "min": 0.0, "max": 2.0}
    assert (second["mean"], second["sd"]) == (0.0, 0.0)


def test_a_turn_that_was_not_scored_is_a_rollout_and_no_reward():
    numbers = of(group_of([[None, 1.0], [0.0, 1.0]]))
    assert (at(numbers, "rollouts"), at(numbers, "scored")) == ([2, 2], [1, 2])


def test_advantages_by_turn_are_those_of_the_record():
    done = credited(RAGGED, "turn_return", policy="p")
    firsts = [row[0] for row in done.advantages]
    assert at(of(RAGGED), "advantage")[0]["max"] == max(firsts)


def test_turns_without_a_peer_have_their_index():
    numbers = of(RAGGED, group_of([[1.0]]))
    assert at(numbers, "without_peer") == [1, 0, 1]
    assert numbers["credit"] == {"turns": 7, "without_peer": 2, "untrained": 0}


def test_turns_without_a_peer_are_unknown_where_nobody_knows_the_estimator():
    done = replace(credited(RAGGED, "turn_return", policy="p"), estimator="somebodys")
    summary = Summary()
    summary.add(done)
    numbers = aggregates(summary)
    assert (numbers["credit"]["without_peer"], at(numbers, "without_peer")) == (1, [None, None, None])


def test_a_group_has_no_spread_where_all_siblings_would_earn_the_same():
    numbers = of(group_of([[1.0, 0.5], [0.0, 0.5]]), group_of([[1.0, 0.1], [0.0, 0.2]]))
    assert at(numbers, "groups") == [2, 2]
    assert at(numbers, "groups_without_spread") == [0, 1]


def test_a_turn_that_one_sibling_alone_reached_says_nothing_of_spread():
    assert at(of(RAGGED), "groups") == [1, 1, 0]


def test_untrained_turns_have_no_advantage_to_speak_of():
    first, *others = RAGGED.trajectories
    masked = replace(first, turns=tuple(replace(turn, trained=False) for turn in first.turns))
    numbers = of(replace(RAGGED, trajectories=(masked, *others)))
    assert [each["count"] for each in at(numbers, "advantage")] == [2, 1, 0]


def test_a_failed_group_has_rewards_and_no_advantages():
    lost = replace(RAGGED, error="score_group broke")
    numbers = of(lost)
    assert numbers["groups"] == {"done": 1, "failed": 1}
    assert at(numbers, "reward")[0]["count"] == 3
    assert at(numbers, "advantage")[0]["count"] == 0


def test_summaries_are_no_acts_and_have_tokens_of_their_own():
    group = group_of([[1.0, None, 0.0]] * 2, kinds=[["act", "summary", "act"]] * 2)
    numbers = of(group)
    assert (at(numbers, "rollouts"), at(numbers, "reward")[1]["mean"]) == ([2, 2], 0.0)
    assert numbers["tokens"]["sampled"] == numbers["tokens"]["acts"] + numbers["tokens"]["summaries"]
    assert numbers["tokens"]["summaries"] == 2


def test_tool_errors_are_counted_by_turn_and_kind():
    group = group_of([[1.0, 0.0], [0.0, 0.0]])
    one = group.trajectories[0]
    broken = ToolResult(call_id="c", name="t", content="", error="invalid_json")
    turns = (one.turns[0], replace(one.turns[1], tool_results=(broken, replace(broken, error=None))))
    numbers = of(replace(group, trajectories=(replace(one, turns=turns), group.trajectories[1])))
    assert (at(numbers, "tool_calls"), at(numbers, "tool_errors")) == ([2, 2], [0, 1])
    assert numbers["tools"] == {"calls": 4, "errors": {"invalid_json": 1}}


def failure(number, **fields):
    return Failure(sibling=number, stop_reason=None, error=f"E{number}: x", traceback="", turns=0, **fields)


def test_what_a_lost_sibling_asked_is_paid_all_the_same():
    call = JudgeCall(
        hook="h", model="m", messages=(), answer="a", usage={"prompt_tokens": 7, "completion_tokens": 2}
    )
    numbers = of(replace(RAGGED, failures=(failure(3, judge_calls=(call,)),), judge_calls=(call,)))
    assert numbers["cost"]["judge"] == {"answers": 2, "prompt_tokens": 14, "completion_tokens": 4}


@pytest.mark.parametrize("estimator", ["gigpo", "grpo", "progress", "rloo", "turn_gae", "turn_return"])
def test_aggregates_of_numbers_of_any_size_are_json(estimator):
    huge = group_of([[1e100, -1e100, 5e-324], [1e100], [None, 1e100]])
    metric = replace(huge.trajectories[0], metrics={"m": 1e308})
    numbers = of(*[replace(huge, trajectories=(metric,) * 3)] * 5, estimator=estimator)
    json.dumps(numbers, allow_nan=False)


def test_a_summary_that_saw_nothing_has_aggregates():
    numbers = aggregates(Summary())
    assert (numbers["score"]["mean"], numbers["by_turn"]) == (None, [])
    json.dumps(numbers, allow_nan=False)


def test_a_rollout_of_endless_turns_has_few_entries_and_loses_none():
    numbers = of(group_of([[1.0] * 1000, [0.0] * 1000]))
    assert len(numbers["by_turn"]) == MAX_INDICES
    assert sum(at(numbers, "rollouts")) == 2000
    assert [each.get("later", False) for each in numbers["by_turn"][-2:]] == [False, True]


def test_classes_of_failures_without_end_are_few():
    numbers = of(replace(RAGGED, failures=tuple(map(failure, range(3, 1000)))))
    assert len(numbers["failure_classes"]) <= 2 * MAX_TEXTS + 1
    assert numbers["rollouts"] == {"kept": 3, "dropped": 997}


def test_flat_numbers_are_those_of_the_aggregates():
    numbers = of(RAGGED)
    named = flat(numbers, "run")
    assert named["run/score/mean"] == numbers["score"]["mean"]
    assert named["run/turn/03/reward"] == 2.0
    assert named["run/turn/03/without_peer"] == 1.0
    assert named["run/tokens/sampled"] == numbers["tokens"]["sampled"]


def test_parts_and_metrics_are_named_by_their_kind():
    (one,) = group_of([[0.0]]).trajectories
    rewards = replace(one.rewards, outcome=2.0, outcome_components={"p": 2.0}, outcome_raw={"p": 4.0})
    named = flat(of(replace(RAGGED, trajectories=(one.with_rewards(rewards, {"m": 1.0}),))), "eval")
    kinds = {name: named[f"eval/{name}"] for name in ("part/p", "raw/p", "metric/m")}
    assert kinds == {"part/p": 2.0, "raw/p": 4.0, "metric/m": 1.0}


def test_flat_numbers_leave_out_what_is_unknown_and_late_turns():
    named = flat(of(group_of([[1.0] * 50])), "run")
    assert not any("/sd" in name for name in named)
    assert f"run/turn/{CHARTED_TURNS}/reward" in named
    assert f"run/turn/{CHARTED_TURNS + 1}/reward" not in named
