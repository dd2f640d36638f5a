"""`records.load` and `export --view parquet` give what a record holds, exactly, with declared types."""

import json
import os
import stat
from dataclasses import fields, replace
from pathlib import Path

import datasets
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from environments.record.group_line import encode_group
from environments.record.table import _ROWS_AT_ONCE
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Message, Rewards, Turn
from tests.environments.record.any_group import Draw
from tools.errors import RecordError, UsageError
from turnwise import records
from turnwise.cli.export import command


@pytest.fixture
def load(tmp_path):
    """Write groups, or take a file, and load them."""

    def load(*groups):
        record = groups[0] if isinstance(groups[0], Path) else tmp_path / "record.jsonl"
        if not isinstance(groups[0], Path):
            record.write_bytes(b"".join(map(encode_group, groups)))
        return records.load(record, cache_dir=tmp_path / "cache")

    return load


def export(record, *options):
    out = record.with_name("out.parquet")
    arguments = [str(record), "--view", "parquet", "--out", str(out), *options]
    return out, CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)


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


def test_every_value_is_the_one_that_the_record_gives(load):
    groups = [Draw(seed).credited() for seed in range(40)]
    expected = [
        _turn(each, trajectory, index, advantage)
        for each in groups
        for trajectory, advantages in zip(each.group.trajectories, each.advantages, strict=True)
        for index, advantage in enumerate(advantages)
    ]
    assert repr(list(map(_loaded, load(*groups)))) == repr(expected)  # 0.0 is not -0.0


def _turn(each, trajectory, index, advantage):
    turn, rewards = trajectory.turns[index], trajectory.rewards
    tokens = trajectory.rows[turn.span.row].token_ids[turn.span.start : turn.span.end]
    return {
        "group": (each.group.item_id, each.group.epoch, each.status, trajectory.sibling),
        "score": rewards and rewards.score,
        "text": turn.message.content,
        "calls": [(call.id, call.name, call.arguments, call.status) for call in turn.message.tool_calls],
        "results": [(each.content, each.error, each.exit_code) for each in turn.tool_results],
        "replies": [(each.role, each.content) for each in turn.replies],
        "reward": rewards.turns[index] if rewards and rewards.turns else None,
        "parts": dict(rewards.turn_components[index]) if rewards and rewards.turn_components else None,
        "advantage": advantage,
        "tokens": list(tokens),
        "noted": dict(turn.noted),
        "sampling": dict(turn.sampling),
        "context": None
        if turn.context is None
        else [part.content if isinstance(part, Message) else (part.start, part.end) for part in turn.context],
        "anchor": turn.anchor,
    }


def _loaded(row):
    read = {name: json.loads(row[name]) for name in ("tool_calls", "tool_results", "replies", "noted")}
    context = row["context"] and json.loads(row["context"])
    return {
        "group": (row["item_id"], row["epoch"], row["status"], row["sibling"]),
        "score": row["score"],
        "text": row["text"],
        "calls": [
            (call["id"], call["name"], call["arguments"], call["status"]) for call in read["tool_calls"]
        ],
        "results": [(each["content"], each["error"], each["exit_code"]) for each in read["tool_results"]],
        "replies": [(each["role"], each["content"]) for each in read["replies"]],
        "reward": row["reward"],
        "parts": row["parts"] and json.loads(row["parts"]),
        "advantage": row["advantage"],
        "tokens": row["tokens"],
        "noted": read["noted"],
        "sampling": json.loads(row["sampling"]),
        "context": context
        and [part["content"] if "content" in part else (part["start"], part["end"]) for part in context],
        "anchor": row["anchor"],
    }


def test_what_no_column_of_integers_holds_is_refused_by_name_and_leaves_nothing(load, tmp_path):
    with pytest.raises(RecordError, match=r"record\.jsonl, items 'item' to 'item': no table can hold them"):
        load(with_first(credited([1.0]), seed=2**64 - 1))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("rewards", "scores"),
    [
        (None, (None, None, None)),
        (Rewards(score=None), (None, None, None)),
        (Rewards(score=0.0, outcome=0.0, turns=(0.0,)), (0.0, 0.0, 0.0)),
    ],
    ids=["unknown", "unscored", "zero"],
)
def test_what_was_not_scored_is_none_and_never_0(load, rewards, scores):
    (row,) = load(with_first(credited([1.0]), rewards=rewards))
    assert (row["score"], row["outcome"], row["reward"]) == scores


def test_columns_are_declared_alike_whatever_is_in_them_and_no_field_of_a_turn_is_left_out(load, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    declared = load(tmp_path / "empty.jsonl").features
    assert load(credited([1.0, None], [0.25])).features == declared
    renamed = {"index": "turn", "message": "text"}
    assert {renamed.get(each.name, each.name) for each in fields(Turn)} <= declared.keys()


def test_the_order_is_that_of_the_record_over_more_than_one_batch(load):
    groups = [credited([float(number)], item_id=str(number)) for number in range(2 * _ROWS_AT_ONCE + 3)]
    assert load(*groups)["item_id"] == [str(number) for number in range(2 * _ROWS_AT_ONCE + 3)]


def test_a_record_that_changed_is_read_anew_even_at_its_size_and_dated_back(load, tmp_path):
    load(credited([1.0]))
    record = tmp_path / "record.jsonl"
    before = record.stat()
    while record.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files goes on in steps
        record.write_bytes(record.read_bytes().replace(b'"item_id":"item"', b'"item_id":"edit"'))
        os.utime(record, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert record.stat().st_size == before.st_size
    assert load(record)["item_id"] == ["edit"]


def test_a_record_that_is_as_it_was_is_not_read_twice_and_its_table_is_its_owners_alone(load, tmp_path):
    (table,) = load(credited([1.0])).cache_files
    written = Path(table["filename"]).stat()
    (again,) = load(tmp_path).cache_files  # found by its folder
    assert Path(again["filename"]).stat().st_ino == written.st_ino
    assert stat.S_IMODE(written.st_mode) == 0o600


def test_a_malformed_line_is_named_and_leaves_no_table(load, tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_bytes(encode_group(credited([1.0])) + b"{}\n")
    with pytest.raises(RecordError, match=r"record\.jsonl, line 2"):
        load(record)
    with pytest.raises(RecordError, match=r"record\.jsonl, line 2"):
        export(record)
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["record.jsonl"]


def test_a_parquet_file_has_the_rows_of_load_for_every_reader(load, tmp_path):
    rows = list(load(*(Draw(seed).credited() for seed in range(20))))
    out, done = export(tmp_path / "record.jsonl")
    assert done.stderr == f"{len(rows)} rows of a turn each\n"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert repr(parquet.read_table(out).to_pylist()) == repr(rows)
    assert repr(list(datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "c")))) == repr(rows)


def test_polars_and_duckdb_read_it(load, tmp_path):
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    rows = list(load(*(Draw(seed).credited() for seed in range(20))))
    out, _ = export(tmp_path / "record.jsonl")
    assert repr(polars.read_parquet(out).to_dicts()) == repr(rows)
    found = duckdb.sql(f"select reward, advantage, tokens from '{out}'").fetchall()
    assert repr(found) == repr([(row["reward"], row["advantage"], row["tokens"]) for row in rows])


def test_an_option_of_another_view_is_refused(load, tmp_path):
    load(credited([1.0]))
    with pytest.raises(UsageError, match=r"--score-divisor is for --view .*, not parquet"):
        export(tmp_path / "record.jsonl", "--score-divisor", "1")
