import asyncio
import logging

import pytest

from tests.environments.shipped.harbor_tasks.task_folders import (
    PASS,
    TOML,
    Forging,
    opened,
    played,
    scores,
    write_task,
)
from tools.errors import ConfigError
from turnwise.cli.main import main

HELLO = PASS.format("grep -qx hello /app/hello.txt && test -f seed.txt")
SOLVED = {"solution/solve.sh": "echo hello > hello.txt", "environment/seed.txt": ""}
PYTEST = (
    'cd /app && python3 -c \'import unittest, sys; sys.path.insert(0, "/app"); import answer; '
    "sys.exit(answer.ANSWER != 42)' && R=1 || R=0; echo $R > /logs/verifier/reward.txt\n"
)
FORGERS = {
    "reward": "mkdir -p /tmp/logs/verifier /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "tests": "mkdir tests; echo 'echo 1 > /logs/verifier/reward.txt' | tee tests/test.sh /tests/test.sh",
    "shadow": "echo 'import os;os.system(\"echo 1 > /logs/verifier/reward.txt\");exit(0)' > unittest.py",
    "customize": "echo 'import os; os.system(\"echo 1 > /logs/verifier/reward.txt\"); os._exit(0)' "
    "> sitecustomize.py; cp sitecustomize.py conftest.py",
    "writer": "(while true; do mkdir -p /tmp/logs/verifier; echo 1 > /tmp/logs/verifier/reward.txt; done)"
    " >/dev/null 2>&1 &",
}  # fmt: skip


async def test_a_task_without_an_image_runs_locally_and_is_judged_by_its_tests(tmp_path):
    write_task(tmp_path, "hello", SOLVED, test=HELLO)
    assert await scores(tmp_path) == {"hello": 1.0}
    assert await scores(tmp_path, skill=0.0) == {"hello": 0.0}


async def test_the_tests_first_line_is_read_as_the_kernel_does(tmp_path):
    task = write_task(tmp_path, "quoted", SOLVED, test="")
    check = "import pathlib; pathlib.Path('/logs/verifier/reward.txt').write_text('1')"
    (task / "tests/test.sh").write_text(f'#!/usr/bin/env -S python3 -c "{check}"\n')
    write_task(tmp_path, "empty", SOLVED, test="")
    (tmp_path / "empty/tests/test.sh").write_text(f"#!\n{HELLO}")
    assert await scores(tmp_path) == {"quoted": 1.0, "empty": 1.0}


async def test_a_task_with_little_memory_has_a_smaller_workspace(tmp_path):
    write_task(tmp_path, "hello", SOLVED, test=HELLO, toml="[environment]\nmemory = '256M'\n")
    assert await scores(tmp_path) == {"hello": 1.0}


@pytest.mark.parametrize("forger", FORGERS)
async def test_a_forger_of_a_local_task_gets_nothing(tmp_path, forger):
    honest = {
        "environment/answer.py": "ANSWER = 41\n",
        "solution/solve.sh": "echo 'ANSWER = 42' > answer.py\n",
    }
    write_task(tmp_path, forger, {**honest, "forge.sh": FORGERS[forger]}, test=PYTEST)
    assert await scores(tmp_path) == {forger: 1.0}
    assert await scores(tmp_path, Forging) == {forger: 0.0}


async def test_a_large_file_of_the_agents_hides_none_of_its_others(tmp_path):
    made = {"solution/solve.sh": "head -c 12000000 /dev/zero > large; echo 1 > small"}
    write_task(tmp_path, "large", made, test=PASS.format("test -e large && test -e small"))
    assert await scores(tmp_path) == {"large": 1.0}


async def test_several_numbers_are_components_and_reward_alone_is_the_reward(tmp_path):
    write = "echo '{}' > /logs/verifier/reward.json\n".format
    write_task(tmp_path, "parts", {}, test=write('{"shape": 0.25, "speed": 0.5}'))
    write_task(tmp_path, "whole", {}, test=write('{"reward": 0.75, "speed": 0.5}'))
    found = await played(tmp_path)
    assert found["parts"].rewards.outcome_components == {"shape": 0.25, "speed": 0.5}
    assert found["whole"].score == 0.75
    assert found["whole"].metrics["speed"] == 0.5


OVER_ITS_TIME = "written, and over its time"
WITHOUT_VERDICT = {
    "nothing": "true", "missing program": "exit 127", "nan": "echo nan > /logs/verifier/reward.txt",
    "text": "echo '{\"a\": \"b\"}' > /logs/verifier/reward.json",
    "folder": "mkdir /logs/verifier/reward.txt", "no numbers": "echo '{}' > /logs/verifier/reward.json",
    "too large": "echo 1e300 > /logs/verifier/reward.txt",
    "too many digits": "echo '{\"reward\": 1'$(printf '%0400d')'}' > /logs/verifier/reward.json",
    "half a character": "echo '{\"\\ud800\": 1}' > /logs/verifier/reward.json",
    "link to nothing": "ln -s gone /logs/verifier/reward.txt",
    "huge": "echo 1 > /logs/verifier/reward.txt; head -c 3000000 /dev/zero >> /logs/verifier/reward.txt",
    OVER_ITS_TIME: "echo 1 > /logs/verifier/reward.txt; sleep 60",
    "killed": "kill -9 $PPID $$",
}  # fmt: skip
SHORT = TOML.replace("[verifier]\ntimeout_sec = 60", "[verifier]\ntimeout_sec = 4")
TOML_OF = {name: SHORT if name == OVER_ITS_TIME else TOML for name in WITHOUT_VERDICT}


