"""`--env.profile`: where the time of rollouts went, in the record and in what a run shows."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.run.experiment import origin_of
from tests.environments.chat.chat_env import chat, group_of_chat
from tests.environments.talk import Talk, talk
from tests.environments.write_file import WriteFile, group_from, made
from tests.tables import cases


def profiles(credited):
    group = credited.group
    return [each.profile for each in (*group.trajectories, *group.failures)]


def counts(profile):
    return {name: each.count for name, each in profile.calls.items()}


def assert_sums(profile):
    """The own times and the rest are the wall clock, up to what is rounded."""
    own = sum(each.own_s for each in profile.calls.values())
    assert 0 <= own <= profile.wall_s + 1e-3
    assert all(0 <= each.own_s <= each.total_s + 1e-5 for each in profile.calls.values())
    assert all(each.max_s <= each.total_s + 1e-5 for each in profile.calls.values())


async def test_every_call_of_a_rollout_is_in_its_profile_once():
    credited = await group_from(made(WriteFile, profile=True, group_size=2))
    for trajectory in credited.group.trajectories:
        calls = trajectory.profile.calls
        turns = len(trajectory.turns)
        assert counts(trajectory.profile) == {
            "opening a sandbox": 1,
            "closing a sandbox": 1,
            "prepare": 1,
            "format_prompt": 1,
            "model": turns,
            "scripted_choices": turns,
            "rendering a prompt": turns,
            "tool terminal": turns - 1,
            "score_turn": turns,
            "compute_turn_rewards": 1,
            "compute_outcome": 1,
            "ctx.verify": 1,
        }
        assert calls["compute_outcome"].total_s >= calls["ctx.verify"].total_s
        assert_sums(trajectory.profile)


async def test_a_rollout_is_the_same_with_a_profile_and_without():
    origins = []
    for is_on in (False, True):
        async with chat(profile=is_on) as env:
            origins.append(origin_of(env))
    assert origins[0] == origins[1]

    def bare(credited):
        timeless = {"wall_s": 0.0, "profile": None}
        return [
            replace(each, turns=tuple(replace(turn, model_s=0, tools_s=0) for turn in each.turns), **timeless)
            for each in credited.group.trajectories
        ]

    assert bare(await group_of_chat(profile=True)) == bare(await group_of_chat())


async def test_a_judge_and_a_user_are_apart_from_the_hooks_that_ask_them_side_by_side():
    class Twice(Talk):
        async def score_turn(self, item, turn, ctx):
            asked = [ctx.judge(f"Rate {number} {turn.message.content}", turn=turn) for number in range(3)]
            return sum(await asyncio.gather(*asked))

    async with talk(Twice, profile=True) as env:
        (trajectory, *_) = (await env.run_group(env.tasks()[0])).group.trajectories
    asked = Counter(counts(trajectory.profile))
    assert (asked["judge"], asked["user"]) == (len(trajectory.judge_calls), len(trajectory.user_calls))
    assert asked["judge"] >= 3 * len(trajectory.turns)
    assert (asked["scripted_judge"], asked["scripted_user"]) == (asked["judge"], asked["user"])
    calls = trajectory.profile.calls
    assert calls["judge"].total_s >= calls["scripted_judge"].total_s
    assert_sums(trajectory.profile)


def hangs(self, item, turn, ctx):
    return asyncio.sleep(60)


def breaks(self, item, turn, ctx):
    raise KeyError("mine")


@cases("hook", [hangs, breaks])
async def test_a_hook_that_hangs_or_breaks_is_in_the_profile_of_its_failure(hook):
    credited = await group_of_chat(profile=True, score_turn=hook, hook_timeout_s=0.2)
    assert len(credited.group.failures) == 4
    for profile in profiles(credited):
        assert profile.calls["score_turn"].count == 1
        assert_sums(profile)


def shown(summary):
    return dict(summary_rows(summary.values(), wall_s=1.0))


async def test_the_summary_shows_a_table_whose_shares_are_all_of_the_time():
    credited = await group_of_chat(profile=True)
    summary = Summary()
    summary.add(credited)
    head, *lines = shown(summary)["time"].splitlines()
    assert head.split() == ["calls", "own", "time", "share", "with", "inner", "mean", "longest"]
    shares = {line.split("  ")[0]: float(line[: line.index("%")].split()[-1]) for line in lines}
    assert shares.pop("sum") == 100.0
    assert sum(shares.values()) == pytest.approx(100.0, abs=0.1 * len(shares))
    in_order = [share for name, share in shares.items() if not name.startswith("and ")]
    assert in_order == sorted(in_order, reverse=True)
