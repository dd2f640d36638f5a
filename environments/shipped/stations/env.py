"""`StationsEnv`: each turn shows a sign, which has one right key. For policies that learn in seconds."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from pydantic import Field

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call
from environments.rewards.reward_context import RolloutContext
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import State, ToolContext, ToolSpec
from tools.errors import ToolError
from tools.registry import Toolset, tool
from tools.sandbox.base import Sandbox

SIGNS = ("north", "south", "east", "west", "sun", "moon", "star", "rain")
KEYS = ("a", "b", "c", "d")
RIGHT_KEY: Mapping[str, str] = {sign: KEYS[index % len(KEYS)] for index, sign in enumerate(SIGNS)}
STATIONS = 8
_ITEMS = 10_000

Task = Literal["stop", "independent", "delayed", "shuffled"]
Item = Mapping[str, Any]
"""`signs`, one per station."""


class StationsConfig(AgentEnvConfig):
    task: Task = Field(
        default="stop",
        description="stop: a wrong key ends the rollout. The others go on to the last sign. independent: a "
        "right key is paid where it is pressed; delayed: all are paid at the last turn; shuffled: each is "
        "paid at some turn, drawn anew for each rollout.",
    )


@dataclass(slots=True, kw_only=True)
class Journey(State):
    signs: Sequence[str]
    task: Task
    right: list[bool] = field(default_factory=list[bool])


@tool
def press(journey: Journey, ctx: ToolContext, key: str) -> str:
    """Press a key at the sign that is shown.

    Args:
        key: a, b, c or d.
    """
    if key not in KEYS:
        raise ToolError(f"There is no key {key!r}; the keys are {', '.join(KEYS)}.")
    station = len(journey.right)
    is_right = key == RIGHT_KEY[journey.signs[station]]
    journey.right.append(is_right)
    if journey.task == "stop" and not is_right:
        ctx.end("a wrong key")
        return "That was the wrong key."
    if len(journey.right) == len(journey.signs):
        ctx.end("the last station")
        return "This was the last station."
    return f"sign: {journey.signs[station + 1]}"


class StationsEnv(TurnLevelRewardMixin, AgentEnv):
    """Eight stations: a right key is worth 1/8, paid at once, at the end, or at a random turn."""

    name = "stations"
    sandbox = "none"
    env_config_cls = StationsConfig
    config: StationsConfig
    required_fields = ("signs",)
    tools = (Toolset("keys", (press,)),)

    async def load_items(self) -> Sequence[Item]:
        if self.config.has_dataset:
            return await super().load_items()
        rngs = (random.Random(f"stations {n}") for n in range(min(_ITEMS, self.config.max_items or _ITEMS)))
        signs = [[rng.choice(SIGNS) for _ in range(STATIONS)] for rng in rngs]
        return [{"id": str(number), "signs": each} for number, each in enumerate(signs)]

    def format_prompt(self, item: Item) -> str:
        return f"Press the right key at each sign.\nsign: {item['signs'][0]}"

    def prepare(self, item: Item, sandbox: Sandbox) -> Journey:
        return Journey(signs=item["signs"], task=self.config.task)

    def state_key(self, item: Item, turn: Turn | None, ctx: RolloutContext) -> str:
        """Return the shown sign, since its station changes nothing."""
        journey: Journey = ctx.state
        station = min(len(journey.right), len(journey.signs) - 1)
        return journey.signs[station]

    async def compute_turn_rewards(
        self, item: Item, trajectory: Trajectory, ctx: RolloutContext
    ) -> list[float | None]:
        """Return 1/8 for each right key, at the turns that `task` pays."""
        journey: Journey = ctx.state
        earned = iter(journey.right)
        rewards = [
            sum(islice(earned, sum(result.error is None for result in turn.tool_results)))
            / len(journey.signs)
            for turn in trajectory.acts
        ]
        ctx.metrics["right_keys"] = sum(journey.right) / len(journey.signs)
        if self.config.task == "delayed":
            return [*[0.0] * (len(rewards) - 1), sum(rewards)]
        if self.config.task == "shuffled":
            random.Random(f"stations {ctx.seed}").shuffle(rewards)
        return list(rewards)

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        sign = messages[-1].content.rsplit(" ", 1)[-1]
        guess = (1 - skill) / len(KEYS)
        return [
            Choice(
                probability=guess + skill * (RIGHT_KEY.get(sign) == key), message=call("press", {"key": key})
            )
            for key in KEYS
        ]
