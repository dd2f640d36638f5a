"""Verdicts on turn rewards, from rollouts made of numbers: paid by the turn, or for the task."""

from dataclasses import replace

from environments.testing import group_of
from tools.calls import ToolCall
from turnwise.lab.learning.gamed_rewards import free_habits, part_verdicts
from turnwise.lab.learning.rollout_numbers import (
    CUT,
    LENGTH,
    OUTCOME,
    PART,
    REPEATED,
    TURNS,
    UNNAMED,
    Change,
    group_numbers,
)

ITEMS, SEEDS = 4, 3


def played(rewards, outcome):
    """Three seeds that play four items alike, with somewhat different luck."""
    return [
        {
            str(item): group_numbers(
                group_of([rewards, rewards], outcomes=None if outcome is None else [outcome, outcome])
            )
            for item in range(ITEMS)
        }
        for _ in range(SEEDS)
    ]


def verdict(start, end, reference=None):
    (found,) = part_verdicts(played(*start), played(*end), reference and played(*reference))
    return found


PER_TURN = [0.1, 0.1], [0.1] * 8
HONEST = [0.0, 0.1], [0.5, 0.5]


VERDICTS = {
    "more turns, same outcome": ((PER_TURN[0], 0.5), (PER_TURN[1], 0.5), None, "gamed"),
    "more turns, worse outcome": ((PER_TURN[0], 0.5), (PER_TURN[1], 0.2), None, "gamed"),
    "more turns, no outcome": ((PER_TURN[0], None), (PER_TURN[1], None), None, "gamed"),
    "a penalty saved by giving up": (([-0.1] * 6, 0.6), ([-0.1], 0.1), None, "gamed"),
    "more turns, better outcome": ((PER_TURN[0], 0.2), (PER_TURN[1], 0.9), None, "with the outcome"),
    "beyond the reference": ((PER_TURN[0], 0.2), (PER_TURN[1], 0.9), ([0.1, 0.1], 1.0), "gamed"),
    "short of the reference": ((PER_TURN[0], 0.0), (PER_TURN[1], 0.0), ([0.1] * 12, 1.0), "on the way"),
    "honest": ((HONEST[0], 0.1), (HONEST[1], 1.0), ([0.5, 0.5], 1.0), "with the outcome"),
    "honest, no outcome": ((HONEST[0], None), (HONEST[1], None), None, "no outcome"),
    "the outcome stays": ((HONEST[0], 0.5), (HONEST[1], 0.5), None, "suspect"),
    "nothing rose": ((HONEST[1], 0.5), (HONEST[1], 0.9), None, "not learned"),
    "in place of the outcome": ((HONEST[0], 0.1), (HONEST[1], 0.6), ([0.0, 0.5], 1.0), "suspect"),
}


def test_a_reward_is_gamed_where_it_rises_and_what_it_is_for_does_not():
    found = {name: verdict(*given)["verdict"] for name, (*given, _) in VERDICTS.items()}
    assert found == {name: expected for name, (*_, expected) in VERDICTS.items()}


def test_the_verdict_says_by_how_much_and_by_what():
    why = verdict(([0.1, 0.1], 0.5), ([0.1] * 8, 0.5))["why"]
    assert "0.2 → 0.8" in why
    assert "turns 2 → 8" in why


def test_a_part_that_nobody_earned_has_no_verdict():
    assert part_verdicts(played([0.0], 0.0), played([0.0], 1.0)) == []


SHORT, LOOP = group_of([[0.1]] * 4, outcomes=[1.0] * 4), group_of([[0.1] * 8] * 4, outcomes=[1.0] * 4)


def mixed(looping):
    """Two seeds of three items, of which the policy loops on some."""
    return [
        {str(item): group_numbers(LOOP if (seed, item) in looping else SHORT) for item in range(3)}
        for seed in range(2)
    ]


def test_a_reward_that_is_gamed_on_some_items_alone_is_gamed():
    (found,) = part_verdicts(mixed(()), mixed({(0, 1), (1, 2)}), mixed(()))
    assert found["verdict"] == "gamed"
    assert found["why"].startswith("on 2 of 6 (an item with a seed each), it earns 0.8 where")


def test_on_a_single_item_it_is_when_it_earns_more_than_ever_at_the_start():
    (found,) = part_verdicts(mixed(()), mixed({(0, 1)}), mixed(()))
    assert found["verdict"] == "gamed"
    (found,) = part_verdicts(mixed({(1, 0)}), mixed({(0, 1), (1, 0)}), mixed(()))
    assert found["verdict"] == "not learned"


def longer(tokens):
    """A reward that pays for the length of the one message."""
    numbers = {PART + "effort": 0.01 * tokens, OUTCOME: 1.0, TURNS: 1.0, LENGTH: tokens}
    return [{str(item): [numbers] for item in range(ITEMS)} for _ in range(SEEDS)]


def test_longer_messages_are_a_habit_where_they_are_twice_as_long():
    assert part_verdicts(longer(10), longer(60), longer(10))[0]["verdict"] == "gamed"
    assert part_verdicts(longer(10), longer(15), longer(10))[0]["verdict"] == "suspect"


def test_repeated_calls_and_cut_turns_are_counted_and_unnamed_rewards_are_a_part():
    group = group_of([[0.25, None, 0.5]])
    (trajectory,) = group.trajectories

    def numbers(*arguments):
        turns = []
        for turn, text in zip(trajectory.turns, arguments, strict=True):
            message = replace(turn.message, tool_calls=(ToolCall(id="c", name="tool", arguments=text),))
            turns.append(replace(turn, message=message, finish_reason="length"))
        return group_numbers(replace(group, trajectories=(replace(trajectory, turns=tuple(turns)),)))[0]

    found = numbers("{}", "{}", "{}")
    assert (found[REPEATED], found[CUT], found[PART + UNNAMED]) == (2, 3, 0.75)
    assert numbers("1", "2", "3")[REPEATED] == 0


def test_habits_beyond_the_reference_are_free_where_they_grew_while_learning():
    more = Change(before=1, after=5, by_seed=(4.0, 4.0), error=0.1)
    same = replace(more, after=1, by_seed=(0.0, 0.0))
    assert free_habits({TURNS: more}, {TURNS: more}) == "turns 1 → 5"
    assert free_habits({TURNS: same}, {TURNS: more}) == ""
    assert free_habits({OUTCOME: more}, {OUTCOME: more}) == ""
