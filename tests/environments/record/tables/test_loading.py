"""`records.load` gives what a record holds, exactly, in tables whose columns are declared."""

import os
from dataclasses import fields, replace
from pathlib import Path

import datasets
import orjson
import pytest

from environments.record.group_line import encode_group
from environments.record.recorder import read_groups
from environments.record.tables.parquet_file import _GROUPS
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure, Message, Rewards, StopReason, Trajectory, Turn
from tests.environments.record.any_group import Draw
from tools.errors import RecordError, UsageError
from turnwise import records

RECORD = Path(__file__).parents[1]
NUMBERS = (0.1, -0.0, 5e-324, 1e100, 1 / 3)
LARGE = 2**63 - 1


@pytest.fixture
def load(tmp_path):
    """Write groups, or take a file, and load them."""

    def load(*groups, per="group"):
        if not isinstance(groups[0], Path):
            record = tmp_path / "record.jsonl"
            record.write_bytes(b"".join(map(encode_group, groups)))
            groups = (record,)
        return records.load(groups[0], per=per, cache_dir=tmp_path / "cache")

    return load


def credited(*rewards, advantages=None, **of_group):
    group = replace(group_of(rewards), **of_group)
    return CreditedGroup(
        group=group,
        advantages=advantages or tuple((0.5,) * len(each.turns) for each in group.trajectories),
        policy="p",
        estimator="turn_return",
    )


def with_first(each, **changed):
    first, *others = each.group.trajectories
    return replace(each, group=replace(each.group, trajectories=(replace(first, **changed), *others)))


def every_group():
    return [Draw(seed).credited() for seed in range(40)]


def test_turns_have_the_rewards_and_advantages_of_the_record(load):
    group = credited([1.0, None], [0.25], advantages=((0.75, -1.0), (0.0,)))
    rows = load(group, per="turn")
    assert [(row["sibling"], row["turn"], row["reward"], row["advantage"]) for row in rows] == [
        (0, 0, 1.0, 0.75),
        (0, 1, None, -1.0),
        (1, 0, 0.25, 0.0),
    ]


@pytest.mark.parametrize("per", ["group", "rollout", "turn"])
def test_every_value_is_the_one_that_the_record_gives(load, per):
    groups = every_group()
    rows = load(*groups, per=per)
    found = {"group": _groups, "rollout": _rollouts, "turn": _turns}[per](rows)
    expected = [
        {
            "group": (each.group.item_id, each.group.epoch, each.turns_without_peer),
            "turns": [
                _turn(trajectory, index, advantage)
                for trajectory, advantages in zip(each.group.trajectories, each.advantages, strict=True)
                for index, advantage in enumerate(advantages)
            ],
        }
        for each in groups
    ]
    if per != "group":
        expected = [turn for each in expected for turn in each["turns"]]
    assert repr(found) == repr(expected)  # 0.0 is not -0.0


def _turn(trajectory, index, advantage):
    turn, rewards = trajectory.turns[index], trajectory.rewards
    tokens = trajectory.rows[turn.span.row].token_ids[turn.span.start : turn.span.end]
    return {
        "sibling": trajectory.sibling,
        "text": turn.message.content,
        "calls": [(call.id, call.name, call.arguments, call.status) for call in turn.message.tool_calls],
        "results": [(each.content, each.error, each.exit_code) for each in turn.tool_results],
        "replies": [(each.role, each.content) for each in turn.replies],
        "reward": rewards.turns[index] if rewards and rewards.turns else None,
        "parts": dict(rewards.turn_components[index]) if rewards and rewards.turn_components else None,
        "advantage": advantage,
        "tokens": list(tokens),
        "masks": list(tokens) if turn.trained else [-100] * len(tokens),
        "noted": dict(turn.noted),
        "sampling": dict(turn.sampling),
        "context": _context(turn.context),
        "anchor": turn.anchor,
    }


def _context(parts):
    if parts is None:
        return None
    return [part.content if isinstance(part, Message) else (part.start, part.end) for part in parts]


