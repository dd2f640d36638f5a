"""Agents that are programs, started on the host."""

from dataclasses import replace
from pathlib import Path

import pytest

from environments.rollout.agents.command import SandboxPlayer
from environments.rollout.agents.harnesses import ClaudeCode
from environments.run.experiment import origin_of
from tests.environments.rollout.agents.recorded import Talk, roll_out, rolled_out
from tests.tables import cases
from tests.turnwise.check.checked_envs import checked
from tools.errors import AgentCausedError
from turnwise import Command, ConfigError, StopReason

PROGRAM = """
import json, os, sys, urllib.request

def ask(*messages):
    body = json.dumps({"model": os.environ["TURNWISE_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    reply = json.load(urllib.request.urlopen(urllib.request.Request(url, body, headers)))
    return reply["choices"][0]["message"]

def user(text):
    return {"role": "user", "content": text}

"""


class Prompted(Talk):
    def format_prompt(self, item):
        return "Say A or B."


@pytest.fixture
def env_with(tmp_path):
    def made(text, **options):
        path = tmp_path / "agent.py"
        path.write_text(PROGRAM + text)
        return type("Programmed", (Prompted,), {"agent": Command(["python", str(path)], **options)})

    return made


def test_a_program_is_recorded_with_its_output_exit_code_and_time(env_with):
    env_class = env_with("""
first = ask(user(sys.argv[1]))
ask(user(sys.argv[1]), first, user("once more"))
print("done with", sys.argv[1])
""")
    (trajectory,) = rolled_out(env_class)
    assert [message.content for message in trajectory.prompt] == ["Say A or B."]
    assert [len(turn.replies) for turn in trajectory.turns] == [1, 0]
    run = trajectory.agent
    assert (run.output, run.exit_code, run.error) == ("done with Say A or B.\n", 0, "")
    assert run.wall_s > 0


def test_it_gets_the_prompt_on_standard_input_where_it_reads_that(env_with):
    (trajectory,) = rolled_out(env_with("ask(user(sys.stdin.read()))", prompt="stdin"))
    assert trajectory.prompt[0].content == "Say A or B."


def test_its_environment_has_the_named_variables_and_nothing_of_ours(env_with, monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_OURS", "x")
    (trajectory,) = rolled_out(env_with("ask(user('x')); print(sorted(os.environ))", env={"MORE": "1"}))
    names = set(eval(trajectory.agent.output))
    ours = {"PATH", "HOME", "TMPDIR", "LANG", "MORE", "TURNWISE_MODEL", "LC_CTYPE"}
    ours |= {
        f"XDG_{what}" for what in ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "STATE_HOME", "RUNTIME_DIR")
    }
    ours |= {"npm_config_cache", "PIP_CACHE_DIR", "UV_CACHE_DIR"}
    assert names - ours == {
        f"{api}_{what}" for api in ("OPENAI", "ANTHROPIC") for what in ("BASE_URL", "API_KEY")
    }


SHOWS_FOLDERS = (
    "ask(user('x')); print([os.environ[n] for n in ('HOME', 'TMPDIR', 'XDG_CONFIG_HOME')], os.getcwd())"
)


def test_home_temporary_and_settings_are_of_one_rollout_and_end_with_it(env_with):
    shown = [each.agent.output for each in rolled_out(env_with(SHOWS_FOLDERS), group_size=2)]
    folders = [eval(text.rpartition(" ")[0]) for text in shown]
    assert len({*folders[0], *folders[1]}) == 6
    assert not any(Path(each).exists() for each in (*folders[0], *folders[1]))
    assert {text.rpartition(" ")[2] for text in shown} == {f"{Path.cwd()}\n"}


async def test_check_finds_that_an_agent_read_what_a_sibling_wrote(env_with, monkeypatch, tmp_path):
    env_class = env_with(f"""
memory = {str(tmp_path / "memory")!r}
ask(user(open(memory).read() if os.path.exists(memory) else "I know nothing."))
open(memory, "w").write("I know Ada.")
""")
    result, found = (await checked(env_class, monkeypatch, tmp_path, items=1))["siblings"]
    assert result == "fail"
    assert "prompt differs: ['I know nothing.'], then ['I know Ada.']" in found


