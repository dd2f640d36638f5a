"""`QuizEnv`: eight questions such as "3 or 8", answered with the bigger number. For small language models."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, choices, say
from environments.rewards.reward_context import RolloutContext
from environments.rollout.context import Condenser, History
from environments.trajectory import Message, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec

QUESTIONS = 8
PAIRS = tuple((a, b) for a in range(1, 10) for b in range(1, 10) if a != b)
OPENING = (
    Message(role="system", content="Answer with the bigger number alone."),
    Message(role="user", content="3 or 5"),
    Message(role="assistant", content="5"),
    Message(role="user", content="4 or 2"),
    Message(role="assistant", content="4"),
)

Item = Mapping[str, Any]  # pairs: two numbers per question


class QuizConfig(AgentEnvConfig):
    noise: float = Field(
        default=0.0, ge=0, le=100, description="Standard deviation of each turn's noise, in right answers."
    )
    memory: Literal["whole", "none"] = Field(
        default="whole", description="whole: the model sees the conversation. none: the question alone."
    )


class ForgetTurns:
    name = "forget_turns"

    async def condense(self, history: History, asking: object) -> History:
        return (*history[: len(OPENING)], history[-1])


class QuizEnv(TurnLevelRewardMixin, AgentEnv):
    """Eight questions that do not depend on each other: a right answer is worth 1/8, at its turn."""

    name = "quiz"
    sandbox = "none"
    required_fields = ("pairs",)
    env_config_cls = QuizConfig
    config: QuizConfig

    @property
    def condenser(self) -> Condenser | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # by a setting
        return ForgetTurns() if self.config.memory == "none" else None

    async def load_items(self) -> Sequence[Item]:
        if self.config.has_dataset:
            return await super().load_items()
        rng = random.Random("quiz")
        return [{"id": str(n), "pairs": [rng.choice(PAIRS) for _ in range(QUESTIONS)]} for n in range(1024)]

    def format_prompt(self, item: Item) -> Sequence[Message]:
        return (*OPENING, Message(role="user", content=_question(item, 0)))

    def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str | None:
        answered = turn.index + 1
        return _question(item, answered) if answered < len(item["pairs"]) else None

    def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float:
        pairs = item["pairs"]
        right = float(turn.message.content.strip() == str(max(pairs[turn.index])))
        ctx.metrics["right"] = ctx.metrics.get("right", 0.0) + right / len(pairs)
        noise = random.Random(f"{ctx.seed} {turn.index}").gauss(0, self.config.noise)
        return (right + noise) / len(pairs)

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        low, high = sorted(map(int, messages[-1].content.split(" or ")))
        return choices((0.5 + 0.5 * skill, [say(str(high))]), (0.5 - 0.5 * skill, [say(str(low))]))


def _question(item: Item, index: int) -> str:
    first, second = item["pairs"][index]
    return f"{first} or {second}"
