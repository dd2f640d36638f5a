"""`turnwise process` ends with the decision of the credit report."""

import pytest

from turnwise.cli import process
from turnwise.cli.main import main

ENV = """
from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, say
from environments.turn_level_reward import TurnLevelRewardMixin


class Signs(TurnLevelRewardMixin, AgentEnv):
    name = "signs"

    async def load_items(self):
        return [{"id": str(number)} for number in range(20)]

    def format_prompt(self, item):
        return "Left or right?"

    async def respond(self, item, turn, ctx):
        return "Again?" if turn.index < 2 else None

    async def score_turn(self, item, turn, ctx):
        return float(turn.message.content == "left")

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=0.5, message=say(side)) for side in ("left", "right")]
"""


@pytest.fixture
def run(tmp_path, capsys):
    (tmp_path / "signs.py").write_text(ENV)

    def process_items(count):
        out = tmp_path / f"{count}.jsonl"
        given = ["--env.max_items", str(count), "--env.group_size", "2", "--out", str(out)]
        assert main(["process", f"{tmp_path / 'signs.py'}:Signs", *given]) == 0
        return out, capsys.readouterr().out.splitlines()[-1]

    return process_items


def test_twenty_groups_end_with_what_the_report_decides(run, capsys):
    out, last = run(20)
    assert main(["credit", str(out)]) == 0
    assert last in capsys.readouterr().out.splitlines()


def test_fewer_groups_end_without_it(run):
    out, last = run(19)
    assert last.endswith(str(out))


@pytest.mark.parametrize(("limit", "value"), [("_MAX_BYTES", 1000), ("_MAX_GROUPS", 19)])
def test_a_large_record_ends_with_the_command(run, monkeypatch, limit, value):
    monkeypatch.setattr(process, limit, value)
    out, last = run(20)
    assert last == f"which credit suits these rollouts: turnwise credit {out}"
