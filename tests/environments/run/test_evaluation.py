import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.run.evaluation import (
    ItemTotals,
    evaluate_results,
    pass_at_k,
    sample_row,
)
from environments.testing import group_of


def item(*scores, turns=None, dropped=0):
    """One that passed where its score is 1."""
    turns = turns or (1,) * len(scores)
    passed = [score >= 1 for score in scores]
    return ItemTotals(
        rollouts=len(scores),
        lost=dropped,
        scored=len(scores),
        score_total=sum(scores),
        judged=len(scores),
        passed=sum(passed),
        turns=sum(turns),
        turns_passed=sum(count for count, has_passed in zip(turns, passed, strict=True) if has_passed),
    )


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_k_subsets_with_a_pass(rollouts, data):
    passed = data.draw(st.integers(0, rollouts))
    k = data.draw(st.integers(1, rollouts))
    outcomes = [True] * passed + [False] * (rollouts - passed)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(rollouts, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_needs_k_rollouts():
    for k in (0, 5):
        with pytest.raises(ValueError, match="between 1 and the 4 rollouts"):
            pass_at_k(4, 1, k)


def test_each_item_weighs_the_same_however_many_rollouts_it_kept():
    evaluation = evaluate_results([item(1.0, 1.0, 1.0), item(0.0)], max_k=3)
    assert evaluation.score.mean == 0.5


def test_pass_at_k_counts_only_items_with_k_rollouts_and_ends_where_there_are_none():
    evaluation = evaluate_results([item(1.0, 0.0), item(0.0)], max_k=2)
    assert [(e.mean, e.items) for e in evaluation.pass_at] == [(0.25, 2), (1.0, 1)]
    assert len(evaluate_results([item(1.0, 0.0, dropped=2)], max_k=4).pass_at) == 2


def test_a_dropped_rollout_is_no_zero_and_an_item_without_rollouts_is_lost():
    evaluation = evaluate_results([item(1.0, dropped=3), item(dropped=2)], max_k=4)
    assert (evaluation.score.mean, evaluation.dropped) == (1.0, 5)
    assert (evaluation.items, evaluation.lost_items) == (1, 1)
    assert evaluate_results([item(dropped=4)], max_k=4) is None


def test_an_interval_needs_two_items_and_repeats_with_its_seed():
    score = evaluate_results([item(1.0, 0.0)], max_k=2).score
    assert (score.low, score.high) == (None, None)
    score = evaluate_results([item(0.5), item(0.5)], max_k=1).score
    assert (score.low, score.high) == (0.5, 0.5)
    results = [item(float(n % 3 == 0)) for n in range(30)]
    assert evaluate_results(results, max_k=1, seed=3) == evaluate_results(results, max_k=1, seed=3)


def test_an_item_of_which_nothing_was_scored_moves_no_mean_and_has_not_passed():
    unscored = ItemTotals(rollouts=2, judged=2, turns=2)
    evaluation = evaluate_results([item(1.0), unscored], max_k=1)
    assert (evaluation.score.mean, evaluation.score.items, evaluation.items) == (1.0, 1, 2)
    assert evaluation.pass_at[0].mean == 0.5


def test_metrics_name_every_k_and_leave_out_what_is_unknown():
    metrics = evaluate_results([item(1.0, 0.0), item(0.0, 0.0)], max_k=2).metrics()
    assert (metrics["eval/mean_score"], metrics["eval/pass@1"], metrics["eval/pass@2"]) == (0.25, 0.25, 0.5)
    unknown = {"eval/turns_not_passed", "eval/mean_score_low"}
    assert not unknown & evaluate_results([item(1.0)], max_k=1).metrics().keys()


def test_a_sample_keeps_a_turn_that_was_not_scored_apart_from_zero():
    (trajectory,) = group_of([[None, 0.0]]).trajectories
    assert sample_row(trajectory)["turn_rewards"] == [None, 0.0]
