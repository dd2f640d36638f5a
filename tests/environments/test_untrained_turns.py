"""Turns that are not trained: masked, without an advantage, and their rewards count for the others."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from environments.credit import ESTIMATORS, credited, describe, estimate
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.run.experiment import origin_of
from environments.testing import group_of
from environments.wire.payloads import Shape, pack, post_text
from environments.wire.training_rows import columns_of
from environments.wire.views import VIEWS
from tests.environments.chat.chat_env import chat, group_of_chat
from tests.tables import cases

GROUP = group_of(
    [[0.5, 0.0, 1.0], [0.5, 0.5], [0.0, None, 0.25, 0.5]],
    outcomes=[1.0, 0.0, 0.5],
    lengths=[[2, 1, 3], [1, 2], [1, 1, 1, 2]],
)


def marked(group, untrained):
    """The group with some turns left out of training, by (trajectory, turn)."""
    trajectories = [
        replace(
            each,
            turns=tuple(replace(turn, trained=(index, turn.index) not in untrained) for turn in each.turns),
        )
        for index, each in enumerate(group.trajectories)
    ]
    return replace(group, trajectories=tuple(trajectories))


async def test_the_environment_is_asked_after_each_turn_was_scored():
    seen = []

    async def train_turn(self, item, turn, ctx):
        seen.append((turn.index, len(ctx.turn_scores), turn.trained))
        return turn.index != 1

    credited = await group_of_chat(train_turn=train_turn, group_size=1, min_group_size=1)
    (trajectory,) = credited.group.trajectories
    assert seen == [(0, 1, True), (1, 2, True), (2, 3, True)]
    assert [turn.trained for turn in trajectory.turns] == [True, False, True]


@cases("estimator", sorted(name for name in ESTIMATORS if describe(name).over_step is None))
def test_each_estimator_gives_them_nothing_and_moves_no_other_advantage(estimator):
    left_out = {(0, 0), (2, 1), (2, 3)}
    plain = estimate(estimator, GROUP)
    assert estimate(estimator, marked(GROUP, left_out)) == [
        [0.0 if (index, turn) in left_out else value for turn, value in enumerate(row)]
        for index, row in enumerate(plain)
    ]


def test_turns_that_are_not_trained_are_none_without_a_peer():
    assert credited(GROUP, "turn_return", policy="p").turns_without_peer == 1
    assert credited(marked(GROUP, {(2, 3)}), "turn_return", policy="p").turns_without_peer == 0


def test_a_group_of_which_nothing_is_trained_has_no_credit_and_says_why():
    every = {(index, turn.index) for index, each in enumerate(GROUP.trajectories) for turn in each.turns}
    untrained = credited(marked(GROUP, every), "turn_return", policy="p")
    assert (untrained.status, untrained.reason) == ("no_credit", "no turn is trained")
    rows = dict(summary_rows(summary_of(untrained).values(), wall_s=1.0))
    assert rows["not trained"] == "9 turns"


def summary_of(credited):
    summary = Summary()
    summary.add(credited)
    return summary


def test_rewards_of_a_turn_that_is_not_trained_stay_where_people_and_trainers_read_them():
    group = credited(marked(GROUP, {(0, 0)}), "turn_return", policy="p")
    (columns,) = map(columns_of, VIEWS["token_advantages"](group))
    override = columns["overrides"][0]
    assert override["turn_rewards"] == [0.5, 0.0, 1.0]
    assert override["turn_advantages"][0] == 0.0
    start, end = override["turn_spans"][0]
    assert start == end
    assert [m["reward"] for m in columns["messages"][0] if m["role"] == "assistant"] == [0.5, 0.0, 1.0]
    assert columns["inference_logprobs"][0][start] == -1.0


async def test_turns_that_were_cut_are_masked_when_a_setting_says_so():
    for masked in (False, True):
        credited = await group_of_chat(max_tokens_per_turn=1, mask_truncated=masked, max_turns=2)
        turns = [turn for each in credited.group.trajectories for turn in each.turns]
        assert {turn.finish_reason for turn in turns} == {"length"}
        assert {turn.trained for turn in turns} == {not masked}


async def test_both_have_to_agree_that_a_turn_is_trained():
    credited = await group_of_chat(
        max_tokens_per_turn=1, mask_truncated=True, train_turn=lambda self, item, turn, ctx: True
    )
    assert not any(turn.trained for each in credited.group.trajectories for turn in each.turns)


def test_masking_belongs_to_the_experiment():
    origins = [origin_of(chat(mask_truncated=masked)) for masked in (False, True)]
    assert origins[0].fingerprint != origins[1].fingerprint


@pytest.mark.parametrize("given", [True, np.True_, np.bool_(False)], ids=repr)
async def test_a_bool_is_a_bool_of_numpy_too(given):
    credited = await group_of_chat(train_turn=lambda self, item, turn, ctx: given)
    assert {turn.trained for t in credited.group.trajectories for turn in t.turns} == {bool(given)}


@cases("given", [None, 1, "yes", [True], np.array([True])], ids=repr)
async def test_anything_else_costs_the_rollout_and_is_named(given):
    credited = await group_of_chat(train_turn=lambda self, item, turn, ctx: given)
    assert len(credited.group.failures) == 4
    assert "turn 1: train_turn gave" in credited.group.failures[0].error
    assert credited.group.failures[0].error.endswith("give True or False")


def test_a_rollout_of_which_nothing_is_trained_leaves_as_padding_with_its_score():
    group = credited(marked(GROUP, {(1, 0), (1, 1)}), "turn_return", policy="p")
    (part,) = pack(group, Shape(group_size=3)).parts
    post = orjson.loads(post_text(part.body))
    assert [override.get("padding", False) for override in post["overrides"]] == [False, True, False]
    assert post["scores"] == [each.score for each in GROUP.trajectories]
