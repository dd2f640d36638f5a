"""Environments with one thing wrong each, for the checks to find; and the checks, made in this process."""

import random
import subprocess
import tempfile
import threading
import time

from environments.config import AgentEnvConfig
from turnwise import AgentEnv, Choice, ToolError, TurnLevelRewardMixin, call, say, tool
from turnwise.check.check_run import run_checks
from turnwise.check.checked_env import CheckedEnv
from turnwise.condensers import fit_context


class Right(TurnLevelRewardMixin, AgentEnv):
    """Nothing is wrong."""

    name = "right"
    sandbox = "none"

    def load_items(self):
        return [{"id": number} for number in range(4)]

    def format_prompt(self, item):
        return f"Say yes, {item['id']}."

    def respond(self, item, turn, ctx):
        return "Go on." if turn.index < 2 else None

    def score_turn(self, item, turn, ctx):
        return float("yes" in turn.message.content)

    def scripted_choices(self, item, messages, tools, skill):
        return [
            Choice(probability=skill, message=say("yes")),
            Choice(probability=1 - skill, message=say("no")),
        ]


class Scalar(AgentEnv):
    """One reward, and an agent that knows nothing."""

    name = "scalar"
    sandbox = "none"
    load_items, format_prompt = Right.load_items, Right.format_prompt

    def compute_reward(self, item, trajectory, ctx):
        return 1.0


@tool
def refuse(text: str) -> str:
    """Refuse what is asked.

    Args:
        text: What.
    """
    raise ToolError(f"there is no {text}")


class Refuses(Right):
    """A tool that refuses, once for its arguments; a condenser that counts; a limit that permits more."""

    name = "refuses"
    tools = (refuse,)
    condenser = fit_context(4096)

    def limits_for(self, item):
        return {"max_turns": 300}

    def scripted_choices(self, item, messages, tools, skill):
        if messages[-1].role == "user":
            arguments = {"text": "tea"} if len(messages) < 3 else {"no": "text"}
            return [Choice(probability=1.0, message=call("refuse", arguments))]
        return super().scripted_choices(item, messages, tools, skill)


class Raises(Right):
    name = "raises"

    def score_turn(self, item, turn, ctx):
        raise KeyError("no such key")


class RaisesForBad(Right):
    """What only a bad agent meets."""

    name = "raises_for_bad"

    def compute_outcome(self, item, trajectory, ctx):
        return 1 / sum("yes" in turn.message.content for turn in trajectory.acts)


class Lucky(Right):
    name = "lucky"

    def score_turn(self, item, turn, ctx):
        return {"work": super().score_turn(item, turn, ctx), "luck": random.random()}


class LuckyReply(Right):
    """What no reward shows."""

    name = "lucky_reply"

    def respond(self, item, turn, ctx):
        return f"Go on {random.random()}." if turn.index < 2 else None


class Constant(Right):
    name = "constant"

    def score_turn(self, item, turn, ctx):
        return 0.5


class Inverted(Right):
    name = "inverted"

    def score_turn(self, item, turn, ctx):
        return -super().score_turn(item, turn, ctx)


class PaysForLength(Right):
    """Each turn and each word is paid, and the outcome is what was said first."""

    name = "pays_for_length"

    def respond(self, item, turn, ctx):
        return "Go on." if "yes" not in turn.message.content or turn.index < 1 else None

    def score_turn(self, item, turn, ctx):
        return 0.01 * len(turn.message.content.split())

    def compute_outcome(self, item, trajectory, ctx):
        return float("yes" in trajectory.acts[0].message.content)


class PaysForTurns(Right):
    """A turn is paid until the agent has nothing more to say; there is no outcome."""

    name = "pays_for_turns"

    def format_prompt(self, item):
        return "Say yes, then done."

    def respond(self, item, turn, ctx):
        return None if "done" in turn.message.content else "Go on."

    def score_turn(self, item, turn, ctx):
        return 0.1

    def scripted_choices(self, item, messages, tools, skill):
        right = say("yes" if messages[-1].content != "Go on." else "done")
        return [Choice(probability=skill, message=right), Choice(probability=1 - skill, message=say("done"))]


@tool
def look() -> str:
    """Look."""
    return "nothing"


class PaysForCalls(PaysForTurns):
    """Each call is paid, and what comes of it is not asked."""

    name = "pays_for_calls"
    tools = (look,)

    def respond(self, item, turn, ctx):
        return None

    def score_turn(self, item, turn, ctx):
        return 0.1 * len(turn.tool_results)

    def compute_outcome(self, item, trajectory, ctx):
        return 1.0

    def scripted_choices(self, item, messages, tools, skill):
        is_over = any(message.role == "tool" for message in messages)
        right = say("done") if is_over else call("look", {})
        return [Choice(probability=skill, message=right), Choice(probability=1 - skill, message=say("done"))]


class Unscored(Right):
    name = "unscored"

    def score_turn(self, item, turn, ctx):
        return None

    def compute_outcome(self, item, trajectory, ctx):
        return float("yes" in trajectory.acts[-1].message.content)


class Leaks(Right):
    name = "leaks"

    def prepare(self, item, sandbox):
        subprocess.Popen(["sleep", "30"])
        threading.Thread(target=time.sleep, args=(30,), daemon=True, name="left-thread").start()
        tempfile.mkdtemp(prefix="left-folder")


class Twins(Right):
    name = "twins"

    def load_items(self):
        return [{"id": 1}, {"id": 1}]


class Unclosed(Right):
    name = "unclosed"

    def teardown(self):
        raise RuntimeError("it does not close")


class Opaque(Right):
    """An item that a record cannot hold."""

    name = "opaque"

    def load_items(self):
        return [{"id": "one", "what": object()}]


class Silent(Right):
    name = "silent"

    def format_prompt(self, item):
        return " "


class NearMiss(Right):
    name = "near_miss"

    def compute_outcomes(self, item, trajectory, ctx):
        return 1.0


class ListedReport(dict):
    add = dict.update


async def checked(env_cls, monkeypatch, tmp_path, servers=(), items=2, **settings):
    """The report on an environment, with folders that no other process writes into, as the command has."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    report = ListedReport()
    await run_checks(
        CheckedEnv(
            env_cls=env_cls, config=AgentEnvConfig(**settings), servers=servers, items=items, report=report
        )
    )
    return report
