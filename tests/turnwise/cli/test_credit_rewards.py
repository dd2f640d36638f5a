"""`turnwise credit --rewards` from a shell: one line where it refuses, a summary where it works."""

from functools import partial

import pytest

from environments.record.recorder import read_groups
from tests.equipment.commands import python

ENV = """
from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, say


class Colour(TurnLevelRewardMixin, AgentEnv):
    name = "colour"
    sandbox = "none"

    def load_items(self):
        return ["red", "green"]

    def format_prompt(self, item):
        return "Name a colour."

    async def score_turn(self, item, turn, ctx):
        return WORTH * (turn.message.content == item)

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.5, message=say(word)) for word in ("red", "green")]


if __name__ == "__main__":
    Colour.cli()
"""


def run_in(folder, *arguments, script=None):
    command = ["-m", "turnwise"] if script is None else [script]
    return python(*command, *arguments, cwd=folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "colour.py").write_text(ENV.replace("WORTH", "1.0"))
    done = run_in(folder, "process", "colour.py:Colour", "--out", "r.jsonl", "--env.seed", "3")
    assert done.returncode == 0
    return folder


@pytest.fixture
def shell(recorded, tmp_path):
    for name in ("colour.py", "r.jsonl"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    return partial(run_in, tmp_path)


def test_it_writes_a_new_record_and_shows_how_scores_moved(shell, tmp_path):
    (tmp_path / "colour.py").write_text(ENV.replace("WORTH", "3.0"))
    done = shell("credit", "r.jsonl", "--rewards", "--env", "colour.py:Colour", "--write", "new.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 groups, 8 rollouts: rewards of ")
    assert done.stdout.endswith("new.jsonl\n")
    before, after = (list(read_groups(tmp_path / name)) for name in ("r.jsonl", "new.jsonl"))
    for old, new in zip(before, after, strict=True):
        assert [3 * each.score for each in old.group.trajectories] == [
            each.score for each in new.group.trajectories
        ]


def test_the_script_of_an_environment_offers_it_too(shell, tmp_path):
    done = shell("credit", "r.jsonl", "--rewards", "--write", "new.jsonl", script="colour.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(read_groups(tmp_path / "new.jsonl"))) == 2


def test_the_seed_of_the_record_holds_whatever_seed_is_given(shell, tmp_path):
    given = ("r.jsonl", "--rewards", "--env", "colour.py:Colour", "--env.seed", "5", "--write", "new.jsonl")
    done = shell("credit", *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 groups, 8 rollouts: rewards of 0 changed")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["gone.jsonl", "--env", "colour.py:Colour"],
            "no record at gone.jsonl: give a rollout JSONL, the folder of a run",
        ),
        (["r.jsonl"], "no environment given"),
        (["--env", "colour.py:Colour"], "no record given"),
        (["r.jsonl", "--env", "terminal_tasks"], "it is of environment 'colour', and cannot be rescored by"),
        (["r.jsonl", "--env", "colour.py:Colour", "--env.max_turn", "3"], "did you mean --env.max_turns"),
    ],
    ids=["no-file", "no-env", "no-record", "other-env", "setting"],
)
def test_what_is_wrong_is_one_line_and_2(shell, arguments, text):
    refused = shell("credit", *arguments, "--rewards", "--write", "new.jsonl")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert text in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_help_names_record_environment_and_settings(shell):
    shown = shell("credit", "--env", "colour.py:Colour", "--help", "all").stdout
    assert all(word in shown for word in ("[RECORD]", "--env ENV", "--write", "--env.missing_outcome"))