def test_an_agent_that_has_logged_in_shares_the_home_and_settings_of_the_user(
    env_with, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    (trajectory,) = rolled_out(env_with(SHOWS_FOLDERS, share_home=True))
    home, temporary, settings = eval(trajectory.agent.output.rpartition(" ")[0])
    assert (home, settings) == (str(tmp_path), str(tmp_path / "settings"))
    assert "turnwise." in temporary


def test_caches_of_installers_are_those_of_the_user(env_with, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", "/elsewhere")
    names = ("npm_config_cache", "PIP_CACHE_DIR", "UV_CACHE_DIR")
    (trajectory,) = rolled_out(env_with(f"ask(user('x')); print([os.environ[name] for name in {names}])"))
    assert eval(trajectory.agent.output) == [f"{tmp_path}/.npm", f"{tmp_path}/.cache/pip", "/elsewhere"]


def test_its_secret_is_in_no_output(env_with):
    (trajectory,) = rolled_out(env_with("ask(user('x')); print(os.environ['OPENAI_API_KEY'])"))
    assert trajectory.agent.output == "[secret]\n"


def test_another_exit_code_after_a_turn_is_an_agent_error(env_with):
    (trajectory,) = rolled_out(env_with("ask(user('x')); sys.exit(3)"))
    assert (trajectory.stop_reason, trajectory.agent.exit_code) == (StopReason.AGENT_ERROR, 3)
    assert trajectory.score is not None


def test_one_that_goes_on_when_it_was_told_is_ended_with_what_it_started(env_with, tmp_path):
    env_class = env_with(f"""
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
while True:
    try:
        ask(user("x"))
    except Exception:
        time.sleep(0.05)
""")
    (trajectory,) = rolled_out(env_class, max_turns=2)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TURNS, 2)
    pid = int((tmp_path / "pid").read_text())
    assert not _lives(pid)


def test_what_left_its_session_ends_with_it(env_with, tmp_path):
    env_class = env_with(f"""
import subprocess
child = subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo $!"], stdout=subprocess.PIPE)
open({str(tmp_path / "pid")!r}, "w").write(child.stdout.readline().decode())
ask(user("x"))
""")
    (trajectory,) = rolled_out(env_class)
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert not _lives(int((tmp_path / "pid").read_text()))


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_much_output_keeps_its_start_and_its_end(env_with):
    (trajectory,) = rolled_out(
        env_with("print('begin'); print('x' * 3_000_000); print('end'); ask(user('x'))")
    )
    output = trajectory.agent.output
    assert len(output) < 40_000
    assert output.startswith("begin")
    assert output.endswith("end\n")


async def test_a_file_that_is_missing_is_named_once_by_the_failure():
    env_class = type("Missing", (Prompted,), {"agent": Command(["python", "/nothing/here.py"])})
    credited = await roll_out(env_class)
    assert credited.group.failures[0].error.count("/nothing/here.py") == 1


def test_a_harness_with_another_field_keeps_the_rest():
    agent = ClaudeCode("--model", "x", env={"A": "1"})
    changed = replace(agent, prompt="stdin")
    assert replace(changed, prompt="argument") == agent


class NotInstalled(ClaudeCode):
    name, install = "not-here", "apt install not-here"


@cases(
    "made, problem",
    [
        (lambda: Command("python agent.py"), "a program and its arguments"),
        (lambda: Command([]), "a program and its arguments"),
        (lambda: Command(["x"], where="moon"), "choose one of 'host', 'sandbox'"),
        (lambda: Command(["x"], read_only=("/opt",)), "add where='sandbox'"),
        (lambda: Command(["x"], where="sandbox", share_home=True), "add where='host'"),
        (lambda: Command(["x"], where="sandbox", read_only="/opt"), "give a tuple"),
        (lambda: Command(["x"], env={"A": 1}), "names and values are text"),
        (lambda: type("NoPrompt", (Talk,), {"agent": Command(["python"])})(), "has no prompt"),
        (
            lambda: type("No", (Prompted,), {"agent": Command(["/nothing"])})(),
            "no program '/nothing' on the PATH",
        ),
        (
            lambda: type("No", (Prompted,), {"agent": NotInstalled()})(),
            "no program 'not-here' on the PATH; install it: apt install not-here",
        ),
        (lambda: type("Text", (Talk,), {"agent": "agent.py"})(), r"give turnwise.Command"),
    ],
)
def test_a_command_that_cannot_work_is_refused_when_it_is_written(made, problem):
    with pytest.raises(ConfigError, match=problem):
        made()


async def test_the_program_and_what_it_imports_are_part_of_the_experiment(env_with, tmp_path):
    async def facts(text, module):
        (tmp_path / "helper.py").write_text(module)
        async with env_with(text)() as env:
            return origin_of(env).experiment

    one = await facts("import helper", "A = 1")
    two = await facts("import helper; ask(user('y'))", "A = 2")
    assert {name for name in one if one[name] != two[name]} == {"agent's agent.py", "agent's helper.py"}


def test_a_child_that_holds_its_output_open_does_not_delay_the_end(env_with):
    (trajectory,) = rolled_out(
        env_with("""
import subprocess
ask(user("x"))
subprocess.Popen(["sleep", "60"], start_new_session=True)
print("bye")
""")
    )
    assert (trajectory.stop_reason, trajectory.agent.output) == (StopReason.COMPLETED, "bye\n")
    assert trajectory.agent.wall_s < 20


def test_its_run_is_in_the_record_where_the_agent_broke_something_else(env_with):
    env_class = env_with("print('hello', flush=True); ask(user('a')); ask(user('b'), user('c'))")

    def score_turn(self, item, turn, ctx):
        raise AgentCausedError("gone", cause="unreadable_files")

    (trajectory,) = rolled_out(type("Broken", (env_class,), {"score_turn": score_turn}))
    assert (trajectory.agent_caused.cause, trajectory.agent.output) == ("unreadable_files", "hello\n")


@cases(
    "report",
    [b"", b"[" * 100_000, b"[1e999, 0]", b"[NaN, 0]", b'["x", 0]', b"[0]", b"{}", b"[1" + b"0" * 5000],
)
def test_a_report_that_no_runner_wrote_is_that_of_a_killed_agent(report):
    player = SandboxPlayer(Command(["agent"], where="sandbox"), "", None)
    assert player._parse_report(report) == 137
