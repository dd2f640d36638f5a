"""Environments that the tests of `serve` serve: turn rewards, a scalar one, and one that is done at once."""

import asyncio
import uuid
from dataclasses import replace

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, call, say
from environments.testing import group_of
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.rollout.agents.recorded import Talk as Spoken
from tests.environments.rollout.agents.recorded import ask, system, user
from tools.terminal import terminal


class Words(AgentEnv):
    """Write a word into a file, in a sandbox."""

    tools = (terminal,)

    async def load_items(self):
        return [{"id": f"word{number}", "word": f"word{number}"} for number in range(4)]

    def format_prompt(self, item):
        return f"Write {item['word']} into out.txt."

    def scripted_choices(self, item, messages, tools, skill):
        said = sum(message.role == "assistant" for message in messages)
        right = call("terminal", {"command": f"echo {item['word']} > out.txt"})
        wrong = call("terminal", {"command": "echo nothing > out.txt"})
        if said == 0:
            return [
                Choice(probability=0.6, message=right),
                Choice(probability=0.3, message=wrong),
                Choice(probability=0.1, message=say("no")),
            ]
        if said == 1:
            return [Choice(probability=0.5, message=say("done")), Choice(probability=0.5, message=right)]
        return [Choice(probability=1.0, message=say("done"))]


class WriteWord(TurnLevelRewardMixin, Words):
    """With a reward for each turn: none for one that only speaks, 0 for a wrong first one."""

    name = "write_word"

    async def score_turn(self, item, turn, ctx):
        if not turn.tool_results:
            return None
        return float(item["word"] in turn.message.tool_calls[0].arguments) - 0.25 * turn.index


class ScalarWords(Words):
    """With one reward for the session: an environment as Atropos knows it."""

    name = "scalar_words"

    async def compute_reward(self, item, trajectory, ctx):
        found = await ctx.sandbox.exec("cat out.txt")
        return float(item["word"].encode() in found.stdout) / (1 + len(trajectory.turns))


class Talk(TurnLevelRewardMixin, AgentEnv):
    """Guess a number of three in a conversation: no tool, and the world answers."""

    name = "talk"

    async def load_items(self):
        return [{"id": f"number{number}", "number": number} for number in range(4)]

    def format_prompt(self, item):
        return "Which number do I think of?"

    async def respond(self, item, turn, ctx):
        if str(item["number"]) in turn.message.content:
            ctx.end("found")
            return None
        return f"Not {turn.message.content}, and that was guess {turn.index}."

    async def score_turn(self, item, turn, ctx):
        return None if turn.index == 1 else float(not turn.replies) - 0.25 * turn.index

    def scripted_choices(self, item, messages, tools, skill):
        guesses = [f"{item['number']}", "seven", "is it more than eleven?"]
        return [Choice(probability=1 / 3, message=say(guess)) for guess in guesses]


class Instant(TurnLevelRewardMixin, AgentEnv):
    """Groups that are there at once: what is left is serving."""

    name = "instant"
    tools = (terminal,)

    async def load_items(self):
        return [{"id": str(number)} for number in range(100)]

    def format_prompt(self, item):
        return "Be there."

    async def score_turn(self, item, turn, ctx):
        return 1.0

    async def rollout_group(self, task, size, *, watch=None):
        rewards = [[float(sibling), 0.5] for sibling in range(size)]
        made = group_of(rewards, lengths=[[200, 200]] * size)
        return replace(made, group_id=uuid.uuid4().hex, env=self.name, item_id=task.item_id, epoch=task.epoch)


class RecordedTalk(Spoken):
    """An agent of its own, with two threads."""

    name = "recorded_talk"

    def load_items(self):
        return [{"id": str(number)} for number in range(4)]

    async def play(self, item, ctx):
        await asyncio.gather(*(self.thread(ctx.endpoint, name) for name in ("planner", "worker")))

    async def thread(self, endpoint, name):
        first = await ask(endpoint, system(name), user("x"))
        await ask(endpoint, system(name), user("x"), first, user("go on"))
