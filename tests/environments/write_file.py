"""An environment for tests of the whole flow: a text has to get into a file."""

import io

from rich.console import Console

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.rollout.items.tasks import GroupTask
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.terminal import terminal

ITEMS = [{"id": "hello", "text": "hello"}, {"id": "world", "text": "world"}]


class WriteFile(TurnLevelRewardMixin, AgentEnv):
    """Write a given text into out.txt."""

    name = "write_file"
    tools = (terminal,)

    async def load_items(self):
        return ITEMS

    def format_prompt(self, item):
        return f"Write {item['text']} into out.txt."

    async def prepare(self, item, sandbox):
        await sandbox.write_file("task.txt", item["text"].encode())

    async def score_turn(self, item, turn, ctx):
        if not turn.tool_results:
            return None
        done = await ctx.sandbox.exec("cat out.txt")
        return float(done.stdout.decode().strip() == item["text"])

    async def compute_outcome(self, item, trajectory, ctx):
        result = await ctx.verify(command="cat out.txt && test ! -e task.txt", artefacts=["out.txt"])
        return 0.5 if result.exit_code == 0 else 0.0

    def scripted_choices(self, item, messages, tools, skill):
        if messages[-1].role == "tool":
            return [Choice(probability=1.0, message=say("done"))]
        right = call("terminal", {"command": f"echo {item['text']} > out.txt"})
        wrong = call("terminal", {"command": "echo nothing > out.txt"})
        return [Choice(probability=skill, message=right), Choice(probability=1 - skill, message=wrong)]


class ScalarWriteFile(WriteFile):
    """The same task without turn rewards."""

    name = "scalar_write_file"
    default_estimator = "grpo"
    scoring = AgentEnv.scoring

    async def compute_reward(self, item, trajectory, ctx):
        return await self.compute_outcome(item, trajectory, ctx)


def made(cls=WriteFile, servers=(), policy=None, **fields):
    fields.setdefault("group_size", 4)
    return cls(AgentEnvConfig(**fields), servers, policy=policy)


HELLO = GroupTask(item=ITEMS[0], item_id="hello")


async def group_from(env, task=HELLO):
    async with env:
        return await env.run_group(task)


def quiet():
    """A console that shows nothing; its text is `console.file.getvalue()`."""
    return Console(file=io.StringIO(), width=120)


async def by_sibling(item, trajectory, ctx):
    return float(trajectory.sibling)


class Breaking(WriteFile):
    """Its reward raises for the siblings in `broken`."""

    broken = frozenset({1})

    async def compute_turn_rewards(self, item, trajectory, ctx):
        if trajectory.sibling in self.broken:
            raise ZeroDivisionError("the judge broke")
        return await super().compute_turn_rewards(item, trajectory, ctx)
