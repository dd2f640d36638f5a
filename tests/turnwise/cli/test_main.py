import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from environments.run.loading import SHIPPED
from tests.equipment import commands
from tests.tables import cases
from tools.errors import RunError
from turnwise.cli.main import COMMANDS, exit_code_of, main

ROOT = Path(__file__).resolve().parents[3]
ENV_FILE = """
from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, say
from tools.terminal import terminal


class Echo(AgentEnv):
    "Write a word into a file."

    name = "echo"
    tools = (terminal,)

    async def load_items(self):
        return [{"id": word} for word in ("one", "two", "three")]

    def format_prompt(self, item):
        return f"Write {item['id']} into out.txt."

    async def compute_reward(self, item, trajectory, ctx):
        written = await ctx.sandbox.exec("cat out.txt")
        return float(written.text().strip() == item["id"])

    def scripted_choices(self, item, messages, tools, skill):
        if messages[-1].role == "tool":
            return [Choice(probability=1.0, message=say("done"))]
        right = call("terminal", {"command": f"echo {item['id']} > out.txt"})
        wrong = call("terminal", {"command": "echo nothing > out.txt"})
        return [Choice(probability=skill, message=right), Choice(probability=1 - skill, message=wrong)]


class Alike(Echo):
    "Asks the same for every item."

    name = "alike"

    def format_prompt(self, item):
        return "Write the word into out.txt."
"""


@pytest.fixture
def env_file(tmp_path):
    path = tmp_path / "echo_env.py"
    path.write_text(ENV_FILE)
    return path


@pytest.fixture
def failing(capsys, monkeypatch):
    """Run a command that must fail as bad input does; gives its one line."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*args):
        assert main(args) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith("turnwise: error: ")
        return line

    return run


python = partial(commands.python, PYTHONPATH=ROOT)
"""A process of the user's: our packages are found as an editable install finds them."""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_help_names_every_command(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)
    first_steps, run = out.partition("First steps:")[2].split("Run:")
    assert "  list " in first_steps
    assert "  process " in run.partition("\n\n")[0]


@pytest.mark.parametrize("args", [["--help"], ["quiz", "--help"], ["quiz", "--env.help", "group_size"]])
def test_help_of_check_checks_nothing(args, capfd):
    assert main(["check", *args]) == 0
    out, err = capfd.readouterr()
    assert "Rollouts per item." in out or "Find out whether" in out
    assert "opens" not in out + err


@pytest.mark.parametrize("args", [["--help"], ["list"]])
def test_help_and_list_import_nothing_heavy(args, tmp_path):
    code = (
        f"import sys; from turnwise.cli.main import main; main({args}); "
        "print(sorted({'atroposlib', 'transformers', 'datasets', 'openai', 'numpy'} & set(sys.modules)))"
    )
    assert python("-c", code, cwd=tmp_path).stdout.splitlines()[-1] == "[]"


