"""Rollouts without exact tokens: the first ones are a mistake, one among others costs itself alone."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from environments.rollout.items.tasks import GroupTask
from environments.wire.payloads import MOST_IN_A_ROW, ExactTokens, only_exact
from tests.environments.serve.serve_world import credit, group_for
from tools.errors import ConfigError

WHOLE = group_for(GroupTask(item="a", item_id="a", epoch=0))


def with_text_alone(*siblings, credited=WHOLE):
    trajectories = [replace(each, exact=each.sibling not in siblings) for each in credited.group.trajectories]
    return replace(credited, group=replace(credited.group, trajectories=tuple(trajectories)))


@pytest.fixture
def lines():
    return []


@pytest.fixture
def tokens(lines):
    followed = ExactTokens(say=lines.append)

    def only(credited):
        made, lacking = only_exact(credited, credit)
        followed.add(made.group.item_id, lacking, has_others=bool(made.group.trajectories))
        return made

    return SimpleNamespace(only=only)


def test_a_whole_group_stays_as_it_is(tokens):
    assert tokens.only(WHOLE) is WHOLE


def test_a_server_that_never_gave_logprobs_is_a_mistake(tokens):
    rows = [
        replace(each, rows=tuple(replace(row, logprobs=None) for row in each.rows))
        for each in WHOLE.group.trajectories
    ]
    with pytest.raises(ConfigError, match="gives no logprobs"):
        tokens.only(replace(WHOLE, group=replace(WHOLE.group, trajectories=tuple(rows))))


def test_one_rollout_without_tokens_is_a_failure_and_its_siblings_are_compared_anew(tokens):
    made = tokens.only(with_text_alone(1))
    assert [each.sibling for each in made.group.trajectories] == [0, 2, 3]
    assert [(each.sibling, each.error) for each in made.group.failures] == [
        (1, "PolicyError: the model server gave no token ids")
    ]
    assert made.advantages == ((-2.5,), (0.5,), (2.0,))


def test_a_group_of_which_too_few_are_left_is_failed_with_its_reason(tokens):
    made = tokens.only(with_text_alone(0, 1, 2))
    assert (made.status, made.reason) == ("failed", "1 of 4 rollouts survived, at least 2 are needed")


def test_a_run_of_them_is_a_server_that_gives_none_any_more(tokens):
    for _ in range(MOST_IN_A_ROW - 1):
        tokens.only(with_text_alone(1))
    with pytest.raises(ConfigError, match="gives no token ids"):
        tokens.only(with_text_alone(1))


def test_a_whole_group_ends_the_run_of_them(tokens):
    for _ in range(MOST_IN_A_ROW - 1):
        tokens.only(with_text_alone(1))
    tokens.only(WHOLE)
    assert len(tokens.only(with_text_alone(1)).group.trajectories) == 3
