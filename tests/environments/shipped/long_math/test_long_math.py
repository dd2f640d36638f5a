import json
import math
from collections import Counter
from statistics import fmean

import pytest

from environments.policy.scripted import call, say
from environments.shipped.long_math import LongMathEnv
from environments.shipped.long_math.env import CARRIED_WEIGHT, LongMathConfig
from environments.trajectory import StopReason
from tests.environments.shipped.long_math.audit_play import (
    SHORT,
    audited,
    is_solved,
    play,
    trajectories_of,
    whole_ledger,
)
from tests.tables import cases
from tools.errors import DatasetError

WINDOW = 2048
CONDENSERS = ("none", "trim_tool_output", "keep_last_turns", "fit_context", "summarise")
ONE, TWO, LAST = SHORT["stocks"]
RIGHT = say(f"<answer>{SHORT['answer']}</answer>")


def turned(carried: object = None):
    return call("next_page", {} if carried is None else {"carried": carried})


async def share_solved(condenser: str, skill: float) -> float:
    return fmean(map(is_solved, await trajectories_of(condenser, skill)))


# The window.


@cases("skill", [0.6, 1.0])
async def test_without_a_condenser_the_window_overflows_before_the_end(skill: float):
    played = await trajectories_of("none", skill)
    overflowed = [t for t in played if t.stop_reason is StopReason.CONTEXT_OVERFLOW]
    assert len(overflowed) >= 0.8 * len(played)
    assert max(t.metrics["pages_read"] for t in played) < 24
    assert not any(map(is_solved, played))


@cases("condenser", ["keep_last_turns", "fit_context", "summarise"])
@cases("skill", [0.0, 0.6, 1.0])
async def test_with_a_condenser_it_is_finished(condenser: str, skill: float):
    played = await trajectories_of(condenser, skill)
    assert {t.stop_reason for t in played} == {StopReason.COMPLETED}


async def test_a_summary_that_keeps_what_matters_solves_it():
    assert await share_solved("summarise", 0.0) < await share_solved("summarise", 0.6) < 1.0
    assert await share_solved("summarise", 1.0) == 1.0


async def test_a_second_model_that_keeps_what_matters_solves_more():
    second = await trajectories_of("summarise_by_model", 0.6)
    assert all(turn.kind == "act" for trajectory in second for turn in trajectory.turns)
    assert fmean(map(is_solved, second)) > await share_solved("summarise", 0.6)


@cases("condenser", CONDENSERS)
async def test_no_prompt_and_no_row_is_longer_than_the_window(condenser: str):
    for skill in (0.0, 0.6, 1.0):
        for trajectory in await trajectories_of(condenser, skill):
            assert max(len(row.token_ids) for row in trajectory.rows) <= WINDOW
            assert max(turn.span.end for turn in trajectory.turns) <= WINDOW


# What a good summary earns.


async def test_a_summary_that_keeps_what_matters_earns_more_than_one_that_does_not():
    kept, lost = [], []
    for group in await audited("summarise", 0.6, max_items=6, group_size=8):
        for trajectory, advantages in zip(group.group.trajectories, group.advantages, strict=True):
            for turn, advantage in zip(trajectory.turns, advantages, strict=True):
                if turn.kind == "summary":
                    complete = turn.message.content.count(",") == 5
                    (kept if complete else lost).append(advantage)
    assert min(len(kept), len(lost)) >= 20
    assert fmean(kept) > 0.1 > 0 > fmean(lost)


# Rewards.


async def test_a_flawless_audit_earns_all_that_there_is():
    trajectory = await play(turned(), turned(ONE), turned(TWO), RIGHT)
    assert trajectory.rewards.turns == (0.0, CARRIED_WEIGHT / 2, CARRIED_WEIGHT / 2, 0.0)
    assert is_solved(trajectory)
    assert trajectory.metrics == {"pages_read": 3.0, "carried_right": 2.0}


async def test_the_answer_counts_more_the_shorter_the_context_was():
    short = await trajectories_of("fit_context", 1.0, condenser_tokens=900)
    long = await trajectories_of("fit_context", 1.0)
    parts = [fmean(t.rewards.outcome_components["context"] for t in played) for played in (short, long)]
    assert parts[0] > 1.3 * parts[1] > 0


@cases("condenser", CONDENSERS)
async def test_rewards_are_bounded(condenser: str):
    for skill in (0.0, 0.6, 1.0):
        for trajectory in await trajectories_of(condenser, skill):
            rewards = trajectory.rewards
            earned = [reward for reward in rewards.turns if reward is not None]
            assert min(earned) >= 0.0
            assert math.fsum(earned) <= CARRIED_WEIGHT + 1e-9
            assert 0.0 <= rewards.outcome <= 1.5


@cases(
    "written",
    [
        [RIGHT],
        [turned(), RIGHT],
        [turned(), turned(ONE), RIGHT],
        [turned(), turned(ONE + 1), turned(TWO + 1), turned(LAST)],
        [turned(), turned(ONE), turned(TWO), turned(LAST)],
        [turned(), turned(ONE), turned(TWO), say(f"The answer is {SHORT['answer']}.")],
        [turned(), turned(ONE), turned(TWO), say(f"{RIGHT.content} <answer>0</answer>")],
        [call("next_page", {"carried": "all"})],
        [call("next_page", {"carried": ONE, "again": True})],
        [call("next_page", '{"carried": ')],
        [call("next_page", {"carried": 10**4000})],
        [say("")],
    ],
    ids=[
        "at_once", "after_one", "before_the_last", "wrong", "never", "untagged", "two_answers",
        "text", "unknown", "broken", "huge", "empty",
    ],
)  # fmt: skip
async def test_whoever_does_less_than_the_task_earns_less(written):
    flawless = await play(turned(), turned(ONE), turned(TWO), RIGHT)
    trajectory = await play(*written)
    assert trajectory.score is not None
    assert trajectory.score < flawless.score - 0.5 + 1e-9


async def test_no_page_can_be_read_again():
    trajectory = await play(*[turned()] * 5, RIGHT)
    read = [turn.tool_results[0].content for turn in trajectory.turns[:-1]]
    assert read[:3] == SHORT["pages"]
    assert all("That was the last page." in text for text in read[3:])


# Its settings.


async def test_other_ledgers_are_evaluated_than_trained_on():
    env = LongMathEnv(LongMathConfig(ledgers=8))
    train, held_out = await env.load_items(), await env.load_eval_items()
    assert Counter(len(items) for items in (train, held_out)) == {8: 2}
    assert not {each["answer"] for each in train} & {each["id"] for each in held_out}
    assert not {each["pages"][0] for each in train} & {each["pages"][0] for each in held_out}


@cases(
    ("settings", "named"),
    [({"facts": 4}, "stores"), ({"facts": 40}, "max_turns"), ({"facts": 60, "max_turns": 50}, "max_turns")],
)
def test_a_ledger_that_nobody_could_finish_is_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        LongMathConfig(**settings)


async def test_a_dataset_that_holds_no_ledgers_is_refused(tmp_path):
    (tmp_path / "own.jsonl").write_text(json.dumps({**whole_ledger(), "stocks": [1]}) + "\n")
    env = LongMathEnv(LongMathConfig(dataset_path=str(tmp_path / "own.jsonl")))
    with pytest.raises(DatasetError, match="one for each page"):
        await env.load_items()
