"""`turnwise new`: what it makes runs, its tests pass, and nothing that is there is overwritten."""

import json
import subprocess
import sys

import pytest

from environments.run.discovery import find_environment
from tests.equipment.modules import forget_modules_of
from tests.tables import cases
from tests.turnwise.check.checked_envs import checked
from tools.errors import ConfigError, ToolError
from turnwise import open_sandbox
from turnwise.check.check_run import NAMES
from turnwise.cli.main import main
from turnwise.cli.new import KINDS, make_environment


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with one environment of each kind, which Python finds."""
    folder = tmp_path_factory.mktemp("made")
    path = list(sys.path)
    for kind in KINDS:
        make_environment(folder / f"my_{kind}", kind)
    yield folder
    sys.path[:] = path
    forget_modules_of(folder)


@cases("kind", KINDS)
def test_the_tests_of_a_new_environment_pass(made, kind):
    find_environment(str(made / f"my_{kind}"))  # whose folder is on Python's path from then on
    file = made / f"my_{kind}" / f"test_my_{kind}.py"
    names = {}
    exec(compile(file.read_text(), file, "exec"), names)
    tests = [function for name, function in names.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_check_of_a_new_environment_is_passed_or_does_not_apply(
    made, kind, monkeypatch, tmp_path
):
    report = await checked(find_environment(str(made / f"my_{kind}")), monkeypatch, tmp_path)
    assert [name for name in NAMES if report[name][0] not in ("ok", "skipped")] == []
    varies, _ = report["rewards by turn"]
    assert varies == ("skipped" if kind == "scalar" else "ok")


@cases("kind", KINDS)
def test_an_evaluation_counts_what_a_good_agent_does_as_passed(made, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    done = ["evaluate", f"my_{kind}", "--env.scripted_skill", "1", "--env.eval_rollouts", "1"]
    assert main([*done, "--out", str(tmp_path)]) == 0
    of_all = json.loads((tmp_path / "metrics.json").read_text())["results"]["all"]
    assert of_all["eval/pass@1"] == 1.0


@cases("kind", KINDS)
def test_a_new_environment_runs_by_the_name_of_its_folder(made, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(made)
    assert main(["process", f"my_{kind}", "--out", str(tmp_path / "rollouts.jsonl")]) == 0
    assert (tmp_path / "rollouts.jsonl").read_text().count("\n") == 4


async def test_the_model_reads_what_sqlite_said_about_its_statement(made):
    (query,) = find_environment(str(made / "my_sql")).tools
    async with open_sandbox("local") as sandbox:
        with pytest.raises(ToolError, match='near "SELEC": syntax error'):
            await query.function(sandbox, "SELEC 1")


@cases("kind", KINDS)
def test_the_code_of_a_new_environment_is_short_and_formatted(made, kind):
    file = made / f"my_{kind}" / f"my_{kind}" / "env.py"
    assert len(file.read_text().splitlines()) < 125
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--check", "--line-length", "120"], ["check", "--line-length", "120"]):
        ran = subprocess.run(
            [*ruff, *command, "--isolated", file], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout


def test_what_it_prints_is_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "games/first_game", "--kind", "game"]) == 0
    out = capsys.readouterr().out
    assert (
        "  turnwise check games/first_game\n  turnwise process games/first_game\n"
        "  turnwise view first_game/default\n  python -m pytest games/first_game\n"
    ) in out
    assert (tmp_path / "games" / "first_game" / "first_game" / "env.py").is_file()


@cases(
    ("name", "said"),
    [
        ("class", "a word of Python's own"),
        ("match", "a word of Python's own"),
        ("json", "a module that Python has already"),
        ("pytest", "a module that Python has already"),
        ("tools", "a package of Turnwise's own"),
        ("turnwise", "a package of Turnwise's own"),
        ("code_debug", "an environment that is shipped"),
        ("my-env", "cannot be the name of a Python package"),
        ("1st", "cannot be the name of a Python package"),
        ("spiel_ä", "cannot be the name of a Python package"),
        ("__main__", "cannot be the name of a Python package"),
        ("end_", "cannot be the name of a Python package"),
        ("a" * 300, "cannot"),
        ("x/..", "is there already"),
        ("", "is there already"),
    ],
    ids=lambda given: given[:12] or "empty",
)
def test_a_name_that_would_not_work_is_refused(tmp_path, monkeypatch, capsys, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    assert main(["new", name]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_stays_as_it_is(tmp_path, there):
    place = tmp_path / "my_env"
    if there == "folder":
        place.mkdir()
        (place / "README.md").write_text("mine")
    elif there == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is there already"):
        make_environment(place, "turns")
    assert [path.name for path in tmp_path.rglob("*")] == (
        ["my_env", "README.md"] if there == "folder" else ["my_env"]
    )


def test_a_class_hides_nothing_that_its_file_imports(tmp_path):
    for name in ("agent", "state", "choice", "path"):
        make_environment(tmp_path / f"{name}_env", "game")
        text = (tmp_path / f"{name}_env" / f"{name}_env" / "env.py").read_text()
        assert f"class {name.title()}EnvEnvironment(" in text
