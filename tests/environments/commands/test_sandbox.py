"""`turnwise sandbox`: checks by line or JSON, lists, reaps, and exit codes that say how it went."""

import json

import pytest

from environments.cli import main
from tools.sandbox import cgroup, processes
from tools.sandbox.checks.registry import CHECKS, Check, CheckFailedError


@pytest.fixture
def _failing(monkeypatch):
    async def run(bench):
        raise CheckFailedError("got 1,\nwanted 2")

    monkeypatch.setitem(CHECKS, "fails", Check(number=200, name="fails", claim="It fails.", run=run))


def test_one_line_per_check_and_the_sum(capsys):
    assert main(["sandbox", "check", "local", "--only", "exec_output", "--only", "exec_as_user"]) == 0
    done, skipped, total = capsys.readouterr().out.splitlines()
    assert done == "ok       23 exec_output"
    assert skipped.startswith("skipped  39 exec_as_user: commands run as the sandbox's one unprivileged user")
    assert total == "local: 1 ok, 0 failed, 1 skipped, of 2 checks"


@pytest.mark.usefixtures("_failing")
def test_a_failure_says_why_in_its_line_and_the_exit_code_is_1(capsys):
    assert main(["sandbox", "check", "--only", "fails"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "failed  200 fails: got 1, wanted 2"


def test_json_is_one_object_per_line_and_nothing_else(capsys):
    assert main(["sandbox", "check", "--json", "--only", "exec_output", "--only", "cwd_custom"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["number"], line["name"], line["status"]) for line in lines] == [
        (23, "exec_output", "ok"),
        (42, "cwd_custom", "ok"),
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["check", "lokal"], "did you mean 'local'?"),
        (["check", "--only", "exec_outptu"], "did you mean 'exec_output'?"),
        (["list", "vm"], "choose from ['docker', 'local']"),
    ],
)
def test_a_wrong_name_is_one_line_and_exit_code_2(args, message, capsys):
    assert main(["sandbox", *args]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(not cgroup.controllers(), reason="no control group can be made here")
def test_an_orphan_is_listed_and_reaped(capsys):
    namespace = processes.identity(1).split("-")[0]
    parent = next(directory for directory, _ in cgroup.controllers().values())
    orphan = parent / f"turnwise.{namespace}-1-1.0"
    orphan.mkdir()
    main(["sandbox", "list", "local"])
    assert f"local   orphan   process 1        {orphan.name}" in capsys.readouterr().out.splitlines()
    assert main(["sandbox", "reap", "local"]) == 0
    assert f"local   removed {orphan.name}" in capsys.readouterr().out.splitlines()
    assert not orphan.exists()