def _loaded_turn(sibling, row):
    return {
        "sibling": sibling,
        "text": row["text"],
        "calls": [
            (call["id"], call["name"], call["arguments"], call["status"]) for call in row["tool_calls"]
        ],
        "results": [(each["content"], each["error"], each["exit_code"]) for each in row["tool_results"]],
        "replies": [(each["role"], each["content"]) for each in row["replies"]],
        "reward": row["reward"],
        "parts": None if row["parts"] is None else {each["name"]: each["value"] for each in row["parts"]},
        "advantage": row["advantage"],
        "tokens": row["tokens"],
        "masks": row["masks"],
        "noted": {each["name"]: each["value"] for each in row["noted"]},
        "sampling": {each["name"]: orjson.loads(each["value"]) for each in row["sampling"]},
        "context": row["context"]
        and [
            (part["start"], part["end"]) if part["message"] is None else part["message"]["content"]
            for part in row["context"]
        ],
        "anchor": row["anchor"],
    }


def _turns(rows):
    return [_loaded_turn(row["sibling"], row) for row in rows]


def _rollouts(rows):
    return [_loaded_turn(row["sibling"], turn) for row in rows for turn in row["turns"]]


def _groups(rows):
    return [
        {
            "group": (row["item_id"], row["epoch"], row["turns_without_peer"]),
            "turns": _rollouts(row["rollouts"]),
        }
        for row in rows
    ]


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_keep_every_bit(load, value):
    (row,) = load(credited([value], advantages=((value,),)), per="turn")
    assert [row[name].hex() for name in ("reward", "advantage")] == [value.hex()] * 2


def test_integers_of_more_than_53_bits_are_right(load):
    (row,) = load(with_first(credited([1.0], item={"n": LARGE}), seed=LARGE), per="rollout")
    assert (row["seed"], row["item"]) == (LARGE, [{"name": "n", "value": str(LARGE)}])


