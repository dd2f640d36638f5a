"""Totals: the numbers of groups as every reader gets them, and that they merge."""

import json
import math
import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.credit import credited
from environments.record.summary import CHARTED_TURNS, flat
from environments.record.totals import MAX_INDICES, MAX_NAMES, MAX_TEXTS, NamedSpreads, Spread, Summary, Tally
from environments.testing import group_of
from environments.trajectory import Condensed, Failure, JudgeCall
from tests.environments.record.any_group import all_withheld
from tests.tables import cases
from tools.calls import ToolResult


def summary_of(*groups):
    summary = Summary()
    for group in groups:
        summary.add(group)
    return summary


def of(*groups, estimator="turn_return", **params):
    return summary_of(*(credited(group, estimator, policy="p", params=params) for group in groups)).values()


def weights(*groups):
    return of(*groups)["weights"]


def sampled(*rows, **changes):
    """A group whose turns are of these versions, a letter each; `-` is unknown."""
    group = group_of([[float(index)] * len(row) for index, row in enumerate(rows)])
    return replace(
        group,
        trajectories=tuple(
            replace(
                each,
                turns=tuple(
                    replace(turn, weight_version=None if version == "-" else version)
                    for turn, version in zip(each.turns, row, strict=True)
                ),
            )
            for each, row in zip(group.trajectories, rows, strict=True)
        ),
        **changes,
    )


def at(numbers, name):
    return [each[name] for each in numbers["by_turn"]]


RAGGED = group_of([[1.0, 0.0, 2.0], [0.0, 0.0], [2.0]])


def test_numbers_by_turn_are_of_the_rollouts_that_are_left():
    numbers = of(RAGGED, group_of([[1.0]]), singleton="raw")
    assert at(numbers, "rollouts") == [4, 2, 1]
    assert at(numbers, "without_peer") == [1, 0, 1]
    assert numbers["credit"] == {"turns": 7, "without_peer": 2, "untrained": 0}
    first, second, _ = at(of(RAGGED), "reward")
    assert first == {"count": 3, "mean": 1.0, "sd": 1.0, "min": 0.0, "max": 2.0}
    assert (second["mean"], second["sd"]) == (0.0, 0.0)
    firsts = [row[0] for row in credited(RAGGED, "turn_return", policy="p").advantages]
    assert at(of(RAGGED), "advantage")[0]["max"] == max(firsts)


def test_a_turn_that_was_not_scored_is_a_rollout_and_no_reward():
    numbers = of(group_of([[None, 1.0], [0.0, 1.0]]))
    assert (at(numbers, "rollouts"), at(numbers, "scored")) == ([2, 2], [1, 2])


def test_turns_without_a_peer_are_unknown_where_the_estimator_is():
    done = replace(credited(RAGGED, "turn_return", policy="p"), estimator="somebodys")
    numbers = summary_of(done).values()
    assert (numbers["credit"]["without_peer"], at(numbers, "without_peer")) == (1, [None, None, None])


def test_a_group_has_no_spread_where_all_siblings_would_earn_the_same():
    numbers = of(group_of([[1.0, 0.5], [0.0, 0.5]]), group_of([[1.0, 0.1], [0.0, 0.2]]))
    assert at(numbers, "groups") == [2, 2]
    assert at(numbers, "groups_without_spread") == [0, 1]
    assert at(of(RAGGED), "groups") == [1, 1, 0]  # one sibling alone has none


def test_untrained_turns_and_failed_and_stale_groups_add_no_advantages():
    first, *others = RAGGED.trajectories
    masked = replace(first, turns=tuple(replace(turn, trained=False) for turn in first.turns))
    numbers = of(replace(RAGGED, trajectories=(masked, *others)))
    assert [each["count"] for each in at(numbers, "advantage")] == [2, 1, 0]
    for without in (replace(RAGGED, error="score_group broke"), all_withheld(RAGGED, "stale: x")):
        numbers = of(without)
        assert (numbers["credit"]["turns"], at(numbers, "advantage")[0]["count"]) == (0, 0)
        assert at(numbers, "reward")[0]["count"] == 3


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