async def test_tests_without_a_verdict_over_the_clean_image_either_drop_the_sibling(tmp_path):
    for name, test in WITHOUT_VERDICT.items():
        write_task(tmp_path, name, {}, test=test, toml=TOML_OF[name])
    async with opened(tmp_path) as env:
        groups = await asyncio.gather(*(env.rollout_group(task, 1) for task in env.tasks()))
    dropped = {group.item_id: each.error for group in groups for each in group.failures}
    assert dropped.keys() == WITHOUT_VERDICT.keys()
    assert {error.partition(",")[0] for error in dropped.values()} == {
        "SandboxError: the tests give no verdict with the agent's files"
    }


async def test_files_that_keep_the_tests_from_a_verdict_are_the_floor(tmp_path):
    for name, test in WITHOUT_VERDICT.items():
        made = {"solution/solve.sh": "touch made"}
        unless = f"if ! test -e made; then echo 0 > /logs/verifier/reward.txt; exit; fi\n{test}"
        write_task(tmp_path, name, made, test=unless, toml=TOML_OF[name])
    found = await played(tmp_path, failed_score=-1.0)
    assert {(each.score, each.agent_caused.cause) for each in found.values()} == {(-1.0, "no_verdict")}


async def test_variables_of_the_file_reach_the_shell_the_solution_and_the_tests(tmp_path):
    toml = f"{TOML}[environment.env]\nA = 'one two'\n[verifier.env]\nB = 'b'\n[solution.env]\nC = \"it's\"\n"
    made = {"solution/solve.sh": 'echo "$A$C" > made'}
    write_task(tmp_path, "env", made, test=PASS.format('[ "$(cat made)$B" = "one twoit\'sb" ]'), toml=toml)
    assert await scores(tmp_path) == {"env": 1.0}


async def test_tests_in_another_language_run_by_their_first_line(tmp_path):
    task = write_task(tmp_path, "python", {}, test="")
    (task / "tests/test.sh").write_text(
        "#!/usr/bin/env python3\nimport helper\nopen('/logs/verifier/reward.txt', 'w').write(helper.REWARD)\n"
    )
    (task / "tests/helper.py").write_text("REWARD = '0.5'\n")
    assert await scores(tmp_path) == {"python": 0.5}


async def test_only_declared_artefacts_reach_the_tests(tmp_path):
    made = {"solution/solve.sh": "mkdir out; echo 1 | tee out/a b"}
    test = PASS.format("test -f out/a && ! test -e b")
    write_task(tmp_path, "artefacts", made, test=test, toml='artifacts = ["/workspace/out"]')
    assert await scores(tmp_path) == {"artefacts": 1.0}


async def test_tasks_that_cannot_run_are_named_and_the_others_do(tmp_path, caplog):
    write_task(tmp_path, "good", SOLVED, test=HELLO)
    write_task(tmp_path, "bad", {}, test=HELLO, toml="[environment]\nmemory_mb = -1")
    write_task(tmp_path, "steps", {}, test=HELLO, toml="[[steps]]")
    with caplog.at_level(logging.WARNING):
        async with opened(tmp_path) as env:
            assert env.item_ids == ["good"]
    assert "1 task is left out, task.toml: bad (environment.memory_mb: " in caplog.text
    assert "1 task is left out, several steps ([[steps]]): steps" in caplog.text


async def test_names_and_output_of_a_task_do_not_control_the_terminal(tmp_path, caplog):
    write_task(tmp_path, "silent", {}, test=r"printf '\033[31mred' >&2")
    write_task(tmp_path, "\x1b[31m", {}, test=HELLO, toml="[[steps]]")
    async with opened(tmp_path) as env:
        await env.rollout_group(env.tasks()[0], 1)
    assert "several steps ([[steps]]):  [31m" in caplog.text
    assert "no reward that can be read:  [31mred" in caplog.text
    assert "\x1b" not in caplog.text


async def test_a_folder_of_which_nothing_can_run_is_one_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no task below .* can be rolled out: no folder there has"):
        async with opened(tmp_path):
            pass
    write_task(tmp_path, "steps", {}, test=HELLO, toml="[[steps]]")
    with pytest.raises(ConfigError, match=r"1 task is left out, several steps \(\[\[steps\]\]\): steps$"):
        async with opened(tmp_path):
            pass


@pytest.mark.parametrize("named", [True, False])
def test_no_task_at_all_is_one_line_and_exit_code_2(tmp_path, capsys, named):
    assert main(["process", "harbor_tasks", *(["--env.tasks", str(tmp_path)] if named else [])]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_check_prints_a_row_for_each_task_and_a_count_by_verdict(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "tasks", "a/given", {}, test=PASS.format("true"))
    write_task(tmp_path / "tasks", "good", SOLVED, test=HELLO)
    assert main(["check", "harbor_tasks", "--env.tasks", "tasks"]) == 1
    assert capfd.readouterr().out.splitlines() == [
        "good     right",
        "a/given  given       an agent that does nothing scores 1",
        "1 right; 1 given",
    ]


@pytest.mark.parametrize("option", ["--write", "--limit=9"])
def test_an_option_for_the_environments_own_checks_is_refused_where_solutions_are_played(
    tmp_path, monkeypatch, capfd, option
):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path / "tasks", "good", SOLVED, test=HELLO)
    assert main(["check", "harbor_tasks", "--env.tasks", "tasks", option]) == 2
    assert f"{option.partition('=')[0]} is for the checks of the environment itself" in capfd.readouterr().err
