"""The copy of an environment's source: bounded, and in the place of the former one."""

import pytest

from environments.run import run_files
from environments.run.run_files import copy_environment


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "prompts").mkdir(parents=True)
    (folder / "env.py").write_text("A = 1  # one\n")
    (folder / "prompts/judge.md").write_text("Judge.\n")
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_keeps_the_layout_and_takes_the_place_of_the_former_one(source, tmp_path):
    assert copy_environment(source, tmp_path / "to") == {}
    assert files_below(tmp_path / "to") == {"env.py", "prompts/judge.md"}
    copy_environment({"env.py": source["env.py"]}, tmp_path / "to")
    assert files_below(tmp_path / "to") == {"env.py"}


def test_data_of_100_mb_is_left_out_and_told(source, tmp_path):
    large = tmp_path / "users.jsonl"
    with large.open("wb") as file:
        file.truncate(100_000_000)
    assert copy_environment({**source, "users.jsonl": large}, tmp_path / "to") == {
        "users.jsonl": "100,000,000 bytes"
    }
    assert files_below(tmp_path / "to") == {"env.py", "prompts/judge.md"}


def test_files_beyond_the_most_or_gone_are_left_out_and_named(source, tmp_path, monkeypatch):
    left_out = copy_environment({**source, "gone.py": tmp_path / "gone.py"}, tmp_path / "to")
    assert left_out == {"gone.py": "cannot be read: No such file or directory"}
    monkeypatch.setattr(run_files, "MOST_FILES", 1)
    assert list(copy_environment(source, tmp_path / "to")) == list(source)[1:]


def test_a_link_in_its_place_is_replaced_and_what_it_leads_to_stays(source, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("all of it")
    (tmp_path / "to").symlink_to(tmp_path / "mine")
    copy_environment(source, tmp_path / "to")
    assert files_below(tmp_path / "mine") == {"thesis.txt"}
    assert not (tmp_path / "to").is_symlink()
