"""Environments that a real model of 135 M weights can play."""

from environments.base_env import AgentEnv
from environments.trajectory import Message
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.real_model.looking_env import HOLDS, Looking, question
from tools.calls import ToolCall

QUESTIONS = ("What is a {}? One short sentence.", "Where do you see one?", "Say goodbye.")
SHOWN = ("k3", "k5", "k1", "k7")


class ShownLooking(Looking):
    """Look one key up after four examples: without them so small a model never calls a tool."""

    name = "shown_looking"

    async def load_items(self):
        return [item for item in await super().load_items() if item["key"] not in SHOWN]

    def format_prompt(self, item):
        return [*(message for key in SHOWN for message in _example(key)), _user(question(item["key"]))]


class Chat(TurnLevelRewardMixin, AgentEnv):
    """Three questions, whatever the answers; a turn that ends by itself earns 1."""

    name = "chat"
    sandbox = "none"

    def load_items(self):
        return [{"id": word, "word": word} for word in ("river", "lamp", "violin", "wolf", "bridge")]

    def format_prompt(self, item):
        return QUESTIONS[0].format(item["word"])

    def respond(self, item, turn, ctx):
        return None if turn.index + 1 == len(QUESTIONS) else QUESTIONS[turn.index + 1]

    def score_turn(self, item, turn, ctx):
        return float(turn.finish_reason == "stop")

    def compute_outcome(self, item, trajectory, ctx):
        return 0.0


class OpenAIProgram(Chat):
    """The same questions by a program that was written for the `openai` client."""

    name = "openai_program"

    async def play(self, item, ctx):
        client, messages = ctx.endpoint.client(), []
        for each in QUESTIONS:
            messages.append({"role": "user", "content": each.format(item["word"])})
            answer = await client.chat.completions.create(model=ctx.endpoint.model, messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})


class LongTalk(Chat):
    """The first answer is answered with more than a window holds."""

    name = "long_talk"

    def load_items(self):
        return super().load_items()[:1]

    def respond(self, item, turn, ctx):
        return " ".join(map(str, range(1000)))


def _user(text):
    return Message(role="user", content=text)


def _example(key):
    call = ToolCall(id=f"shown_{key}", name="look", arguments=f'{{"key": "{key}"}}')
    return [
        _user(question(key)),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content=HOLDS[key], tool_call_id=call.id),
        Message(role="assistant", content=f"{key} holds {HOLDS[key]}."),
    ]
