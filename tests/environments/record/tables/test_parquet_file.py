"""`turnwise export --view parquet` writes tables that everybody reads with their types."""

import stat

import datasets
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from environments.record.group_line import encode_group
from tests.environments.record.any_group import Draw
from tools.errors import RecordError, UsageError
from turnwise import records
from turnwise.cli.export import command


@pytest.fixture
def record(tmp_path):
    """Any groups, those that failed too."""
    path = tmp_path / "record.jsonl"
    path.write_bytes(b"".join(encode_group(Draw(seed).credited()) for seed in range(40)))
    return path


@pytest.fixture
def export(record, tmp_path):
    def export(*options):
        out = tmp_path / "out.parquet"
        arguments = [str(record), "--view", "parquet", "--out", str(out), *options]
        return out, CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)

    return export


def loaded(record, tmp_path, per):
    return list(records.load(record, per=per, cache_dir=tmp_path / "cache"))


@pytest.mark.parametrize("per", ["group", "rollout", "turn"])
def test_its_rows_are_those_of_load(record, tmp_path, export, per):
    out, _ = export("--per", per)
    assert repr(parquet.read_table(out).to_pylist()) == repr(loaded(record, tmp_path, per))


def test_a_row_is_a_turn_unless_another_is_asked_for(record, tmp_path, export):
    out, done = export()
    rows = len(loaded(record, tmp_path, "turn"))
    assert (parquet.read_metadata(out).num_rows, done.stderr) == (rows, f"{rows} rows of a turn each\n")


def test_datasets_reads_it(record, tmp_path, export):
    out, _ = export("--per", "turn")
    rows = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "cache"))
    assert repr(list(rows)) == repr(loaded(record, tmp_path, "turn"))


def test_polars_reads_it(record, tmp_path, export):
    polars = pytest.importorskip("polars")
    out, _ = export("--per", "turn")
    assert repr(polars.read_parquet(out).to_dicts()) == repr(loaded(record, tmp_path, "turn"))


def test_duckdb_reads_it(record, tmp_path, export):
    duckdb = pytest.importorskip("duckdb")
    out, _ = export("--per", "turn")
    rows = duckdb.sql(f"select reward, advantage, tokens from '{out}'").fetchall()
    expected = [(row["reward"], row["advantage"], row["tokens"]) for row in loaded(record, tmp_path, "turn")]
    assert repr(rows) == repr(expected)


def test_a_table_that_fails_half_way_leaves_no_file(record, tmp_path, export):
    with record.open("ab") as lines:
        lines.write(b"{}\n")
    with pytest.raises(RecordError, match=r"record\.jsonl, line 41"):
        export()
    assert [each.name for each in tmp_path.iterdir()] == ["record.jsonl"]


def test_it_is_its_owners_alone(export):
    out, _ = export()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_an_option_of_another_view_is_refused(export):
    with pytest.raises(UsageError, match="--min-score is for --view openai, not parquet"):
        export("--min-score", "1")


def test_an_option_of_tables_is_refused_for_lines(record, tmp_path):
    arguments = [str(record), "--per", "turn", "--out", str(tmp_path / "out")]
    with pytest.raises(UsageError, match="--per is for --view parquet, not token_advantages"):
        CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
