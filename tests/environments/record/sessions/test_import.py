"""Logged sessions become a record: their words, their votes at the right turns, their credit."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.recorder import read_contents, read_groups
from environments.record.sessions import session_file
from environments.record.sessions.logged_session import Scale, read_session
from environments.record.sessions.session_file import with_row
from environments.wire.views import VIEWS
from tests.environments.record.sessions.logs import (
    chat,
    imported,
    run,
    said,
    user,
    voted,
    write,
)
from tests.tables import cases
from turnwise import group_of
from turnwise.cli import credit, export
from turnwise.cli.main import main
from turnwise.credit import estimate

SELLER = [
    voted(0.5, 0.0, outcome=1, id="A"),
    voted(0.5, 0.5, 0.5, outcome=0, id="B"),
    voted(0.0, None, outcome=False, id="C"),
]


def invoke(command, *arguments):
    return CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)


@st.composite
def sessions(draw):
    texts = st.text(max_size=12)
    messages = [{"role": role, "content": draw(texts)} for role in draw(st.sampled_from(["u", "su", "suu"]))]
    for each in messages:
        each["role"] = {"u": "user", "s": "system"}[each["role"]]
    for turn in range(draw(st.integers(1, 4))):
        ids = [f"c{turn}_{number}" for number in range(draw(st.integers(0, 3)))]
        spoken = {"role": "assistant", "content": draw(texts), "vote": draw(st.sampled_from([None, 1, -0.5]))}
        if ids:
            function = {"name": "look", "arguments": draw(texts)}
            spoken["tool_calls"] = [{"id": each, "type": "function", "function": function} for each in ids]
        messages.append(spoken)
        answered = draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
        messages += [{"role": "tool", "content": draw(texts), "tool_call_id": each} for each in answered]
        messages += [{"role": "user", "content": draw(texts)} for _ in range(draw(st.integers(0, 2)))]
    return {"messages": messages}


@given(sessions())
def test_the_conversation_is_the_one_that_was_logged_and_each_vote_is_at_its_turn(logged):
    session = read_session(logged, Scale())
    spoken = [*session.prompt, *(each for turn in session.turns for each in turn.messages)]
    votes = [each["vote"] for each in logged["messages"] if each["role"] == "assistant"]
    wanted = [{name: each[name] for name in each if name != "vote"} for each in logged["messages"]]
    assert [each.to_openai() for each in spoken] == wanted
    assert list(session.rewards.turns) == votes


@given(sessions())
def test_a_row_holds_the_whole_conversation_as_the_chat_format_writes_it(logged):
    session, renderer = read_session(logged, Scale()), ChatMLRenderer.embedded()
    turns, (row,) = with_row(session.prompt, session.turns, session.tools, renderer)
    for turn in turns:
        before = [*session.prompt, *(each for earlier in turns[: turn.index] for each in earlier.messages)]
        assert row.token_ids[: turn.span.start] == renderer.prompt_ids(before, session.tools)
        assert row.token_ids[turn.span.start : turn.span.end] == renderer.completion_ids(turn.message)
    assert row.logprobs is None


def test_the_chat_of_the_credit_page_gets_the_advantages_of_that_page(tmp_path):
    (group,) = imported(tmp_path, *SELLER)
    wanted = group_of([[0.5, 0.0], [0.5, 0.5, 0.5], [0.0, None]], outcomes=[1.0, 0.0, 0.0])
    assert [list(row) for row in group.advantages] == estimate("turn_return", wanted)
    assert [each.rewards.turns for each in group.group.trajectories][2] == (0.0, None)


@cases(
    ("vote", "worth"),
    [(True, 1.0), (False, -1.0), ("up", 1.0), ("down", -1.0), ("thumbs_up", 1.0), (0, 0.0), (2.5, 2.5)],
    ids=["true", "false", "up", "down", "thumbs_up", "0", "2.5"],
)
def test_what_a_vote_is_worth(tmp_path, vote, worth):
    (group,) = imported(tmp_path, voted(vote))
    assert group.group.trajectories[0].rewards.turns == (worth,)


def test_words_are_worth_what_the_user_says_and_numbers_what_they_are(tmp_path):
    (group,) = imported(tmp_path, voted("up", False, 3), arguments=["--upvote", "0.5", "--downvote", "-2"])
    assert group.group.trajectories[0].rewards.turns == (0.5, -2.0, 3.0)


def test_votes_and_outcomes_may_stand_in_fields_of_other_names(tmp_path):
    logged = chat(said("a", feedback={"rating": -1}), converted=True)
    arguments = ["--vote-field", "feedback.rating", "--outcome-field", "converted"]
    (group,) = imported(tmp_path, logged, arguments=arguments)
    rewards = group.group.trajectories[0].rewards
    assert (rewards.turns, rewards.outcome, rewards.score) == ((-1.0,), 1.0, 0.0)


def test_equal_openings_are_a_group_wherever_they_stand_in_the_order_of_the_file(tmp_path):
    logged = [voted(1, opening=str(number % 3), id=number) for number in range(8)]
    groups = imported(tmp_path, *logged)
    assert [[each.session_id for each in group.group.trajectories] for group in groups] == [
        ["0", "3", "6"],
        ["1", "4", "7"],
        ["2", "5"],
    ]
    assert [each.sibling for each in groups[0].group.trajectories] == [0, 1, 2]


def test_more_sessions_of_an_opening_than_a_group_may_have_are_several_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(session_file, "MAX_SIBLINGS", 3)
    groups = imported(tmp_path, *(voted(number, id=number) for number in range(7)), voted(1, opening="b"))
    ids = [[each.session_id for each in group.group.trajectories] for group in groups]
    assert ids == [["0", "1"], ["2", "3"], ["4", "5", "6"], ["line 8"]]
    assert [each.group.epoch for each in groups] == [0, 1, 2, 0]
    assert len({each.group.group_id for each in groups}) == 4


def test_other_tools_are_another_opening(tmp_path):
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
    groups = imported(tmp_path, voted(1), voted(0, tools=[tool]), voted(0, tools=json.dumps([tool])))
    assert [len(each.group.trajectories) for each in groups] == [1, 2]
    assert groups[1].group.item["tools"] == [tool]
    assert groups[1].group.trajectories[0].tools[0].name == "look"


@cases(
    "arguments",
    [
        [],
        ["--estimator", "grpo", "--preset", "trl"],
    ],
)
def test_a_session_with_no_other_of_its_opening_gets_no_advantage(tmp_path, arguments):
    (group,) = imported(tmp_path, voted(1, -1, 0.5, outcome=1), arguments=arguments)
    assert set(group.advantages[0]) == {0.0}
    assert (group.status, group.reason) == ("alone", "no sibling to compare it with: no advantage")


@pytest.mark.parametrize(
    "arguments",
    [["--baseline", "none"], ["--estimator", "rloo", "--set", "singleton=raw"]],
    ids=["baseline", "singleton"],
)
def test_unless_the_user_says_that_nothing_is_to_be_compared(tmp_path, arguments):
    (group,) = imported(tmp_path, voted(1, 1), arguments=arguments)
    assert group.status == "ok"
    assert group.advantages[0][0] == 2.0


@pytest.mark.parametrize(
    ("arguments", "first"), [([], 0.0), (["--baseline", "none"], 1.5)], ids=["alone", "baseline-none"]
)
def test_credit_computed_anew_keeps_to_that(tmp_path, arguments, first):
    imported(tmp_path, voted(1, 0.5))
    anew = tmp_path / "anew.jsonl"
    record = tmp_path / "record.jsonl"
    invoke(credit.command, record, "--estimator", "turn_return", *arguments, "--write", anew)
    (group,) = read_groups(anew)
    assert group.advantages[0][0] == first


def test_a_missing_outcome_beside_others_fails_its_group_which_is_recorded_and_counted(tmp_path):
    path = write(tmp_path, voted(1, outcome=1), voted(1), *(voted(1, opening="b", outcome=n) for n in (0, 1)))
    done = run(path)
    failed, credited = read_groups(tmp_path / "record.jsonl")
    assert done.exit_code == 0
    assert (failed.status, len(failed.group.trajectories), credited.status) == ("failed", 2, "ok")
    assert "no outcome beside siblings with one: siblings 1" in failed.reason
    assert "1 of 2 groups failed" in done.output.splitlines()[-1]


@pytest.mark.parametrize(("missing", "left"), [("drop", 2), ("-1", 3)])
def test_what_a_missing_outcome_counts_as_can_be_said(tmp_path, missing, left):
    logged = [voted(1, outcome=1), voted(1), voted(1, outcome=0)]
    (group,) = imported(tmp_path, *logged, arguments=["--missing-outcome", missing])
    assert (group.status, len(group.group.trajectories)) == ("ok", left)


def test_a_record_of_failed_groups_alone_is_written_and_ends_with_1(tmp_path):
    path, out = write(tmp_path, voted(1, outcome=1), voted(1)), tmp_path / "record.jsonl"
    assert main(["import", str(path), "--out", str(out)]) == 1
    assert len(list(read_groups(out))) == 1


def test_a_session_in_which_the_assistant_said_nothing_is_a_dropped_rollout(tmp_path):
    (group,) = imported(tmp_path, chat(id="silent"), voted(1), voted(0))
    (failure,) = group.group.failures
    assert (failure.sibling, failure.error) == (
        0,
        "RolloutError: the assistant said nothing; session silent",
    )
    assert group.advantages == ((1.0,), (-1.0,))


def test_two_imports_of_a_file_are_byte_for_byte_equal(tmp_path):
    path = write(tmp_path, *SELLER)
    assert run(path).exit_code == 0
    first = (tmp_path / "record.jsonl").read_bytes()
    (tmp_path / "record.jsonl").unlink()
    run(path)
    assert (tmp_path / "record.jsonl").read_bytes() == first


@pytest.mark.parametrize(
    "other", [["--upvote", "2"], ["--name", "x"], ["--outcome-field", "won"]], ids=["upvote", "name", "field"]
)
def test_imports_that_differ_are_different_experiments(tmp_path, other):
    path = write(tmp_path, voted(1, outcome=1, won=1))
    run(path)
    (first,) = read_contents(tmp_path / "record.jsonl").fingerprints
    (tmp_path / "record.jsonl").unlink()
    run(path, *other)
    assert read_contents(tmp_path / "record.jsonl").fingerprints != {first}


@cases("view", [*VIEWS, "list_scores", "prompt_response"])
def test_every_view_exports_it(tmp_path, view):
    imported(tmp_path, *SELLER)
    done = invoke(export.command, tmp_path / "record.jsonl", "--view", view, "--out", tmp_path / "rows.jsonl")
    assert done.exit_code == 0
    assert (tmp_path / "rows.jsonl").stat().st_size


def test_a_session_without_credit_is_in_exports_of_its_text(tmp_path):
    imported(tmp_path, voted(1, None))
    out = tmp_path / "rows.jsonl"
    invoke(export.command, tmp_path / "record.jsonl", "--view", "prompt_response", "--out", out)
    assert len(out.read_text().splitlines()) == 2


def test_a_message_of_weight_0_is_not_trained_and_its_vote_still_counts(tmp_path):
    greeted = [voted(number, outcome=0) for number in (1, 0)]
    for logged in greeted:
        logged["messages"].insert(1, said("Welcome!", weight=0))
    (group,) = imported(tmp_path, *greeted)
    assert [turn.trained for turn in group.group.trajectories[0].turns] == [False, True]
    assert group.advantages == ((0.0, 1.0), (0.0, -1.0))


def test_blocks_with_tool_results_in_a_users_message(tmp_path):
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": "é"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "seen"}
    text = {"type": "text", "text": "Let me look."}
    messages = [
        user([{"type": "text", "text": "hi"}]),
        {"role": "assistant", "content": [text, use], "vote": "up"},
        user([result, {"type": "text", "text": "?"}]),
        said("Yes."),
    ]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    (group,) = imported(tmp_path, {"system": "Help.", "tools": tools, "messages": messages})
    (trajectory,) = group.group.trajectories
    roles = [each.role for each in trajectory.messages]
    assert roles == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert trajectory.turns[0].message.tool_calls[0].arguments == '{"at": "é"}'
    assert trajectory.turns[0].tool_results[0].content == "seen"
    assert trajectory.rewards.turns == (1.0, None)


def test_turns_of_from_and_value(tmp_path):
    logged = {
        "system": "Help.",
        "tools": '[{"name": "look", "parameters": {}}]',
        "conversations": [
            {"from": "human", "value": "hi"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {"n": 1}}'},
            {"from": "observation", "value": "seen"},
            {"from": "gpt", "value": "done", "vote": 1},
        ],
    }
    (group,) = imported(tmp_path, logged)
    looked, done = group.group.trajectories[0].turns
    assert looked.message.tool_calls[0].name == "look"
    assert [each.content for each in looked.tool_results] == ["seen"]
    assert (done.message.content, group.group.trajectories[0].rewards.turns) == ("done", (None, 1.0))


def test_the_models_that_sessions_name_are_the_policy(tmp_path):
    groups = imported(tmp_path, voted(1, model="m2"), voted(1, model="m1"), voted(1, opening="b"))
    assert [each.policy for each in groups] == ["m1, m2", "unknown"]
    assert groups[0].group.trajectories[0].weight_versions == ("m2",)


def test_an_item_id_names_the_group(tmp_path):
    groups = imported(tmp_path, voted(1, item_id="refund"), voted(1, item_id="refund"), voted(1))
    assert [each.group.item_id == "refund" for each in groups] == [True, False]


def test_line_ends_blank_lines_and_a_byte_order_mark_do_not_matter(tmp_path):
    path = tmp_path / "sessions.jsonl"
    lines = [json.dumps(each).encode() for each in SELLER]
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines))
    assert run(path).exit_code == 0
    (group,) = read_groups(tmp_path / "record.jsonl")
    assert len(group.group.trajectories) == 3


def test_a_run_does_not_continue_it(tmp_path, capfd):
    imported(tmp_path, *SELLER, arguments=["--name", "sales_chat"])
    record = tmp_path / "record.jsonl"
    before = record.read_bytes()
    assert main(["process", "sales_chat", "--env.max_items", "1", "--out", str(record)]) == 2
    assert "holds groups of another run" in capfd.readouterr().err
    assert record.read_bytes() == before