@cases("estimator", ["gigpo", "grpo", "igpo", "rloo", "turn_gae", "turn_return"])
def test_totals_of_numbers_of_any_size_are_json(estimator):
    huge = group_of([[1e100, -1e100, 5e-324], [1e100], [None, 1e100]])
    metric = replace(huge.trajectories[0], metrics={"m": 1e308})
    numbers = of(*[replace(huge, trajectories=(metric,) * 3)] * 5, estimator=estimator)
    json.dumps(numbers, allow_nan=False)


def test_a_summary_of_nothing_has_numbers():
    numbers = Summary().values()
    assert (numbers["score"]["mean"], numbers["by_turn"]) == (None, [])
    json.dumps(numbers, allow_nan=False)


def test_turns_failures_texts_and_names_without_end_have_few_entries_and_lose_none():
    numbers = of(group_of([[1.0] * 1000, [0.0] * 1000]))
    assert len(numbers["by_turn"]) == MAX_INDICES
    assert sum(at(numbers, "rollouts")) == 2000
    assert [each.get("later", False) for each in numbers["by_turn"][-2:]] == [False, True]

    numbers = of(replace(RAGGED, failures=tuple(map(failure, range(3, 1000)))))
    assert len(numbers["failure_classes"]) == MAX_NAMES + 1
    assert numbers["rollouts"] == {"kept": 3, "dropped": 997}

    counts = Tally.of([f"rare {n}" for n in range(100)] + ["often"] * 3).counts()
    assert (counts["often"], counts["other"], len(counts)) == (3, 81, MAX_NAMES + 1)

    made = Tally()
    for number in range(3 * MAX_TEXTS):
        made = made.merge(Tally.of([f"{number}"]))
    assert len(made) == MAX_TEXTS + 1
    assert sum(made.counts().values()) == 3 * MAX_TEXTS

    named = NamedSpreads.of({f"{number:04}": 1.0} for number in range(1000))
    assert len(named) == MAX_NAMES + 1
    assert named["other names"].count == 1000 - MAX_NAMES


def test_a_name_is_one_line_and_cut():
    assert list(NamedSpreads.of([{"a\n\x1b[2J b": 1.0, "c" * 1000: 2.0}])) == ["a [2J b", f"{'c' * 39}…"]


def test_flat_numbers_are_those_of_the_totals_under_names_of_their_kind():
    (one,) = group_of([[0.0]]).trajectories
    rewards = replace(one.rewards, outcome=2.0, outcome_components={"p": 2.0}, outcome_raw={"p": 4.0})
    named = flat(of(replace(RAGGED, trajectories=(one.with_rewards(rewards, {"m": 1.0}),))), "eval")
    kinds = {name: named[f"eval/{name}"] for name in ("part/p", "raw/p", "metric/m")}
    assert kinds == {"part/p": 2.0, "raw/p": 4.0, "metric/m": 1.0}

    numbers = of(RAGGED)
    named = flat(numbers, "run")
    assert named["run/score/mean"] == numbers["score"]["mean"]
    assert (named["run/turn/03/reward"], named["run/turn/03/without_peer"]) == (2.0, 1.0)
    assert named["run/tokens/sampled"] == numbers["tokens"]["sampled"]


def test_flat_numbers_leave_out_what_is_unknown_and_late_turns():
    named = flat(of(group_of([[1.0] * 50])), "run")
    assert not any("/sd" in name for name in named)
    assert f"run/turn/{CHARTED_TURNS}/reward" in named
    assert f"run/turn/{CHARTED_TURNS + 1}/reward" not in named


def test_groups_and_rollouts_are_counted_by_how_many_versions_sampled_them():
    values = weights(sampled("aa", "a"), sampled("ab", "b"), sampled("abc", "b"), sampled("a-", "a"))
    assert values["groups"] == {"1": 1, "2": 1, "more": 1, "unknown": 1}
    assert values["rollouts"] == {"1": 5, "2": 1, "more": 1, "unknown": 1}
    assert (
        flat(of(sampled("ab", "a")), "group").items()
        >= {
            "group/weights/versions": 2.0,
            "group/weights/groups/2": 1.0,
            "group/weights/rollouts/1": 1.0,
            "group/weights/stale": 0.0,
        }.items()
    )


