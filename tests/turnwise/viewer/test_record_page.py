"""What a page has of a record."""

import base64
import hashlib
import re
import stat
from dataclasses import replace

import orjson
import pytest

from environments.credit import estimate
from environments.testing import group_of
from environments.trajectory import AgentRun, Condensed, Failure, JudgeCall, Kept, Message, Span, TokenRow
from tests.environments.record.any_group import Draw
from tests.environments.record.recorded import edit
from tests.tables import cases
from tests.turnwise.viewer.pages import content, page, recorded
from tools.errors import RecordError
from turnwise.viewer.page_values import BLOCK_BYTES
from turnwise.viewer.record_page import IndexBuilder, page_template

GROUP = group_of([[1.0, 2.0], [0.0], [4.0, None, 1.0]], outcomes=[1.0, 0.0, 1.0])


def turns_of(blocks, rollout):
    return [turn for name in rollout["blocks"] for turn in blocks[name]["turns"]]


def changed(group, sibling=0, turn=0, **fields):
    """The group with a turn of one sibling changed."""
    trajectory = group.trajectories[sibling]
    turns = [*trajectory.turns]
    turns[turn] = replace(turns[turn], **fields)
    siblings = [*group.trajectories]
    siblings[sibling] = replace(trajectory, turns=tuple(turns))
    return replace(group, trajectories=tuple(siblings))


def test_the_index_has_a_number_of_every_turn_in_every_column(tmp_path):
    (group,) = page(recorded(tmp_path / "r.jsonl", GROUP))["index"]["groups"]

    for rollout, count in zip(group["rollouts"], (2, 1, 3), strict=True):
        columns = dict(rollout["turns"])
        assert [len(row) for row in columns.pop("others")] == [count]
        assert {len(column) for column in columns.values()} == {count}


def test_columns_are_those_of_the_ledger(tmp_path):
    (group,) = page(recorded(tmp_path / "r.jsonl", GROUP))["index"]["groups"]

    columns = group["rollouts"][2]["turns"]

    assert (columns["rewards"], columns["returns"]) == ([4.0, None, 1.0], [6.0, 2.0, 2.0])
    assert (columns["alone"], columns["peers"]) == ([0, 0, 1], [2, 1, 0])
    assert columns["advantages"] == [4.0, -1.0, 2.0]


def columns_of(record, **options):
    return [
        entry["turns"] for group in page(record, **options)["index"]["groups"] for entry in group["rollouts"]
    ]


@pytest.mark.parametrize("estimator", ["grpo", "mt_grpo"])
def test_what_is_no_return_is_not_shown_as_one(tmp_path, estimator):
    record = recorded(tmp_path / "r.jsonl", group_of([[1.0, 0.0], [2.0]]), estimator=estimator)
    assert [each["returns"] for each in columns_of(record)] == [[None, None], [None]]


@pytest.mark.parametrize(
    ("params", "trained", "alone"),
    [({}, True, [0, 1]), ({}, False, [0, None]), ({"baseline": "none"}, True, [None, None])],
    ids=["alone", "masked", "compared-with-nothing-on-purpose"],
)
def test_only_a_trained_turn_that_is_left_its_raw_return_is_without_a_peer(tmp_path, params, trained, alone):
    group = group_of([[1.0, 2.0], [3.0]])
    first, second = group.trajectories
    last = replace(first.turns[1], trained=trained)
    group = replace(group, trajectories=(replace(first, turns=(first.turns[0], last)), second))
    record = recorded(tmp_path / "r.jsonl", group, **params)
    assert columns_of(record)[0]["alone"] == alone


def test_a_block_has_the_ledger_of_a_turn_with_the_turns_it_was_compared_with(tmp_path):
    blocks = page(recorded(tmp_path / "r.jsonl", GROUP))
    turn = turns_of(blocks, blocks["index"]["groups"][0]["rollouts"][0])[1]

    (term,) = turn["ledger"]["terms"]

    assert term["peers"] == [{"sibling": 2, "turn": 1, "value": 2.0}]
    assert (turn["ledger"]["reward"], turn["ledger"]["follows"], term["value"]) == (2.0, 1.0, 3.0)
    assert turn["ledger"]["advantage"] == term["value"] - term["baseline"]


def test_turn_returns_stand_beside_grpo_unless_others_are_named(tmp_path):
    record = recorded(tmp_path / "r.jsonl", GROUP)

    (default,) = page(record)["index"]["groups"]
    named = page(record, others=["rloo", "gigpo"])["index"]

    rows = [rollout["turns"]["others"][0] for rollout in default["rollouts"]]
    assert rows == estimate("grpo", GROUP)
    assert [each.partition("(")[0] for each in named["others"]] == ["rloo", "gigpo"]


