"""`LongMathEnv`: read a ledger that does not fit into the window, and add it up."""

from collections.abc import Sequence
from typing import Self, cast

from pydantic import Field, model_validator

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice
from environments.rewards.reward_context import Reward, RolloutContext
from environments.rewards.rubric import Rubric, context_efficiency
from environments.rewards.text_format import numeric_match, tagged
from environments.shipped.long_math.ledgers import (
    FIELDS,
    STORES,
    Item,
    OpenLedger,
    make_ledgers,
    refuse_unreadable,
)
from environments.shipped.long_math.script import ledger_script, ledger_summary, second_summary
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec
from tools.sandbox.base import Sandbox

CARRIED_WEIGHT = 0.5
"""Largest sum of the turn rewards of a ledger."""


class LongMathConfig(AgentEnvConfig):
    facts: int = Field(default=24, ge=2, le=1000, description="Pages of a ledger, each with one fact.")
    stores: int = Field(
        default=6, ge=2, le=len(STORES), description="Stores of a ledger: numbers to keep in mind."
    )
    ledgers: int = Field(
        default=32, ge=1, le=1_000_000, description="Ledgers that are made, for training as for evaluation."
    )
    ledger_seed: int = Field(default=0, ge=0, description="Seed that the ledgers are made from.")
    max_turns: int = Field(default=40, ge=1, le=10_000, description="Model calls per rollout.")
    max_token_length: int = Field(
        default=2048, ge=16, description="Tokens one training row may have; a rollout stops before it."
    )
    max_tokens_per_turn: int = Field(default=512, ge=1, description="Tokens one model call may sample.")
    condenser: list[str] | None = Field(
        default=["summarise"],
        description="What keeps long conversations short, asked in this order before each model call: "
        "trim_tool_output, keep_last_turns, fit_context, summarise; none: nothing, and the window overflows.",
    )

    @model_validator(mode="after")
    def _can_be_finished(self) -> Self:
        if self.facts < self.stores:
            raise ValueError(
                f"--env.facts {self.facts} are too few: each of --env.stores {self.stores} is counted"
            )
        if self.max_turns <= self.facts:
            raise ValueError(
                f"--env.max_turns {self.max_turns} are too few: a ledger of --env.facts {self.facts} needs a "
                f"turn for each page and one for the answer"
            )
        return self


class LongMathEnv(TurnLevelRewardMixin, AgentEnv):
    """Each page is read once and builds on numbers far back, so what the context loses is lost."""

    name = "long_math"
    tools = (OpenLedger,)
    sandbox = "none"
    required_fields = FIELDS
    env_config_cls = LongMathConfig
    config: LongMathConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # narrowed, as env_config_cls says
    outcome = Rubric(answer=1.0, context=128.0)
    system_prompt = (
        "You audit the ledger of a grain trade. Read it page by page with next_page, and say with each call "
        "how many sacks the store that the last page is about now holds. A page cannot be read again, and "
        "older parts of this conversation may be cut away: write down what you will need. After the last "
        "page answer with the number alone between tags, like <answer>1234</answer>."
    )

    async def load_items(self) -> Sequence[Item]:
        if not self.config.has_dataset:
            return self._make_ledgers("train")
        items = await super().load_items()
        refuse_unreadable(items)
        return items

    async def load_eval_items(self) -> Sequence[Item]:
        return await self.load_items() if self.config.has_dataset else self._make_ledgers("eval")

    def prepare(self, item: Item, sandbox: Sandbox, ctx: RolloutContext) -> OpenLedger:
        ctx.metrics.update(pages_read=0.0, carried_right=0.0)
        return OpenLedger(pages=item["pages"], stocks=item["stocks"])

    def format_prompt(self, item: Item) -> str:
        stores = ", ".join(item["stores"])
        return (
            f"Ledger {item['id']} has {len(item['pages'])} pages. Its stores: {stores}. "
            f"How many sacks do all of them hold together after the last page?"
        )

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float:
        """Pay a share for each stock carried over correctly; the agent does not see it."""
        before = cast(float, ctx.notes.get("carried_right", 0.0))
        ctx.notes["carried_right"] = now = ctx.metrics["carried_right"]
        return CARRIED_WEIGHT * (now - before) / max(1, len(item["pages"]) - 1)

    async def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> Reward | None:
        """Return 1 for the right answer after the last page, and more for a shorter context."""
        last = trajectory.acts[-1].message.content if trajectory.acts else None
        # A sum of half of a ledger may be right, too.
        is_read = ctx.metrics["pages_read"] == len(item["pages"])
        is_right = is_read and numeric_match(tagged(last, "answer"), item["answer"])
        return self.outcome(answer=is_right, context=context_efficiency(trajectory, correct=is_right))

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        return ledger_script(messages, skill)

    def scripted_summary(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        return ledger_summary(messages, skill)

    def scripted_summariser(self, item: Item, messages: Sequence[Message]) -> str:
        return second_summary(messages)

    def _make_ledgers(self, split: str) -> Sequence[Item]:
        made = self.config
        count = min(made.ledgers, made.max_items or made.ledgers)
        return make_ledgers(split, seed=made.ledger_seed, count=count, facts=made.facts, stores=made.stores)
