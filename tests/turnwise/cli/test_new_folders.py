"""Commands that write a new file leave nothing behind for a wrong input, folders neither."""

import pytest

from turnwise.cli.main import main

COMMANDS = {
    "export": ["--view", "openai"],
    "import": [],
    "credit": ["--estimator", "rloo"],
}
OUT = {"credit": "--write"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("exists", [False, True], ids=["absent", "malformed"])
def test_a_wrong_input_makes_no_folder(tmp_path, capfd, command, exists):
    given = tmp_path / "given.jsonl"
    if exists:
        given.write_text("no line of anything\n")
    before = set(tmp_path.iterdir())
    out = tmp_path / "new" / "folder" / "out.jsonl"
    assert main([command, str(given), *COMMANDS[command], OUT.get(command, "--out"), str(out)]) == 2
    assert set(tmp_path.iterdir()) == before


def test_a_folder_that_was_there_stays(tmp_path, capfd):
    (tmp_path / "old").mkdir()
    assert main(["import", str(tmp_path / "none"), "--out", str(tmp_path / "old/new/out.jsonl")]) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert not list((tmp_path / "old").iterdir())
