"""`turnwise process` against model servers with quirks: two items are played to the end."""

import asyncio
import json
import subprocess
import sys

import pytest

from environments.policy.mock_server import mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, call, say
from tests.equipment.quirky_server import QuirkyServer
from tests.equipment.running_server import running_server
from tests.equipment.server_quirks import SERVERS, quirks_named
from tests.tables import seldom

KEPT = ("openrouter", "mistral", "transformers")
"""Those that fail first, refuse most and stream."""

ENV = """
from environments.base_env import AgentEnv
from tools.registry import tool
from tools.sandbox.base import Sandbox


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

"""


def script(messages, tools, skill):
    if messages[-1].role == "tool":
        return [Choice(probability=1.0, message=say("done"))]
    word = messages[0].content.split()[1]
    return [Choice(probability=1.0, message=call("look", {"word": word}))]


@pytest.mark.parametrize("server", seldom({name: name for name in SERVERS}, KEPT))
async def test_a_run_against_a_server_with_its_quirks_scores_every_rollout(server, tmp_path):
    (tmp_path / "words.py").write_text(ENV)
    app = mock_app(lambda _: script, skill=1.0, renderer=ChatMLRenderer.embedded())
    async with running_server(QuirkyServer(app, quirks_named([server]))) as url:
        asked = ("--openai.base_url", url, "--openai.model_name", "scripted", "--env.group_size", "1")
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "turnwise", "process", "words.py:Words", *asked, "--out", "o.jsonl"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert sorted(line["item_id"] for line in lines) == ["one", "two"]
    assert [line["scores"] for line in lines] == [[1.0], [1.0]]