def test_an_estimator_that_cannot_take_a_group_has_no_numbers_there(tmp_path):
    partly = group_of([[1.0, 2.0], [0.0]], anchors=[["a", None], ["a"]])

    (group,) = page(recorded(tmp_path / "r.jsonl", partly), others=["gigpo"])["index"]["groups"]

    assert group["rollouts"][0]["turns"]["others"] == [None]


def test_a_rollout_is_split_into_blocks_by_size_and_its_turns_stay_in_order(tmp_path):
    group = group_of([[0.0] * 12, [1.0]])
    said = Message(role="assistant", content="x" * (BLOCK_BYTES // 5))
    for turn in range(12):
        group = changed(group, turn=turn, message=said)

    blocks = page(recorded(tmp_path / "r.jsonl", group), of=content(max_chars=BLOCK_BYTES))

    rollout = blocks["index"]["groups"][0]["rollouts"][0]
    assert len(rollout["blocks"]) == 3
    assert [turn["index"] for turn in turns_of(blocks, rollout)] == list(range(12))


def test_a_long_text_is_cut_in_its_middle_and_the_page_says_so(tmp_path):
    group = changed(GROUP, message=Message(role="assistant", content="a" * 80 + "b" * 900 + "c" * 20))

    blocks = page(recorded(tmp_path / "r.jsonl", group), of=content(max_chars=100))

    turn = turns_of(blocks, blocks["index"]["groups"][0]["rollouts"][0])[0]
    assert turn["message"]["content"] == {"head": "a" * 75, "tail": "b" * 5 + "c" * 20, "chars": 1000}
    assert blocks["index"]["cut"][0] == "the middle of 1 texts of more than 100 characters"


def test_an_item_of_many_short_texts_is_cut_as_a_whole(tmp_path):
    blocks = page(
        recorded(tmp_path / "r.jsonl", replace(GROUP, item=["word"] * 5000)), of=content(max_chars=200)
    )

    assert isinstance(blocks["g1"]["item"], str)
    assert len(blocks["g1"]["item"]) < 300


def test_judge_calls_stand_at_the_turn_that_they_are_about(tmp_path):
    call = JudgeCall(hook="score_turn", turn=1, model="m", messages=(), answer="7")
    about_all = replace(call, hook="compute_outcome", turn=None)
    first = replace(GROUP.trajectories[0], judge_calls=(call, about_all), user_calls=(replace(call, turn=0),))

    blocks = page(
        recorded(tmp_path / "r.jsonl", replace(GROUP, trajectories=(first, *GROUP.trajectories[1:])))
    )

    turns = turns_of(blocks, blocks["index"]["groups"][0]["rollouts"][0])
    assert [[each["role"] for each in turn["judge_calls"]] for turn in turns] == [["user"], ["judge"]]
    assert [each["hook"] for each in blocks["g1r0p0"]["judge_calls"]] == ["compute_outcome"]


def test_a_turn_has_its_thread_where_its_trajectory_has_several_and_its_agents_run_is_shown(tmp_path):
    run = AgentRun(error="Boom", exit_code=3, output="x" * 2000, wall_s=1.5, counts={"retries": 2})
    asked = JudgeCall(hook="", model="m", messages=(), answer="7")
    first = replace(GROUP.trajectories[0], agent=run, other_calls=(asked,))
    group = changed(replace(GROUP, trajectories=(first, *GROUP.trajectories[1:])), turn=1, thread=1)

    blocks = page(recorded(tmp_path / "r.jsonl", group))

    shown = [turns_of(blocks, rollout) for rollout in blocks["index"]["groups"][0]["rollouts"]]
    assert [[turn["thread"] for turn in turns] for turns in shown] == [[0, 1], [None], [None] * 3]
    agent = blocks["g1r0p0"]["agent"]
    assert agent.pop("output")["chars"] == 2000
    assert agent == {"error": "Boom", "exit_code": 3, "wall_s": 1.5, "counts": {"retries": 2}}
    assert [each["role"] for each in blocks["g1r0p0"]["judge_calls"]] == ["other"]
    assert blocks["g1r1p0"]["agent"] is None


def test_the_first_row_of_a_thread_is_no_fork(tmp_path):
    first = GROUP.trajectories[0]
    rows = (*first.rows, TokenRow(token_ids=(1, 2), logprobs=(1.0, -0.5)))
    group = replace(GROUP, trajectories=(replace(first, rows=rows), *GROUP.trajectories[1:]))
    group = changed(group, turn=1, thread=1, span=Span(row=1, start=1, end=2))
    rollout = page(recorded(tmp_path / "r.jsonl", group))["index"]["groups"][0]["rollouts"][0]
    assert rollout["turns"]["forks"] == [0, 0]


def test_a_failure_keeps_its_traceback(tmp_path):
    failure = Failure(
        sibling=3,
        stop_reason=None,
        error="ValueError: no\nway",
        traceback="Traceback …",
        turns=2,
        error_class="ValueError",
        where="env.py:3 in score_turn",
    )

    blocks = page(recorded(tmp_path / "r.jsonl", replace(GROUP, failures=(failure,))))

    (entry,) = blocks["index"]["groups"][0]["failures"]
    assert (entry["sibling"], entry["error"], entry["turns"]) == (3, "ValueError: no way", 2)
    assert blocks["g1"]["failures"][0]["traceback"] == "Traceback …"


def test_condensed_turns_and_what_they_saw_are_told(tmp_path):
    condensed = Condensed(cause="summarise", tokens_before=90, tokens_after=40)
    context = (Kept(start=0, end=1), Message(role="user", content="short"))
    group = changed(GROUP, turn=1, condensed=condensed, context=context)

    blocks = page(recorded(tmp_path / "r.jsonl", group))

    rollout = blocks["index"]["groups"][0]["rollouts"][0]
    assert rollout["turns"]["condensed"] == [0, 1]
    turn = turns_of(blocks, rollout)[1]
    assert turn["condensed"]["tokens_before"] == 90
    assert turn["saw"] == [{"start": 0, "end": 1}, {"message": {"role": "user", "content": "short"}}]


def test_groups_of_one_id_have_links_of_their_own(tmp_path):
    record = recorded(tmp_path / "r.jsonl", GROUP, GROUP, GROUP)
    for number in (1, 2):
        edit(record, b'"group_id":"item %d-0"' % number, b'"group_id":"item 0-0"')

    ids = [group["id"] for group in page(record)["index"]["groups"]]

    assert len(set(ids)) == 3


def test_a_group_that_failed_has_its_reason_and_no_numbers_of_others(tmp_path):
    lost = group_of([[1.0], [2.0]], outcomes=[1.0, None])

    (group,) = page(recorded(tmp_path / "r.jsonl", lost))["index"]["groups"]

    assert group["status"] == "failed"
    assert "no outcome" in group["reason"]
    assert group["rollouts"][0]["turns"]["others"] == [None]


def test_a_page_is_its_owners_alone_and_replaces_an_older_one(tmp_path):
    record = recorded(tmp_path / "r.jsonl", GROUP)
    (tmp_path / "r.html").write_text("old")

    page(record)

    assert stat.S_IMODE((tmp_path / "r.html").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("r.html.*"))


def test_a_page_that_becomes_too_large_or_has_no_group_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "empty.jsonl").touch()

    record = recorded(tmp_path / "r.jsonl", *[GROUP] * 9)
    with pytest.raises(RecordError, match=r"larger than 0 MB at group [2-9]; show --groups 1-[1-8],"):
        page(record, max_bytes=20_000)
    with pytest.raises(RecordError, match="no group to show"):
        page(tmp_path / "empty.jsonl")

    assert not list(tmp_path.glob("*.html*"))


def test_the_policy_permits_the_pages_own_scripts_and_no_connection(tmp_path):
    page(recorded(tmp_path / "r.jsonl", GROUP))
    text = (tmp_path / "r.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]

    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in scripts
    }

    directives = {name: set(rest) for name, *rest in map(str.split, policy.split(";"))}
    assert directives["script-src"] == hashes
    assert directives["default-src"] == directives["connect-src"] == {"'none'"}
    assert "unsafe" not in policy


def test_a_live_page_may_ask_its_own_server_alone():
    assert "connect-src 'self'" in page_template("run", live=True).before


def test_a_page_says_where_nothing_is_to_be_learned_and_what_to_do(tmp_path):
    missing = group_of([[1.0], [0.0]], outcomes=[1.0, None])
    index = page(recorded(tmp_path / "r.jsonl", missing))["index"]
    assert index["diagnosis"].startswith(
        "nothing to learn from in 1 group: 1 refused (no outcome beside siblings"
    )
    assert "--missing-outcome" in index["diagnosis"]
    assert index["aggregates"]["reasons"] == {"refused: no outcome beside siblings with one": 1}
    assert page(recorded(tmp_path / "ok.jsonl", GROUP))["index"]["diagnosis"] is None


@cases("seed", range(20))
def test_any_group_that_a_record_may_hold_has_a_page(seed):
    blocks = {}
    builder = IndexBuilder(title="t", source="s", content=content())
    builder.add(Draw(seed).credited(), 1, blocks.__setitem__)
    index = builder.index(cut=[], live=False)
    named = [name for group in index["groups"] for rollout in group["rollouts"] for name in rollout["blocks"]]
    assert {*named, "g1"} == set(blocks)
    assert orjson.dumps([index, blocks])


def test_the_estimator_of_the_record_is_none_of_the_others(tmp_path):
    record = recorded(tmp_path / "record.jsonl", GROUP)
    others = page(record, others=["turn_return", "rloo"])["index"]["others"]
    assert [name.partition("(")[0] for name in others] == ["rloo"]