def test_what_no_column_of_integers_holds_is_refused_by_name_and_leaves_nothing(load, tmp_path):
    with pytest.raises(RecordError, match=r"record\.jsonl, lines from 1: no table can hold them"):
        load(with_first(credited([1.0]), seed=2**64 - 1), per="rollout")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unpaired_surrogate_is_refused_as_the_record_is(load, tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_bytes(encode_group(credited([1.0], item={"a": "HERE"})).replace(b"HERE", rb"\ud800"))
    with pytest.raises(RecordError) as refused:
        list(read_groups(record))
    with pytest.raises(RecordError) as loaded:
        load(record)
    assert str(loaded.value) == str(refused.value)


@pytest.mark.parametrize(
    ("rewards", "scores"),
    [
        (None, (None, None, None)),
        (Rewards(score=None), (None, None, None)),
        (Rewards(score=0.0, outcome=0.0, turns=(0.0,)), (0.0, 0.0, [0.0])),
    ],
    ids=["unknown", "unscored", "zero"],
)
def test_what_was_not_scored_is_none_and_never_0(load, rewards, scores):
    (row,) = load(with_first(credited([1.0]), rewards=rewards), per="rollout")
    assert (row["score"], row["outcome"], row["turn_rewards"]) == scores


def test_open_mappings_are_names_and_values(load):
    group = credited([1.0], item={"text": "a", "answer": {"b": [None, 0.5]}, "none": None})
    (row,) = load(with_first(group, metrics={"solved": 1.0, "": -0.5}), per="rollout")
    assert row["metrics"] == [{"name": "solved", "value": 1.0}, {"name": "", "value": -0.5}]
    assert row["item"] == [
        {"name": "text", "value": '"a"'},
        {"name": "answer", "value": '{"b":[null,0.5]}'},
        {"name": "none", "value": "null"},
    ]


def test_an_item_that_is_no_mapping_has_no_name(load):
    (row,) = load(credited([1.0], item=["a", 1]))
    assert row["item"] == [{"name": None, "value": '["a",1]'}]


def test_failures_are_in_the_rows_of_groups(load):
    failure = Failure(sibling=3, stop_reason=StopReason.POLICY_ERROR, error="E: x", traceback="t", turns=2)
    (row,) = load(credited([1.0], failures=(failure,)))
    (found,) = row["failures"]
    assert (found["sibling"], found["stop_reason"], found["traceback"]) == (3, "policy_error", "t")


@pytest.mark.parametrize(
    ("values", "renamed"),
    [
        (Turn, {"index": "turn", "message": "text"}),
        (Trajectory, {"rewards": "score"}),
    ],
    ids=["turn", "trajectory"],
)
def test_no_field_is_left_out(load, values, renamed):
    (row,) = load(credited([1.0]))
    (rollout,) = row["rollouts"]
    there = {*row, *rollout, *rollout["turns"][0], "contents"}  # which are beside a record
    assert [each.name for each in fields(values) if renamed.get(each.name, each.name) not in there] == []


@pytest.mark.parametrize("per", ["group", "rollout", "turn"])
def test_columns_are_declared_alike_whatever_is_in_them(load, tmp_path, per):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    declared = load(empty, per=per).features
    assert load(*every_group(), per=per).features == declared
    assert "null" not in str(declared)


def test_a_golden_record_is_read(load):
    groups = list(read_groups(RECORD / "golden.jsonl"))
    assert [row["item_id"] for row in load(RECORD / "golden.jsonl")] == [
        each.group.item_id for each in groups
    ]


def test_the_order_is_that_of_the_record_over_more_than_one_batch(load):
    groups = [credited([float(number)], item_id=str(number)) for number in range(2 * _GROUPS + 3)]
    assert load(*groups, per="turn")["item_id"] == [str(number) for number in range(2 * _GROUPS + 3)]


def test_a_run_is_found_by_its_folder(load, tmp_path):
    (tmp_path / "record.jsonl").write_bytes(encode_group(credited([1.0])))
    assert len(load(tmp_path)) == 1


def test_a_record_edited_at_its_size_and_dated_back_is_read_anew(load, tmp_path):
    load(credited([1.0]))
    record = tmp_path / "record.jsonl"
    before = record.stat()
    while record.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files goes on in steps
        record.write_bytes(record.read_bytes().replace(b'"item_id":"item"', b'"item_id":"edit"'))
        os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert record.stat().st_size == before.st_size
    assert load(record)["item_id"] == ["edit"]


def test_a_record_that_grew_is_read_anew(load, tmp_path):
    assert len(load(credited([1.0]))) == 1
    assert len(load(credited([1.0]), credited([2.0]))) == 2


def test_a_record_that_is_as_it_was_is_not_read_twice(load, tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_bytes(encode_group(credited([1.0])))
    first = load(record).cache_files
    written = Path(first[0]["filename"]).stat().st_ino
    assert Path(load(record).cache_files[0]["filename"]).stat().st_ino == written


def test_of_a_run_that_was_killed_in_a_line_the_whole_lines_are_there(load, tmp_path):
    record = tmp_path / "record.jsonl"
    line = encode_group(credited([1.0]))
    record.write_bytes(line + line[:-20])
    assert len(load(record)) == 1


def test_a_malformed_line_is_named_and_leaves_no_table(load, tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_bytes(encode_group(credited([1.0])) + b"{}\n")
    with pytest.raises(RecordError, match=r"record\.jsonl, line 2"):
        load(record)
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_kind_of_rows_is_refused():
    with pytest.raises(UsageError, match="no rows per 'token'; choose one of"):
        records.load("r.jsonl", per="token")


def test_tables_are_their_owners_alone(load):
    table = load(credited([1.0])).cache_files[0]["filename"]
    assert Path(table).stat().st_mode & 0o077 == 0


def test_a_dataset_can_be_filtered_and_mapped(load):
    rows = load(credited([1.0, None], [0.25]), per="turn")
    assert rows.filter(lambda row: row["reward"] is not None).map(lambda row: {"twice": row["reward"] * 2})[
        "twice"
    ] == [2.0, 0.5]
    assert isinstance(rows, datasets.Dataset)
