"""`turnwise process` against `turnwise mock-model --quirk`: every server plays two items to their end."""

import json
import signal
import subprocess
import sys

import pytest

from environments.cli.main import main
from environments.policy.mock.mock_quirks import QUIRKS, SERVERS
from tests.tables import seldom

KEPT = ("openrouter", "mistral", "transformers")
"""Those that fail first, refuse most and stream."""

ENV = """
from environments.base_env import AgentEnv
from tools.registry import tool
from tools.sandbox.base import Sandbox
from environments.policy.scripted import Choice, call, say


@tool
async def look(sandbox: Sandbox, word: str) -> str:
    "Look a word up."
    return word[::-1]


class Words(AgentEnv):
    "Look words up."

    name = "words"
    tools = (look,)

    async def load_items(self):
        return [{"id": "one"}, {"id": "two"}]

    def format_prompt(self, item):
        return f"Look {item['id']} up."

    async def compute_reward(self, item, trajectory, ctx):
        return float(trajectory.messages[-2].content == item["id"][::-1])

    def scripted_choices(self, item, messages, tools, skill):
        if messages[-1].role == "tool":
            return [Choice(probability=1.0, message=say("done"))]
        return [Choice(probability=1.0, message=call("look", {"word": item["id"]}))]
"""


@pytest.mark.parametrize("server", seldom({name: name for name in SERVERS}, KEPT))
def test_a_run_against_a_server_with_its_quirks_scores_every_rollout(server, tmp_path):
    (tmp_path / "words.py").write_text(ENV)
    mock = [
        sys.executable,
        "-m",
        "turnwise",
        "mock-model",
        "words.py:Words",
        "--port",
        "0",
        "--quirk",
        server,
    ]
    with subprocess.Popen(mock, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as playing:
        url = playing.stdout.readline().split()[0]
        asked = ("--openai.base_url", url, "--openai.model_name", "scripted", "--env.group_size", "1")
        done = subprocess.run(
            [sys.executable, "-m", "turnwise", "process", "words.py:Words", *asked, "--out", "o.jsonl"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        playing.send_signal(signal.SIGINT)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert sorted(line["item_id"] for line in lines) == ["one", "two"]
    assert [line["scores"] for line in lines] == [[1.0], [1.0]]


def test_the_quirks_are_listed_with_what_they_are(capsys):
    assert main(["mock-model", "--quirk", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [*SERVERS, *QUIRKS]


def test_a_quirk_that_does_not_exist_is_refused_with_those_that_do(capsys):
    assert main(["mock-model", "--quirk", "gpt"]) == 2
    assert "no quirk 'gpt'; choose one of openai, vllm, sglang" in capsys.readouterr().err
