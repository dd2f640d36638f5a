"""process_supervision and progress where golden vectors do not look."""

from environments.credit import process_supervision, progress
from environments.testing import group_of


def test_an_unscored_turn_stays_out_of_the_statistics():
    assert process_supervision(group_of([[2.0, None], [0.0]])) == [[1.0, 0.0], [-1.0]]


def test_a_further_turn_without_reward_costs_its_author_though_no_return_changes():
    short = process_supervision(group_of([[1.0], [0.0]]))
    longer = process_supervision(group_of([[1.0, 0.0], [0.0]]))

    assert longer[0][0] < short[0][0]


def test_progress_that_is_lost_again_is_debt():
    assert progress(group_of([[0.5, 0.2]]), gamma=0.0)[0][1] < 0


def test_what_an_unscored_turn_achieved_is_shared_out_from_the_next_scored_one():
    first, second = progress(group_of([[None, 3.0]]), gamma=0.5)[0]

    assert (first, second) == (1.0, 2.0)


def test_unscored_turns_at_the_end_earn_nothing():
    assert progress(group_of([[1.0, None]])) == [[1.0, 0.0]]


def test_a_scalar_environment_s_outcome_is_smeared_over_its_turns():
    group = group_of(None, outcomes=[3.0], lengths=[[1, 1]])

    assert progress(group, gamma=0.5) == [[1.0, 2.0]]