def test_the_newest_version_is_the_one_that_was_seen_first_last():
    values = weights(sampled("a", "b"), sampled("b", "a"))
    assert (values["versions"], values["oldest"], values["newest"]) == (2, "a", "b")
    assert sampled("ab", "c").weight_versions == ("a", "c", "b")


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_the_deviation_is_that_of_a_sample(values):
    assert Spread.of(values).sd == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)


def test_a_spread_has_what_is_known_and_nothing_is_not_zero():
    assert Spread.of([1e9 + 1, 1e9 + 2, 1e9 + 3]).sd == pytest.approx(1.0)
    assert Spread.of([2.0]).values() == {"count": 1, "mean": 2.0, "sd": None, "min": 2.0, "max": 2.0}
    assert Spread.of([]).values() == {"count": 0, "mean": None, "sd": None, "min": None, "max": None}
    huge = Spread.of([*[1e308] * 3, -1e308]).values()
    assert (huge["sd"], huge["max"]) == (None, 1e308)


def varied(number):
    """A group with something of everything, of texts and names beyond those that are kept."""
    rng = random.Random(number)
    lengths = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
    rewards = [[rng.choice([None, rng.uniform(-1, 1)]) for _ in range(length)] for length in lengths]
    call = JudgeCall(hook="h", model="m", messages=(), answer="a", usage={"prompt_tokens": rng.randint(0, 9)})
    failures = tuple(
        Failure(sibling=9 + n, stop_reason=None, error=f"E{n % 3}: {rng.random()}", traceback="", turns=0)
        for n in range(rng.randint(0, 120))
    )
    condensed = Condensed(cause="c", tokens_before=100, tokens_after=rng.randint(1, 99), seconds=rng.random())
    group = group_of(rewards)
    group = replace(
        group,
        failures=failures,
        judge_calls=(call,) * rng.randint(0, 2),
        trajectories=tuple(
            replace(
                each,
                wall_s=rng.random(),
                stale=rng.choice([None, None, "stale: x"]),
                metrics={f"m{rng.randint(0, 60)}": rng.gauss(10.0, 1.0)},
                turns=tuple(
                    replace(
                        turn,
                        weight_version=rng.choice([None, "v1", f"v{number}"]),
                        fork=rng.choice([None, f"template: {rng.random()}"]),
                        condensed=rng.choice([None, condensed]),
                        model_s=rng.random(),
                    )
                    for turn in each.turns
                ),
            )
            for each in group.trajectories
        ),
    )
    return credited(group, "turn_return", policy="p")


def assert_equal(one, other, path=""):
    """Numbers of JSON: whole ones and texts exactly, and in order; others to 1e-12."""
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for name in one:
            assert_equal(one[name], other[name], f"{path}/{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{path}/{index}")
    elif isinstance(one, float):
        assert math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12), (path, one, other)
    else:
        assert one == other, path


@given(st.lists(st.integers(0, 16), max_size=6), st.booleans())
def test_merging_summaries_is_adding_their_groups(cuts, nested):
    parts, bounds = [], [0, *sorted(cuts), 16]
    for start, end in pairwise(bounds):
        parts.append(summary_of(*GROUPS[start:end]))
    while len(parts) > 1:
        index = len(parts) - 2 if nested else 0
        parts[index].merge(parts.pop(index + 1))
    assert_equal(parts[0].values(), WHOLE)


def test_a_merged_summary_goes_on_without_the_other():
    one, other = summary_of(GROUPS[0]), summary_of(GROUPS[1])
    before = other.values()
    one.merge(other)
    one.add(GROUPS[2])
    assert other.values() == before


GROUPS = [*map(varied, range(16))]
WHOLE = summary_of(*GROUPS).values()