def test_a_run_imports_nothing_of_what_only_dependencies_need(tmp_path):
    code = (
        "import sys; from turnwise.cli.main import main; "
        "main(['process', 'quiz', '-n', '1', '-o', 'r.jsonl']); main(['view', 'r.jsonl']); "
        "heavy = {'polars', 'sympy', 'wandb', 'transformers', 'atroposlib', 'datasets'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert python("-c", code, cwd=tmp_path).stdout.splitlines()[-1] == "[]"


@cases("name", COMMANDS)
def test_every_command_can_be_loaded_and_those_that_take_an_environment_are_marked(name):
    command = COMMANDS[name].load()
    assert isinstance(command, click.Command)
    assert COMMANDS[name].runs_env == any(param.name == "env" for param in command.params)


def test_list_names_each_environment_in_one_line(capsys):
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SHIPPED)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["bogus"], "No such command 'bogus'"),
        (["proces"], "No such command 'proces'; did you mean 'process'?; see turnwise --help"),
        (["process"], "no environment given"),
        (["process", "bogus"], "no environment 'bogus'; choose one of code_debug, "),
        (["process", "code_debug", "--frsh"], "no option --frsh; did you mean --fresh?"),
        (["process", "code_debug", "more"], "unexpected extra argument"),
        (["process", "{env}", "--env.group_sise", "4"], "did you mean --env.group_size?"),
        (["process", "{env}", "--out", "{folder}"], "Is a directory"),
        (["process", "{env}", "--out", "."], "cannot write .: Is a directory"),
        (["process", "{env}", "--env.enabled_toolsets", "bogus"], "bogus"),
        (["process", "{env}", "--env.estimator", "bogus"], "bogus"),
        (["process", "code_debug", "--env.dataset_path", "gone.jsonl"], "no dataset file at gone.jsonl"),
        (["process", "{env}", "--openai.base_url", "http://127.0.0.1:9/v1"], "http://127.0.0.1:9/v1"),
        (["process", "{env}", "--openai.model_name", "x"], "model_name is for a model server, and none"),
        (["process", "judged_writing", "--judge.model_name", "x"], "give --judge.base_url"),
        (["evaluate", "{env}", "--out", "{env_path}"], "cannot write"),
        (["mock-model", "{env}", "--host", "256.0.0.1"], "cannot listen on 256.0.0.1:8000"),
        (["mock-model", "{env}", "--port", "x"], "'x' is not a valid integer"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(failing, env_file, tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    filled = [arg.format(env=f"{env_file}:Echo", env_path=env_file, folder=tmp_path) for arg in args]
    assert said in failing(*filled)
    assert list(tmp_path.rglob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("def __init__(self): pass", "Own.__init__ takes other arguments; write `def __init__(self, *args"),
        ("def __init__(self, *args): pass", "Own.__init__ does not call the one of AgentEnv; write `def"),
        ("def __init__(self, *args): open('gone.json')", "line 3: FileNotFoundError"),
    ],
    ids=["arguments", "super", "raises"],
)
def test_an_init_that_does_not_work_is_one_line(failing, env_file, tmp_path, monkeypatch, init, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(f"import echo_env\nclass Own(echo_env.Echo):\n    {init}\n")
    assert said in failing("process", "own.py:Own")


def test_a_mock_model_plays_the_scripted_agent_over_http(env_file, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "turnwise", "mock-model", "echo_env.py:Echo", "--port", "0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        url = server.stdout.readline().split()[0]
        options = ("--openai.base_url", url, "--openai.model_name", "scripted", "--out", "http.jsonl")
        over_http = python("-m", "turnwise", "process", "echo_env.py:Echo", *options, cwd=tmp_path)
        server.send_signal(signal.SIGINT)
    assert over_http.returncode == 0, over_http.stderr
    python("-m", "turnwise", "process", "echo_env.py:Echo", "--out", "here.jsonl", cwd=tmp_path)
    tokens = [
        {line["item_id"]: line["tokens"] for line in lines(tmp_path / name)}
        for name in ("http.jsonl", "here.jsonl")
    ]
    assert tokens[0] == tokens[1]


def test_a_mock_model_says_which_items_it_cannot_tell_apart(env_file, tmp_path):
    # A port that is none ends it right after it said so.
    done = python("-m", "turnwise", "mock-model", "echo_env.py:Alike", "--host", "256.0.0.1", cwd=tmp_path)
    assert "3 items have 1 different openings" in done.stderr


def test_a_command_may_use_as_many_descriptors_as_the_machine_allows(tmp_path):
    code = (
        "import resource; from turnwise.cli.main import main; resource.setrlimit(resource.RLIMIT_NOFILE, "
        "(256, 4096)); main(['list']); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert python("-c", code, cwd=tmp_path).stdout.splitlines()[-1] == "(4096, 4096)"


def test_one_error_of_several_tasks_is_one_line(capfd):
    error = ExceptionGroup("tasks", [RunError("a worker process was ended with -9")])
    assert exit_code_of(error) == 1
    assert capfd.readouterr().err == "turnwise: error: a worker process was ended with -9\n"


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"turnwise {version('turnwise')}\n"


@cases(
    ("words", "completed"),
    [
        ("turnwise pro", "process"),
        ("turnwise process qu", "quiz"),
        ("turnwise process quiz --fre", "--fresh"),
        ("turnwise process quiz --env.group_s", "--env.group_size"),
        ("turnwise process quiz --env.estimator turn_ret", "turn_return"),
        ("turnwise process quiz --env.branch_at dr", "draw"),
    ],
    ids=["command", "environment", "option", "setting", "estimator", "choice"],
)
def test_a_shell_completes_what_is_unique(words, completed, monkeypatch, capsys):
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_TURNWISE_COMPLETE", "bash_complete")
    assert main([]) == 0
    assert capsys.readouterr().out == f"plain,{completed}\n"


def test_short_options_are_settings(env_file, tmp_path, capsys):
    out = tmp_path / "r.jsonl"
    assert main(["process", f"{env_file}:Echo", "-n", "2", "-r", "3", "-o", str(out)]) == 0
    groups = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(each["trajectories"]) for each in groups] == [3, 3]


@cases(
    ("args", "said"),
    [
        (["-r", "0"], "--env.group_size should be greater than or equal to 1"),
        (["-n", "two"], "--env.max_items"),
        (["-m", "x"], "give --openai.base_url"),
        (["-r", "2", "--env.group_size", "3"], "-r '2' is --env.group_size, which is given as '3', too"),
        (["-o", "a", "--env.data_path_to_save_groups", "b"], "--out 'a' is --env.data_path_to_save_groups"),
    ],
    ids=["rollouts", "items", "model", "given twice", "out given twice"],
)
def test_a_wrong_value_of_a_short_option_names_its_setting(args, said, env_file, capsys):
    assert main(["process", f"{env_file}:Echo", *args]) == 2
    assert said in capsys.readouterr().err
