"""`turnwise view --text`: groups, turns and their credit in a terminal."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from environments.credit.crediting import credited as credit
from environments.record.group_line import encode_group
from environments.testing import group_of
from environments.trajectory import AgentRun, CreditedGroup, Failure, Message
from tests.tables import cases
from tools.calls import ToolCall, ToolResult
from tools.errors import RecordError, UsageError
from turnwise.cli.view import command


@pytest.fixture
def show(tmp_path):
    """Print a record of these groups."""

    def show(*groups, item=None, asked=()):
        record = tmp_path / "record.jsonl"
        record.write_bytes(b"".join(map(encode_group, groups)))
        arguments = [str(record), "--text", *([] if item is None else ["--item", item]), *asked]
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


def test_a_record_is_a_line_for_each_group_and_its_sums(show):
    printed = show(credited(item="first"), credited(((2.0,), (3.0,)), item="second")).splitlines()
    assert printed[:2] == [
        "first · epoch 0 · ok · scores 1.5 0.25 · turns 2 1 · ended completed 2",
        "second · epoch 0 · ok · scores 2 3 · turns 1 1 · ended completed 2",
    ]
    assert "groups              2 (ok 2)" in printed
    assert "without a peer      1 of 5 turns (20.0%), whose advantage is their raw return" in printed


def test_the_ledger_of_a_turn_adds_up_to_its_advantage(show):
    printed = words(show(credited(), item="a"))
    for line in (
        "credit reward 1 + 0.5 what follows → return 1.5 - 0.25 baseline → advantage +1.25",
        "note no sibling to compare it with: the advantage is the raw value",
    ):
        assert line in printed


def test_siblings_are_aligned_by_turn_and_a_summary_by_the_act_that_follows_it(show):
    kinds = [["act", "summary", "act"], ["act", "act"]]
    printed = show(credited(((1.0, None, 0.5), (0.25, 2.0)), kinds=kinds), item="a").splitlines()
    rows = [line.split(" · advantage")[0] for line in printed if line.startswith(("─── turn", "sib"))]
    assert rows[:-2] == [
        "─── turn 1",
        "sibling 0 · reward 1",
        "sibling 1 · reward 0.25",
        "─── turn 2",
        "sibling 0 · summary · not scored",
        "sibling 0 · reward 0.5",
        "sibling 1 · reward 2",
    ]


def test_all_that_a_turn_has_is_shown(show):
    call = ToolCall(id="c", name="look", arguments='{"at": "door"}')
    each = with_turn(
        credited(),
        message=Message(role="assistant", content="I look.", reasoning="Hm.", tool_calls=(call,)),
        tool_results=(ToolResult(call_id="c", name="look", content="It is shut.", exit_code=3),),
        replies=(Message(role="user", content="Go on."),),
    )
    parts = ({"kind": 0.75, "short": 0.25}, {})
    rewards = replace(each.group.trajectories[0].rewards, turn_components=parts, outcome=None)
    printed = words(show(with_trajectory(each, rewards=rewards), item="a"))
    for text in (
        'Hm. I look. → look {"at": "door"} ← look exit 3 It is shut. user Go on.',
        "parts kind 0.75, short 0.25 credit reward 1",
    ):
        assert text in printed


def test_a_dropped_sibling_is_there_with_its_traceback(show):
    failure = Failure(
        sibling=5, stop_reason=None, error="ValueError: no", traceback="Traceback:\n  line 1", turns=2
    )
    each = credited()
    each = replace(each, group=replace(each.group, failures=(failure,)))
    printed = show(each, item="a")
    assert "sibling 5 was dropped: ValueError: no\n  Traceback:\n    line 1\n" in printed


def test_a_failed_group_without_rollouts_can_be_shown(show):
    group = replace(credited().group, trajectories=())
    lost = CreditedGroup(
        group=group, advantages=(), policy="p", estimator="turn_return", status="failed", reason="it broke"
    )
    assert "failed · reason it broke" in words(show(lost))
    assert "reason it broke" in words(show(lost, item="a"))


def test_what_is_not_there_is_refused_with_what_is(show, tmp_path):
    with pytest.raises(UsageError, match=r"has no item 'b'; it has 'a'"):
        show(credited(), item="b")
    with pytest.raises(RecordError, match="no record at"):
        CliRunner().invoke(command, [str(tmp_path / "none"), "--text"], catch_exceptions=False)


def test_a_run_that_was_killed_in_a_line_is_shown_without_it(tmp_path):
    line = encode_group(credited())
    (tmp_path / "record.jsonl").write_bytes(line + line[:-20])
    done = CliRunner().invoke(command, [str(tmp_path), "--text"], catch_exceptions=False)
    assert "groups              1 (ok 1)" in done.stdout


LONG = with_turn(credited(), message=Message(role="assistant", content="a" * 500 + "b" * 500))
AGENT = AgentRun(error="Boom\x1b[2J", exit_code=3, output="two\nlines", wall_s=1.5, counts={})


@cases(
    ("group", "said"),
    [
        (credited(((1.2231,), (1.2224,))), "return 1.2231 - 1.2224 baseline → advantage +0.0007"),
        (credited(((None, 1.0), (0.5,))), "sibling 0 · not scored · advantage +0.5"),
        (LONG, "(900 characters left out)"),
        (with_trajectory(credited(), agent=AGENT), "Boom\\x1b[2J two lines"),  # cannot drive the terminal
    ],
)
def test_an_item_is_shown_in_words(show, group, said):
    again = replace(group, group=replace(group.group, epoch=1))
    printed = words(show(group, again, item="a", asked=["--max-text", "100"]))
    assert said in printed
    assert printed.count("item a · epoch") == 2
