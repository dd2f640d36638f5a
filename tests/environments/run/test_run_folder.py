"""The folder of a run: what each file says, also after a resume, and what a new start leaves of the old."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from environments.record.origin import OtherRunError
from environments.record.recorder import read_contents, read_groups
from environments.record.run_folder import RunFolder, record_at, run_folder
from environments.run import run_files
from environments.run.experiment import origin_of
from environments.run.open_run import RunOptions
from environments.run.process_run import process
from environments.run.run_files import copy_environment
from environments.run.run_list import is_running
from tests.environments.chat import chat_env
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet
from tools.errors import ConfigError, RecordError
from turnwise.cli.env_command import EnvCall
from turnwise.cli.settings import Overrides, merge_settings, read_yaml, split_overrides

FOLDER = RunFolder(Path("runs/chat/default"))


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*, name=None, fresh=False, accept=False, sources=None, **fields):
    """A run of the chat; what it showed."""
    console, options = quiet(), RunOptions(name=name, fresh=fresh, accept=accept, sources=sources)
    code = asyncio.run(process(chat(**{"group_size": 2, **fields}), console, options=options))
    return code, console.file.getvalue()


def summary(folder=FOLDER):
    return json.loads(folder.summary.read_text())


def test_a_run_has_a_folder_whose_files_are_its_owners_alone():
    assert run()[0] == 0
    files = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in FOLDER.path.rglob("*") if path.is_file()
    }
    names = {"config.yaml", "record.jsonl", "summary.json", "fingerprint", "log", "chat_env.py"}
    assert names <= files.keys()
    assert set(files.values()) == {0o600}


def test_a_plain_file_has_no_folder_around_it_and_is_not_given_with_a_name():
    run(data_path_to_save_groups="plain.jsonl")
    assert {path.name for path in Path().iterdir()} == {"plain.jsonl"}
    with pytest.raises(ConfigError, match="give one of them"):
        run(data_path_to_save_groups="plain.jsonl", name="b")


def test_the_settings_say_where_each_came_from():
    Path("some.yaml").write_text("env: {max_turns: 5, group_size: 3}\n")
    flags, _ = split_overrides(["--env.group_size", "2"])
    file = read_yaml(Path("some.yaml"))
    call = EnvCall(env_cls=Chat, file=file, flags=flags)
    run(max_turns=5, sources=call.sources())
    lines = [line.strip() for line in FOLDER.config.read_text().splitlines()]
    assert "max_turns: 5  # some.yaml" in lines
    assert "group_size: 2  # command line" in lines
    assert "token_budget: 16384  # class default" in lines


def test_the_settings_make_the_same_experiment_again():
    run(estimator_params={"gamma": 1e-05}, condenser=["fit_context"])
    again = merge_settings(Chat.config_init(), read_yaml(FOLDER.config), Overrides())
    assert again.env.estimator_params == {"gamma": 1e-05}

    async def fingerprint():
        async with Chat(again.env) as env:
            return origin_of(env).fingerprint

    assert asyncio.run(fingerprint()) == json.loads(FOLDER.fingerprint.read_text())["fingerprint"]
    assert "group_size: 2  # program" in FOLDER.config.read_text()


def test_the_fingerprint_is_written_with_what_it_is_of_and_the_source_is_copied():
    run()
    told = json.loads(FOLDER.fingerprint.read_text())
    assert read_contents(FOLDER.record).origins == {told["fingerprint"]: told["facts"]}
    source = Path(chat_env.__file__).read_text()
    assert (FOLDER.environment / "chat_env.py").read_text() == source


def test_after_a_resume_the_summary_is_of_the_whole_record_and_the_log_of_both_runs():
    run(max_items=2)
    _, shown = run()
    assert "groups            1" in shown
    told = summary()
    scores = [t.score for each in read_groups(FOLDER.record) for t in each.group.trajectories]
    assert told["of"] == {"groups": 3, "bytes": FOLDER.record.stat().st_size}
    assert told["aggregates"]["score"]["count"] == len(scores) == 6
    assert told["score"] == pytest.approx(sum(scores) / 6)
    assert (told["state"], told["planned"], told["done"]) == ("finished", 3, 3)
    log = FOLDER.log.read_text()
    assert (log.count("== 20"), log.count("score  ")) == (2, 2)
    assert "resuming: 2 of 3 groups" in log
    assert not is_running(FOLDER.log)


def test_other_settings_are_refused_with_what_differs_and_change_no_file():
    run()
    before = {path: path.read_bytes() for path in FOLDER.path.rglob("*") if path.is_file()}
    with pytest.raises(OtherRunError, match=r"max_turns was 10, is 5\); start over with --fresh, run it as"):
        run(max_turns=5)
    assert {path: path.read_bytes() for path in FOLDER.path.rglob("*") if path.is_file()} == before


def test_fresh_puts_the_former_run_aside_whole():
    run(max_items=1)
    run(max_items=2, fresh=True)
    _, shown = run(max_turns=5, fresh=True)
    assert "put aside as runs/chat/default.2" in shown
    kept = [len(list(read_groups(record_at(Path("chat") / name)))) for name in ("default.1", "default.2")]
    assert kept == [1, 2]
    assert "max_turns: 10" in RunFolder(Path("runs/chat/default.2")).config.read_text()
    assert summary()["of"]["groups"] == 3


def test_accepting_goes_on_once_and_for_all_and_each_line_keeps_its_fingerprint():
    run(max_items=1)
    assert "accepted: " in run(max_items=2, max_turns=5, accept=True)[1]
    assert "as was accepted once" in run(max_turns=5)[1]
    prints = [each.group.fingerprint for each in read_groups(FOLDER.record)]
    assert prints[0] != prints[1] == prints[2]
    told = json.loads(FOLDER.fingerprint.read_text())
    assert told["fingerprint"] == prints[1]
    assert told["accepted"] == ["max_turns was 10, is 5"]
    assert [each["fingerprint"] for each in told["earlier"]] == [prints[0]]
    assert (FOLDER.path / f"environment-{prints[0][:8]}/chat_env.py").is_file()
    assert "max_turns was 10, is 5" in FOLDER.log.read_text()
    assert summary()["experiments"] == 2


def test_a_run_that_an_error_ended_says_so():
    run()

    async def broken(*_, **__):
        raise ConfigError("the token at https://me:secret@host is wrong")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("environments.run.process_run.roll_out", broken)
        with pytest.raises(ConfigError):
            run()
    told = summary()
    assert told["state"] == "broke"
    assert "https://***@host" in told["error"]
    assert told["of"]["groups"] == 3
    assert "secret" not in FOLDER.log.read_text()


def test_an_environment_of_any_name_has_a_folder_below_runs():
    names = {"a/b": "a%2Fb", "..": "%2E.", ".x": "%2Ex", "ü": "%C3%BC", "plain": "plain"}
    for env, folder in names.items():
        assert run_folder(env, "default").path == Path("runs") / folder / "default"


def test_a_record_is_found_by_its_file_its_folder_and_its_name():
    run()
    assert (
        record_at(FOLDER.record) == record_at(FOLDER.path) == record_at(Path("chat/default")) == FOLDER.record
    )
    for place in ("..", "/", "a\0b", "a" * 300, "*"):
        with pytest.raises(RecordError, match="no record at"):
            record_at(Path(place))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "prompts").mkdir(parents=True)
    (folder / "env.py").write_text("A = 1  # one\n")
    (folder / "prompts/judge.md").write_text("Judge.\n")
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


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
