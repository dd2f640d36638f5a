"""`--env.profile`: where the time of rollouts went, in the record and in what a run shows."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import orjson
import pytest
from rich.console import Console

from environments.policy.scripted import Choice, call, say
from environments.record.recorder import read_contents, read_groups
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.rollout.context import keep_last_turns
from environments.run.evaluation_run import evaluate
from environments.run.experiment import origin_of
from environments.run.group_source import note_of
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.run.tracking import group_numbers
from tests.environments.chat.chat_env import Chat, chat, group_of_chat
from tests.environments.talk import Talk, talk
from tests.environments.write_file import Breaking, WriteFile, group_from, made, quiet
from tests.tables import cases
from tools.registry import Toolset, tool


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


async def test_without_it_a_rollout_has_no_profile_and_its_line_no_such_field(tmp_path):
    path = tmp_path / "r.jsonl"
    await process(chat(data_path_to_save_groups=str(path)), quiet())
    assert b"profile" not in path.read_bytes()
    assert {each for credited in read_groups(path) for each in profiles(credited)} == {None}


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


async def test_a_record_says_what_the_rollouts_say_and_mixes_with_groups_that_have_none(tmp_path):
    path = tmp_path / "r.jsonl"
    fields = {"data_path_to_save_groups": str(path)}
    await process(chat(max_items=1, **fields), quiet())
    assert await process(chat(profile=True, **fields), quiet()) == 0
    first, *others = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert "profile" not in first["trajectories"][0]
    assert len(others) == 2
    for line, credited in zip(others, list(read_groups(path))[1:], strict=True):
        for fields, profile in zip(line["trajectories"], profiles(credited), strict=True):
            assert fields["profile"]["wall_s"] == profile.wall_s
            assert fields["profile"]["calls"]["score_turn"]["count"] == profile.calls["score_turn"].count == 3


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


async def test_a_summary_that_a_condenser_asks_the_model_for_is_not_the_condensers_time():
    credited = await group_of_chat(
        profile=True,
        condenser=["summarise"],
        condenser_turns=1,
        scripted_summary=lambda *_: "so far: colours",
    )
    for trajectory in credited.group.trajectories:
        calls = trajectory.profile.calls
        summaries = sum(turn.kind == "summary" for turn in trajectory.turns)
        assert calls["model's summary"].count == summaries > 0
        assert calls["model"].count == len(trajectory.acts)
        condenser = calls["condenser summarise"]
        assert condenser.total_s - condenser.own_s >= calls["model's summary"].total_s - 1e-5
        assert_sums(trajectory.profile)


async def test_tools_are_named_as_the_environment_names_them_and_not_as_the_model_does():
    @tool(parallel=True)
    async def look(path: str) -> str:
        """Look.

        Args:
            path: at what.
        """
        return path

    class Looking(Chat):
        tools = (Toolset("look", (look,)),)

        def scripted_choices(self, item, messages, tools, skill):
            calls = (call("look", {"path": "a"}), call("look", {"path": "b"}))
            unknown = call(f"made_up_{len(messages)}", {})
            both = replace(calls[0], tool_calls=(*calls[0].tool_calls, *calls[1].tool_calls))
            turns = sum(message.role == "assistant" for message in messages)
            return [Choice(probability=1.0, message=(both, unknown, say("red"))[turns])]

    (trajectory, *_) = (await group_of_chat(Looking, profile=True)).group.trajectories
    assert {name: n for name, n in counts(trajectory.profile).items() if "tool" in name} == {"tool look": 2}
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


async def test_the_summary_has_the_time_of_failed_rollouts_too(tmp_path):
    credited = await group_from(made(Breaking, profile=True))
    summary = Summary()
    summary.add(credited)
    time = summary.values()["time"]
    assert time["calls"]["compute_turn_rewards"] == 4
    assert time["rollout_s"] == pytest.approx(sum(profile.wall_s for profile in profiles(credited)))
    path = tmp_path / "r.jsonl"
    await process(made(Breaking, profile=True, data_path_to_save_groups=str(path)), quiet())
    assert {len(credited.group.failures) for credited in read_groups(path)} == {1}
    assert all(profile is not None for credited in read_groups(path) for profile in profiles(credited))


async def test_a_comparison_of_siblings_has_its_own(tmp_path):
    def score_group(self, item, trajectories, ctx):
        return [1.0] * len(trajectories)

    path = tmp_path / "r.jsonl"
    env = chat(profile=True, score_group=score_group, data_path_to_save_groups=str(path))
    await process(env, quiet())
    for credited in read_groups(path):
        assert "score_group" in credited.group.profile.calls
        assert not any("score_group" in profile.calls for profile in profiles(credited))


async def test_rescored_rollouts_keep_the_profile_of_their_run(tmp_path):
    path, out = tmp_path / "r.jsonl", tmp_path / "new.jsonl"
    await process(chat(profile=True, data_path_to_save_groups=str(path)), quiet())
    await rescore(chat(worth=2.0), path, read_contents(path), out, quiet())
    before, after = (
        {credited.group.item_id: profiles(credited) for credited in read_groups(file)} for file in (path, out)
    )
    assert before == after


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


async def test_the_summary_counts_the_tokens_of_model_calls_beside_those_of_condensers():
    class Short(Chat):
        condenser = keep_last_turns(1)

    credited = await group_of_chat(Short, profile=True)
    spans = [turn.span for each in credited.group.trajectories for turn in each.turns]
    summary = Summary()
    summary.add(credited)
    rows = shown(summary)
    assert f"prompt {sum(span.start for span in spans):,} " in rows["tokens by call"]
    assert f"sampled {sum(span.end - span.start for span in spans):,} " in rows["tokens by call"]
    assert "keep_last_turns" in rows["condensed"]


async def test_an_evaluation_shows_it_and_writes_its_numbers(tmp_path, capsys):
    env = chat(profile=True, data_dir_to_save_evals=str(tmp_path), eval_rollouts=2)
    assert await evaluate(env, Console(width=200)) == 0
    assert "score_turn" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/calls/score_turn"] == 18
    shares = [value for name, value in metrics.items() if name.startswith("eval/time_share/")]
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)


async def test_charts_have_the_shares_of_a_group_and_nothing_has_any_without_a_profile():
    numbers = group_numbers(note_of(await group_of_chat(profile=True)).summary)
    assert 0 < numbers["group/time_share/score_turn"] < 1
    summary = note_of(await group_of_chat()).summary
    assert not any("time_share" in name for name in group_numbers(summary))
    assert not {"time", "tokens by call"} & set(shown(summary))
