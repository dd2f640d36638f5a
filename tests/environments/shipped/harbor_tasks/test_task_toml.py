import logging
import os
import pickle

import pytest

from environments.shipped.harbor_tasks.env import HarborTasksConfig
from environments.shipped.harbor_tasks.task_folder import find_tasks
from tests.environments.shipped.harbor_tasks.task_folders import PASS, TOML, opened, write_task
from tools.errors import ConfigError
from turnwise.cli.main import main
from turnwise.records import read_groups

VALUE = "value-of-the-host"
KEY = '[environment.env]\nKEY = "${HOST_KEY}"\n'


def read(root, **granted):
    (task,), refused = find_tasks(root, granted)
    assert not refused
    return task


def test_a_name_that_nothing_reads_is_empty(tmp_path):
    write_task(tmp_path, "a", {}, test="true", toml=TOML + KEY)
    task = read(tmp_path)
    assert (task.table.environment.env, task.unset) == ({"KEY": ""}, {"HOST_KEY"})


@pytest.mark.parametrize(
    ("part", "files"),
    [
        ("verifier", {"tests/judge.py": "os.environ['KEY']"}),
        ("environment", {"tests/judge.py": "os.environ['KEY']"}),
        ("environment", {"environment/Dockerfile": "FROM x\nARG KEY\n"}),
        ("verifier", {"tests/judge.py": "import some_vendor"}),
    ],
)
def test_a_name_that_tests_or_machine_read_is_refused_with_the_flag_that_grants_it(tmp_path, part, files):
    toml = f'[{part}.env]\nKEY = "${{SOME_VENDOR_API_KEY}}"\n'
    write_task(tmp_path, "a", files, test="true", toml=toml)
    reason = f"needs a variable of the host: {part}.env.KEY; grant it with --env.task_variables "
    assert find_tasks(tmp_path)[1] == {"a": f"{reason}SOME_VENDOR_API_KEY"}
    assert read(tmp_path, SOME_VENDOR_API_KEY="v").table.model_dump()[part]["env"] == {"KEY": "v"}


def test_a_name_that_only_the_solution_reads_is_empty(tmp_path):
    solution = {"solution/solve.sh": "echo $KEY"}
    write_task(tmp_path, "a", solution, test="true", toml='[solution.env]\nKEY = "${HOST_KEY}"\n')
    assert read(tmp_path).unset == {"HOST_KEY"}


def test_a_default_is_used_unless_the_name_is_granted(tmp_path):
    toml = '[verifier.env]\nKEY = "${HOST_KEY:-a}/b"\n'
    write_task(tmp_path, "a", {}, test="echo $KEY", toml=toml)
    assert read(tmp_path).table.verifier.env == {"KEY": "a/b"}
    assert read(tmp_path, HOST_KEY="c").table.verifier.env == {"KEY": "c/b"}


async def test_each_empty_name_is_one_warning(tmp_path, caplog):
    for name in "ab":
        write_task(tmp_path, name, {}, test="true", toml=TOML + KEY.replace("HOST_KEY", "ONCE"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # as `check` does
            async with opened(tmp_path):
                pass
    assert [each.getMessage() for each in caplog.records] == [
        "ONCE of the host is empty in 2 of 2 tasks, whose tests do not read it; --env.task_variables ONCE "
        "grants its value"
    ]


def test_data_names_no_variable_of_the_host_on_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_KEY", VALUE)
    write_task(tmp_path, "a", {}, test="true", toml=TOML + KEY)
    assert read(tmp_path).table.environment.env == {"KEY": ""}


def test_a_granted_value_reaches_machine_solution_and_tests_and_no_record(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HOST_KEY", VALUE)
    monkeypatch.chdir(tmp_path)
    solve = {"solution/solve.sh": 'echo "$KEY $AGAIN"; echo "$KEY$AGAIN" > made'}
    toml = f'{TOML}{KEY}[verifier.env]\nMINE = "${{HOST_KEY}}"\n[solution.env]\nAGAIN = "${{HOST_KEY}}"\n'
    test = f'echo "$MINE" >&2; {PASS.format("""[ "$(cat made)" = "$MINE$KEY" ]""")}'
    write_task(tmp_path / "tasks", "a", solve, test=test, toml=toml)
    settings = ["--env.tasks", "tasks", "--env.task_variables", "HOST_KEY", "--env.scripted_skill", "1"]
    assert main(["process", "harbor_tasks", *settings, "--env.group_size", "2"]) == 0
    (group,) = read_groups(tmp_path / "runs/harbor_tasks/default/record.jsonl")
    assert {each.score for each in group.group.trajectories} == {1.0}
    shown = capfd.readouterr()
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert b"[secret] [secret]" in b"".join(path.read_bytes() for path in files)
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]
    assert VALUE not in shown.out + shown.err


def test_a_message_to_workers_has_names_without_values(monkeypatch):
    monkeypatch.setenv("HOST_KEY", VALUE)
    config = HarborTasksConfig(task_variables=["HOST_KEY"]).with_variables(os.environ)
    assert config.granted() == {"HOST_KEY": VALUE}
    message = pickle.dumps(config)
    assert VALUE.encode() not in message
    assert pickle.loads(message).with_variables(os.environ).granted() == {"HOST_KEY": VALUE}


def test_a_name_that_is_not_set_is_refused():
    with pytest.raises(ConfigError, match=r"--env.task_variables NO_SUCH: this environment variable is not"):
        HarborTasksConfig(task_variables=["NO_SUCH"]).with_variables({})
