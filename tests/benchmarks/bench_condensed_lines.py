"""How large the line of a long rollout is in the record, plain and condensed.

    python -m tests.benchmarks.bench_condensed_lines [--turns 60]

Each turn calls a tool that answers with some 1,100 tokens. *text* is all text of the line over that of the
conversation, which stands once: beside it each row has the messages that its model saw.
"""

import argparse
import asyncio
import sys

import orjson

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call
from environments.record.group_line import encode_group
from tools.registry import tool

CONDENSERS = {
    "plain": {},
    "fit_context": {"condenser": ["fit_context"], "condenser_tokens": 8000},
    "keep_last_turns": {"condenser": ["keep_last_turns"], "condenser_turns": 4},
    "trim_tool_output": {"condenser": ["trim_tool_output"], "condenser_tool_tokens": 100},
    "summarise": {"condenser": ["summarise"], "condenser_turns": 10},
}


@tool
def read(page: int) -> str:
    """Read a page.

    Args:
        page: its number.
    """
    return f"Page {page}: " + " ".join(f"w{page * 1000 + word}" for word in range(200))


class Reader(AgentEnv):
    """Reads on."""

    name = "reader"
    sandbox = "none"
    tools = (read,)

    def load_items(self):
        return [{"id": "book"}]

    def format_prompt(self, item):
        return "Read on, page by page."

    def compute_reward(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=call("read", {"page": len(messages)}))]


async def line_of(turns: int, **settings) -> tuple[int, bytes]:
    """The rows of a rollout, and its line."""
    config = AgentEnvConfig(
        max_turns=turns, max_token_length=10**6, token_budget=10**6, group_size=1, **settings
    )
    async with Reader(config) as env:
        done = await env.run_group(env.tasks()[0])
    return len(done.group.trajectories[0].rows), encode_group(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    turns = parser.parse_args().turns
    sys.stdout.write("| condenser | rows | tokens of rows | MB of the line | bytes per token | text |\n")
    for name, settings in CONDENSERS.items():
        rows, line = asyncio.run(line_of(turns, **settings))
        fields = orjson.loads(line)
        tokens = sum(map(len, fields["tokens"]))
        (trajectory,) = fields["trajectories"]
        own = trajectory.get("messages", fields["messages"][-1])
        text = [
            *fields["messages"],
            trajectory.get("messages", []),
            [t["context"] for t in trajectory["turns"]],
        ]
        times = sum(len(orjson.dumps(each)) for each in text) / len(orjson.dumps(own))
        size = f"{len(line) / 1e6:.2f} | {len(line) / tokens:.1f}"
        sys.stdout.write(f"| {name} | {rows} | {tokens:,} | {size} | {times:.2f} |\n")


if __name__ == "__main__":
    main()
