"""`turnwise doctor sandbox`: checks by line or JSON, lists, reaps, and exit codes that say how it went."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import TEST_IMAGE, docker_engine, tier_c
from tools.sandbox.conformance.checks import CHECKS, Check, CheckFailedError
from tools.sandbox.host import ownership as processes
from tools.sandbox.local import cgroup
from turnwise.cli.main import main

__all__ = ["docker_engine", "tier_c"]
_ORPHAN = f"{cgroup.PREFIX}.{processes.identity(1).split('-')[0]}-1-1.0"
"""A first process of this machine that started at another time."""


@pytest.fixture
def _failing(monkeypatch):
    async def run(bench):
        raise CheckFailedError("got 1,\nwanted 2")

    monkeypatch.setitem(CHECKS, "fails", Check(number=200, name="fails", claim="It fails.", run=run))


def test_one_line_per_check_and_the_sum(capsys):
    assert main(["doctor", "sandbox", "local", "--only", "exec_output", "--only", "exec_as_user"]) == 0
    done, skipped, total = capsys.readouterr().out.splitlines()
    assert done == "ok       23 exec_output"
    assert skipped.startswith("skipped  39 exec_as_user: commands run as the sandbox's one unprivileged user")
    assert total == "local: 1 ok, 0 failed, 1 skipped, of 2 checks"


@pytest.mark.usefixtures("_failing")
def test_a_failure_says_why_in_its_line_and_the_exit_code_is_1(capsys):
    assert main(["doctor", "sandbox", "--only", "fails"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "failed  200 fails: got 1, wanted 2"


def test_json_is_one_object_per_line_and_nothing_else(capsys):
    assert main(["doctor", "sandbox", "--json", "--only", "exec_output", "--only", "cwd_custom"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["number"], line["name"], line["status"]) for line in lines] == [
        (23, "exec_output", "ok"),
        (42, "cwd_custom", "ok"),
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lokal"], "did you mean 'local'?"),
        (["--only", "exec_outptu"], "did you mean 'exec_output'?"),
        (["--tier", "Z"], "'Z' is not one of 'B', 'C'"),
        (["vm", "--list"], "choose from ['docker', 'local']"),
    ],
)
def test_a_wrong_name_is_one_line_and_exit_code_2(args, message, capsys):
    assert main(["doctor", "sandbox", *args]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def orphan(tmp_path, monkeypatch):
    """The folder of an owner that is gone, where no other program looks for orphans."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / _ORPHAN
    folder.mkdir()
    return folder


def test_a_program_that_looks_for_the_first_time_takes_nothing_away(orphan):
    turnwise = Path(sys.executable).with_name("turnwise")
    listed = subprocess.run(
        [turnwise, "doctor", "sandbox", "local", "--list", "--json"], capture_output=True, check=True
    )
    entry = {"backend": "local", "name": orphan.name, "owner": 1, "state": "orphan"}
    assert entry in [json.loads(line) for line in listed.stdout.splitlines()]
    assert orphan.exists()


def test_an_orphan_is_reaped(orphan, capsys):
    assert main(["doctor", "sandbox", "local", "--reap"]) == 0
    assert f"local   removed {orphan.name}" in capsys.readouterr().out.splitlines()
    assert not orphan.exists()


@pytest.mark.skipif(not cgroup.controllers(), reason="no control group can be made here")
def test_the_group_of_an_orphan_is_reaped():
    parent = next(directory for directory, _ in cgroup.controllers().values())
    group = parent / _ORPHAN
    group.mkdir(exist_ok=True)
    assert main(["doctor", "sandbox", "local", "--reap"]) == 0
    assert not group.exists()


@pytest.mark.usefixtures("tier_c")
def test_tier_c_is_checked_with_the_network_that_it_cannot_take_away(capsys):
    args = ["doctor", "sandbox", "local", "--tier", "C", "--network", "full"]
    assert main([*args, "--only", "exec_output", "--only", "there_is_no_network"]) == 0
    done, skipped, _ = capsys.readouterr().out.splitlines()
    assert done == "ok       23 exec_output"
    assert skipped == "skipped  83 there_is_no_network: the host's network is within reach"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tier", "C"], "cannot be kept off the network without namespaces"),
        (["--image", "debian"], "shows this machine's programs, not image 'debian'"),
    ],
    ids=["network", "image"],
)
def test_options_that_no_sandbox_opens_with_are_told_once_and_not_per_check(capsys, options, reason):
    assert main(["doctor", "sandbox", "local", *options]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert reason in told.err


@pytest.mark.docker
@pytest.mark.usefixtures("docker_engine")
def test_making_an_image_ready_is_shown_before_the_checks(tmp_path, capsys):
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nENV B=1\n")
    assert main(["doctor", "sandbox", "docker", "--image", str(tmp_path), "--only", "exec_output"]) == 0
    seen = capsys.readouterr()
    assert seen.err.splitlines()[0] == f"building {tmp_path}"
    assert seen.out.splitlines()[0] == "ok       23 exec_output"
