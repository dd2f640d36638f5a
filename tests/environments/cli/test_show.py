"""`turnwise show` prints the values of the page in a terminal."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from environments.cli.show import command
from environments.credit.crediting import credited as credit
from environments.record.group_line import encode_group
from environments.testing import group_of
from environments.trajectory import Condensed, CreditedGroup, Failure, JudgeCall, Message
from tools.calls import ToolCall, ToolResult
from tools.errors import RecordError, UsageError


@pytest.fixture
def show(tmp_path):
    """Print a record of these groups."""

    def show(*groups, asked=(), width=120):
        record = tmp_path / "record.jsonl"
        record.write_bytes(b"".join(map(encode_group, groups)))
        arguments = [str(record), *map(str, asked), "--width", str(width)]
        return CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False).stdout

    return show


def credited(rewards=((1.0, 0.5), (0.25,)), *, item="a", **fields):
    group = replace(group_of(rewards, **fields), item_id=item, group_id=f"group of {item}", env="e")
    return credit(group, policy="p", estimator="turn_return")


def with_turn(each, *, sibling=0, turn=0, **changed):
    """The group with another turn."""
    trajectories = list(each.group.trajectories)
    turns = list(trajectories[sibling].turns)
    turns[turn] = replace(turns[turn], **changed)
    trajectories[sibling] = replace(trajectories[sibling], turns=tuple(turns))
    return replace(each, group=replace(each.group, trajectories=tuple(trajectories)))


def with_trajectory(each, **changed):
    first, *others = each.group.trajectories
    return replace(each, group=replace(each.group, trajectories=(replace(first, **changed), *others)))


def words(text):
    """Without what makes columns."""
    return " ".join(text.split())


def test_a_record_is_a_line_for_each_group(show):
    printed = show(credited(item="first"), credited(((2.0,), (3.0,)), item="second"))
    lines = [words(line) for line in printed.splitlines() if line.startswith(("first", "second"))]
    assert lines == ["first 0 ok 1.5 0.25 2 1 completed 2", "second 0 ok 2 3 1 1 completed 2"]


def test_a_record_ends_with_the_health_of_each_turn_index(show):
    printed = show(credited()).splitlines()
    at = next(number for number, line in enumerate(printed) if line.split()[:2] == ["turn", "rollouts"])
    # Index, rollouts, scored, reward, sd of advantages, tokens, no peer, groups, no spread, errors.
    assert words(printed[at + 2]) == "1 2 2 0.625 1.768 1 0 1 0 0"
    assert words(printed[at + 3]) == "2 1 1 0.5 - 1 1 0 0 0"


def test_the_ledger_of_a_turn_adds_up_to_its_advantage(show):
    printed = words(show(credited(), asked=["a", "--sibling", "0"]))
    assert (
        "credit reward 1 + 0.5 what follows → return 1.5 - 0.25 baseline → advantage +1.25 → 1 trained token"
        in printed
    )


def test_a_small_difference_of_large_numbers_can_be_seen(show):
    printed = words(show(credited(((1.2231,), (1.2224,))), asked=["a", "--sibling", "0"]))
    assert "return 1.2231 - 1.2224 baseline → advantage +0.0007" in printed


def test_a_turn_says_whom_it_was_compared_with(show):
    assert "compared sibling 1 turn 1: 0.25" in words(show(credited(), asked=["a", "--sibling", "0"]))


def test_a_turn_without_a_peer_says_so(show):
    printed = words(show(credited(), asked=["a", "--sibling", 0, "--turn", 2]))
    assert "note no sibling to compare it with: the advantage is the raw value" in printed


def test_siblings_are_aligned_by_turn(show):
    printed = show(credited(), asked=["a"], width=160)
    headings = [words(line) for line in printed.splitlines() if "· advantage" in line]
    assert headings == [
        "sibling 0 · reward 1 · advantage +1.25 sibling 1 · reward 0.25 · advantage -1.25",
        "sibling 0 · reward 0.5 · advantage +0.5",
    ]


def test_a_summary_stands_in_the_row_of_the_act_that_follows_it(show):
    kinds = [["act", "summary", "act"], ["act", "act"]]
    each = credited(((1.0, None, 0.5), (0.25, 2.0)), kinds=kinds)
    headings = [
        words(line) for line in show(each, asked=["a"]).splitlines() if line.startswith(("turn", "sib"))
    ]
    assert [line.split(" · advantage")[0].rstrip("─ ") for line in headings[1:-2]] == [
        "turn 1",
        "sibling 0 · reward 1",
        "sibling 1 · reward 0.25",
        "turn 2",
        "sibling 0 · summary · not scored",
        "sibling 0 · turn 3 · reward 0.5",
        "sibling 1 · reward 2",
    ]


def test_a_baseline_of_the_whole_group_says_that_its_own_value_is_in_it(show):
    each = credit(credited(((1.0,), (0.0,))).group, policy="p", estimator="grpo")
    assert "sibling 1: 0; spread 0.7071; its own is in the baseline" in words(show(each, asked=["a"]))


def test_in_a_narrow_terminal_they_are_below_each_other(show):
    printed = show(credited(), asked=["a"], width=80)
    assert sum("· advantage" in line for line in printed.splitlines()) == 3


def test_text_calls_results_and_replies_of_a_turn_are_there(show):
    call = ToolCall(id="c", name="look", arguments='{"at": "door"}')
    result = ToolResult(call_id="c", name="look", content="It is shut.", exit_code=3)
    each = with_turn(
        credited(),
        message=Message(role="assistant", content="I look.", reasoning="Hm.", tool_calls=(call,)),
        tool_results=(result,),
        replies=(Message(role="user", content="Go on."),),
    )
    printed = words(show(each, asked=["a", "--sibling", "0", "--turn", "1"]))
    assert 'Hm. I look. → look {"at": "door"} ← look exit 3 It is shut. user Go on.' in printed


def test_parts_of_rewards_are_named(show):
    each = credited()
    rewards = replace(
        each.group.trajectories[0].rewards, turn_components=({"kind": 0.75, "short": 0.25}, {}), outcome=None
    )
    printed = words(show(with_trajectory(each, rewards=rewards), asked=["a", "--sibling", "0"]))
    assert "parts kind 0.75, short 0.25 credit" in printed


def test_a_turn_that_was_not_scored_is_not_0(show):
    printed = show(credited(((None, 1.0), (0.5,))), asked=["a", "--sibling", "0", "--turn", "1"])
    assert "sibling 0 · not scored · advantage +0.5" in printed


def test_forks_and_condensed_contexts_are_said(show):
    condensed = Condensed(cause="fit_context", tokens_before=900, tokens_after=300)
    each = with_turn(credited(), turn=1, fork="history: fit_context", condensed=condensed)
    printed = words(show(each, asked=["a", "--sibling", "0"]))
    assert "new row history: fit_context condensed fit_context: 900 → 300 tokens" in printed


def test_verdicts_are_beside_the_turn_that_they_are_of(show):
    call = JudgeCall(
        hook="score_turn",
        turn=1,
        model="judge-1",
        messages=(Message(role="user", content="Is it good?"),),
        answer='{"score": 3}',
    )
    each = with_trajectory(credited(), judge_calls=(call,))
    verdict = 'judge judge-1, asked by score_turn Is it good? → {"score": 3}'
    assert verdict in words(show(each, asked=["a", "--turn", "2"]))
    assert verdict not in words(show(each, asked=["a", "--turn", "1"]))


def test_a_dropped_sibling_is_there_with_its_traceback(show):
    failure = Failure(
        sibling=5, stop_reason=None, error="ValueError: no", traceback="Traceback:\n  line 1", turns=2
    )
    each = credited()
    each = replace(each, group=replace(each.group, failures=(failure,)))
    printed = show(each, asked=["a"])
    assert "sibling 5 was dropped: ValueError: no\n  Traceback:\n    line 1\n" in printed


def test_a_failed_group_without_rollouts_can_be_shown(show):
    group = replace(credited().group, trajectories=())
    lost = CreditedGroup(
        group=group, advantages=(), policy="p", estimator="turn_return", status="failed", reason="it broke"
    )
    assert "failed: it broke" in words(show(lost))
    assert "reason it broke" in words(show(lost, asked=["a"]))


def test_the_middle_of_a_long_text_is_left_out_and_said(show):
    each = with_turn(credited(), message=Message(role="assistant", content="a" * 500 + "b" * 500))
    printed = words(show(each, asked=["a", "--max-text", "100"]))
    assert "(900 characters left out)" in printed


def test_every_epoch_of_an_item_is_shown_or_one(show):
    first = credited()
    second = replace(first, group=replace(first.group, epoch=1))
    assert show(first, second, asked=["a"]).count("item a · epoch") == 2
    assert "item a · epoch 1" in show(first, second, asked=["a", "--epoch", "1"])
    assert "item a · epoch 0" not in show(first, second, asked=["a", "--epoch", "1"])


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (["b"], r"has no item 'b'; it has 'a'"),
        (["a", "--epoch", 3], "item 'a' has no epoch 3; it has 0"),
        (["a", "--sibling", 7], "no sibling 7; there are 0, 1"),
        (["a", "--turn", 3], "no turn 3; the longest rollout has 2, counted from 1"),
        (["a", "--turn", 0], "no turn 0; the longest rollout has 2, counted from 1"),
        (["--turn", 1], "--turn narrows an item; give ITEM, too"),
    ],
    ids=["item", "epoch", "sibling", "turn", "turn-0", "no-item"],
)
def test_what_is_not_there_is_refused_with_what_is(show, asked, refusal):
    with pytest.raises(UsageError, match=refusal):
        show(credited(), asked=asked)


def test_no_record_is_one_line(tmp_path):
    with pytest.raises(RecordError, match="no record at"):
        CliRunner().invoke(command, [str(tmp_path / "none")], catch_exceptions=False, standalone_mode=False)


def test_a_run_is_found_by_its_folder(show, tmp_path):
    show(credited())
    done = CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
    assert (done.exit_code, "policy        p" in done.stdout) == (0, True)


def test_a_run_that_was_killed_in_a_line_is_shown_without_it(tmp_path):
    line = encode_group(credited())
    (tmp_path / "r.jsonl").write_bytes(line + line[:-20])
    done = CliRunner().invoke(command, [str(tmp_path / "r.jsonl")], catch_exceptions=False)
    assert "groups        done 1, ok 1" in done.stdout


def test_a_group_of_several_versions_names_them_turn_by_turn(show):
    several = with_turn(with_turn(credited(), weight_version="v7"), turn=1, weight_version="v8")
    printed = words(show(several, asked=["a"]))
    assert "weights several versions: v7, unknown, v8" in printed
    assert printed.count("weights v7") == printed.count("weights v8") == 1
    assert "weights 2 versions, v7 to v8, rollouts of several 1, groups of unknown ones 1" in words(
        show(several)
    )


def test_a_group_of_one_version_says_nothing_of_it(show):
    one = credited(((1.0,), (0.25,)))
    for sibling in (0, 1):
        one = with_turn(one, sibling=sibling, weight_version="v7")
    assert "weights" not in words(show(one, asked=["a"]))
