"""`turnwise runs`, and what `process` shows when the source of an environment has changed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from environments.record.run_folder import RunFolder
from environments.run.run_list import RunLog, write_summary
from tests.equipment.commands import turnwise
from turnwise.cli.main import main
from turnwise.cli.runs import command

ROOT = Path(__file__).parents[3]
ENV = """
import helper
from turnwise import AgentEnv
from turnwise import Choice, say

class MyEnv(AgentEnv):
    name = "my"
    sandbox = "none"

    def load_items(self):
        return [{"id": str(number)} for number in range(3)]

    def format_prompt(self, item):
        return item["id"]

    def compute_reward(self, item, trajectory, ctx):
        if helper.STOP_AT == item["id"]:
            import os
            import pathlib
            import signal
            import time
            while pathlib.Path("runs/my/default/record.jsonl").read_bytes().count(b"\\n") < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return helper.worth(trajectory.sibling)

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("yes"))]
"""
HELPER = """
STOP_AT = None

def worth(sibling):
    # a comment
    return float(sibling)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text(ENV)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def process(*options):
    return turnwise("process", *options, "--env.max_concurrent_rollouts", "1", PYTHONPATH=ROOT)


def edit(old, new):
    text = Path("helper.py").read_text()
    assert old in text
    Path("helper.py").write_text(text.replace(old, new))


def listed(*args):
    done = CliRunner().invoke(command, [*args, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_copied_source_with_the_copied_settings_is_the_same_experiment(project):
    assert process("my_env.py", "--env.group_size", "2").returncode == 0
    folder = RunFolder(Path("runs/my/default"))
    done = process(str(folder.environment / "my_env.py"), "--config", str(folder.config))
    assert "nothing to roll out: all 3 groups" in done.stdout, done.stderr


def test_a_killed_run_is_told_and_after_a_resume_its_summary_is_whole(project):
    edit("STOP_AT = None", "STOP_AT = '2'")
    assert process("my_env.py").returncode == -signal.SIGKILL
    (run,) = listed()
    assert (run["state"], run["planned"], run["done"], run["score"]) == ("killed", 3, 2, None)
    assert run["note"] == "the score is of its first 0 groups"
    edit("STOP_AT = '2'", "STOP_AT = None")
    assert process("my_env.py", "--accept").returncode == 0
    (run,) = listed()
    assert (run["state"], run["done"], run["score"]) == ("finished", 3, 1.5)
    assert run["note"] == "groups of 2 experiments"


def test_an_experiment_that_was_accepted_is_counted_where_no_group_was_left_to_make(project):
    assert process("my_env.py").returncode == 0
    assert process("my_env.py", "--accept", "--env.max_turns", "5").returncode == 0
    (run,) = listed()
    assert (run["score"], run["note"]) == (1.5, "groups of 2 experiments")


def test_a_second_process_on_a_folder_is_refused_and_changes_nothing(project):
    process("my_env.py", "--env.max_items", "1")
    folder = RunFolder(Path("runs/my/default"))
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with Locked(folder):
        for options in ((), ("--fresh",)):
            done = process("my_env.py", *options)
            assert done.returncode == 2
            assert "is being written by another process" in done.stderr
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


class Locked:
    """Another process's lock on a record."""

    def __init__(self, folder):
        code = (
            "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); sys.stdin.read()"
        )
        self.holder = subprocess.Popen(
            [sys.executable, "-c", code, folder.record], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self):
        self.holder.stdout.readline()

    def __exit__(self, *_):
        self.holder.communicate()


def made(name, **fields):
    folder = RunFolder(Path("runs/my") / name)
    folder.path.mkdir(parents=True)
    folder.record.write_bytes(b"")
    write_summary(folder.summary, {"env": "my", "state": "finished", "planned": 1, "done": 1} | fields)
    return folder


def test_runs_are_listed_newest_first(project):
    for name, year in (("b", 2024), ("c", 2026), ("a", 2025)):
        made(name, started=f"{year}-01-01 00:00:00 UTC")
    assert [run["name"] for run in listed()] == ["c", "a", "b"]
    assert [run["name"] for run in listed("runs/my/a")] == ["a"]


def test_the_table_has_every_run_in_a_line(project):
    made("a", score=0.5, policy="scripted:0.6", fingerprint="0123456789abcdef")
    made("b", **{"pass@1": 0.25})
    lines = CliRunner().invoke(command, []).output.splitlines()
    assert len(lines) == 3
    assert any("my/a" in line and "0.500" in line and "01234567 " in line for line in lines)
    assert any("my/b" in line and "0.250" in line for line in lines)


def test_a_run_that_goes_on_is_told_from_one_that_was_killed(project):
    folder, log = made("a", state="running"), RunLog()
    log.open(folder.log, title="x")
    assert listed()[0]["state"] == "running"
    log.close()
    assert listed()[0]["state"] == "killed"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"schema": "turnwise.run/9"}'],
    ids=["empty", "torn", "list", "binary", "deep", "other"],
)
def test_a_damaged_summary_is_told_in_its_line_and_the_list_goes_on(project, content):
    made("a")
    made("b").summary.write_bytes(content)
    runs = {run["name"]: run for run in listed()}
    assert runs["a"]["note"] == ""
    assert runs["b"]["note"] == "summary.json is damaged"


@pytest.mark.parametrize(
    "fields",
    [
        {"score": "high"},
        {"score": 10**400},
        {"planned": [1]},
        {"started": 5},
        {"of": [1]},
        {"of": {"bytes": "x", "groups": {}}},
        {"state": ["x"]},
        {"env": "\x1b[31mred\n" * 100},
    ],
    ids=["text", "huge", "planned", "started", "of", "of_values", "state", "control"],
)
def test_fields_of_the_wrong_kind_break_no_list(project, fields):
    made("a", **fields)
    (run,) = listed()
    assert "\x1b" not in run["env"]
    assert "\x1b" not in CliRunner().invoke(command, []).output


@pytest.mark.parametrize(("content", "done", "damaged"), [(b"", 0, False), (b"{\n", None, True)], ids=str)
def test_a_record_that_is_not_what_its_summary_saw_is_counted_or_told(project, content, done, damaged):
    made("a", of={"groups": 1, "bytes": 900}).record.write_bytes(content)
    (run,) = listed()
    assert (run["done"], "record.jsonl is damaged" in run["note"]) == (done, damaged)
    assert run["state"] == "unknown"
    assert "the score is of more than are left: it had 1 groups" in run["note"]


def test_odd_folders_break_no_list(project):
    made("a")
    Path("runs/my/loop").symlink_to("..")
    Path("runs/my/gone").symlink_to("nowhere")
    Path("runs/my/notes.txt").write_text("x")
    (Path("runs/my/b") / "record.jsonl").mkdir(parents=True)
    (Path("runs/my/c")).mkdir()
    (Path("runs/my/c/summary.json")).symlink_to("/dev/zero")
    assert {"a", "b", "c"} <= {run["name"] for run in listed()}


def test_no_runs_and_no_folder(project, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in runs/\n"
    assert main(["runs", "nowhere"]) == 2
    assert capsys.readouterr().err == "turnwise: error: no folder nowhere\n"


def test_a_list_that_cannot_be_written_is_an_error(project):
    made("a")
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        done = subprocess.run(
            [sys.executable, "-m", "turnwise", "runs"],
            env={"PYTHONPATH": str(ROOT)}, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, "cannot write the output" in done.stderr) == (1, True)
