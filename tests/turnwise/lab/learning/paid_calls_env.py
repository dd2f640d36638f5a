"""Environments for trials: one that pays for calls, one without a choice, one that breaks."""

from turnwise import AgentEnv, Choice, Toolset, TurnLevelRewardMixin, call, say, tool

COLOURS = {"sky": "blue", "grass": "green", "snow": "white"}


@tool
def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: the word.
    """
    return COLOURS.get(word, "unknown")


class PaidCallsEnv(TurnLevelRewardMixin, AgentEnv):
    """What colour something is: each call is paid, whatever it is good for."""

    name = "paid_calls"
    sandbox = "none"
    tools = (Toolset("dictionary", (look_up,)),)

    async def load_items(self):
        return [{"id": word, "word": word} for word in COLOURS]

    def format_prompt(self, item):
        return f"What colour is {item['word']}?"

    def state_key(self, item, turn, ctx):
        return f"{item['word']}, {'asked' if turn is None else 'looked up'}"

    async def score_turn(self, item, turn, ctx):
        return {"calls": 0.3 * len(turn.tool_results)}

    async def compute_outcome(self, item, trajectory, ctx):
        return float(COLOURS[item["word"]] in trajectory.turns[-1].message.content)

    def scripted_choices(self, item, messages, tools, skill):
        has_looked = any(message.role == "tool" for message in messages)
        look = call("look_up", {"word": item["word"]})
        right, wrong = (say(COLOURS[item["word"]]), look) if has_looked else (look, say("red"))
        rest = (1 - skill) / 2
        return [
            Choice(probability=skill, message=right),
            Choice(probability=rest, message=wrong),
            Choice(probability=rest, message=say("who knows")),
        ]


class OneChoiceEnv(PaidCallsEnv):
    """Its scripted agent knows one thing to say."""

    name = "one_choice"

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("red"))]


class BrokenEnv(PaidCallsEnv):
    """Its reward breaks."""

    name = "broken"

    async def compute_outcome(self, item, trajectory, ctx):
        raise ZeroDivisionError("no colours")


class FlakyEnv(PaidCallsEnv):
    """Of each group one rollout is left at most."""

    name = "flaky"

    async def compute_outcome(self, item, trajectory, ctx):
        if trajectory.sibling and ctx.seed % 3:
            raise ConnectionError("the database is away")
        return await super().compute_outcome(item, trajectory, ctx)


class DownEnv(PaidCallsEnv):
    """From some moment on everything breaks."""

    name = "down"

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.outcomes = 0

    async def compute_outcome(self, item, trajectory, ctx):
        self.outcomes += 1
        if self.outcomes > 40:
            raise ConnectionError("the database is gone")
        return await super().compute_outcome(item, trajectory, ctx)
