"""`HigherLowerEnv`: find a number from 1 to 7 in three guesses. For small language models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.base_env import AgentEnv
from environments.policy.scripted import Choice, mostly, say
from environments.rewards.reward_context import RolloutContext
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import State, ToolSpec
from tools.sandbox.base import Sandbox

NUMBERS, GUESSES, INFORMATION_WEIGHT = range(1, 8), 3, 0.5
OPENING = (
    Message(role="system", content="Guess the number from 1 to 7."),
    Message(role="user", content="start"),
    Message(role="assistant", content="3"),
    Message(role="user", content="higher"),
    Message(role="assistant", content="6"),
    Message(role="user", content="right, start"),
)

Item = Mapping[str, Any]  # number: from 1 to 7


@dataclass(slots=True, kw_only=True)
class Range(State):
    low: int = NUMBERS[0]  # low to high: the numbers that no reply has ruled out
    high: int = NUMBERS[-1]
    guesses: int = 0
    ruled_out: float = 0.0  # share of the other numbers, by the last guess

    def guess(self, text: str, number: int) -> str:
        before, self.guesses = self.high - self.low, self.guesses + 1
        guess, reply = int(text) if text in map(str, NUMBERS) else 0, "no number"
        if guess == number:
            self.low, self.high, reply = number, number, "right"
        elif guess > number:
            self.high, reply = min(self.high, guess - 1), "lower"
        elif guess:
            self.low, reply = max(self.low, guess + 1), "higher"
        self.ruled_out = (before - (self.high - self.low)) / (len(NUMBERS) - 1)
        return reply


class HigherLowerEnv(TurnLevelRewardMixin, AgentEnv):
    """Three guesses at a number: a turn is worth 0.5 × the share that it rules out, the number 1."""

    name = "higher_lower"
    sandbox = "none"
    required_fields = ("number",)

    async def load_items(self) -> Sequence[Item]:
        if self.config.has_dataset:
            return await super().load_items()
        return [{"id": f"{n}-{k}", "number": n} for k in range(64) for n in (4, 1, 6, 2, 7, 3, 5)]

    def format_prompt(self, item: Item) -> Sequence[Message]:
        return OPENING

    def prepare(self, item: Item, sandbox: Sandbox) -> Range:
        return Range()

    def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str:
        reply = ctx.state.guess(turn.message.content.strip(), item["number"])
        ctx.metrics["right"] = float(reply == "right")
        if reply == "right" or ctx.state.guesses == GUESSES:
            ctx.end("won" if reply == "right" else "lost")
        return reply

    def state_key(self, item: Item, turn: Turn | None, ctx: RolloutContext) -> str:
        return f"{ctx.state.low} to {ctx.state.high}, {GUESSES - ctx.state.guesses} guesses"

    def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float:
        return INFORMATION_WEIGHT * ctx.state.ruled_out

    def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> float:
        return float(trajectory.end_reason == "won")

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        left, said = list(NUMBERS), [message.content for message in messages[len(OPENING) :]]
        for guess, reply in zip(said[::2], said[1::2], strict=True):
            at = int(guess) if reply in ("higher", "lower") else 0
            left = [n for n in left if n != at and (n > at) == (reply != "lower")]
        middle = say(str(left[len(left) // 2]))
        return mostly(0.2 + 0.8 * skill, [middle], [say(str(n)) for n in NUMBERS], [say("maybe 4")])
