"""`JudgedWritingEnv`: a draft, an editor's remarks, a revision; a judge scores each draft."""

from collections.abc import Sequence
from importlib.resources import files
from typing import cast

import jsonlines
from pydantic import Field

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, mostly, say
from environments.rewards.reward_context import Reward, RolloutContext
from environments.rewards.rubric import Rubric
from environments.shipped.judged_writing.judging import (
    BEST,
    UNREADABLE,
    Item,
    Verdict,
    draft_question,
    length_fit,
    missing_words,
    outcome_question,
    scripted_verdict,
    task_text,
)
from environments.trajectory import Message, Trajectory, Turn
from environments.turn_level_reward import TurnLevelRewardMixin
from tools.calls import ToolSpec


class JudgedWritingConfig(AgentEnvConfig):
    drafts: int = Field(
        default=3, ge=1, le=10, description="Drafts that are written, the first one included."
    )


class JudgedWritingEnv(TurnLevelRewardMixin, AgentEnv):
    """Every turn is a draft, and worth what it is better than the one before; the last one is judged anew."""

    name = "judged_writing"
    sandbox = "none"
    system_prompt = "You are a writer. Answer with the text alone: no title, no comment."
    required_fields = ("id", "kind", "required", "words")
    env_config_cls = JudgedWritingConfig
    config: JudgedWritingConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # narrowed, as env_config_cls says
    outcome = Rubric(judge=0.6, words=0.2, length=0.2)

    async def load_items(self) -> Sequence[Item]:
        if self.config.dataset_name or self.config.dataset_path:
            return await super().load_items()
        with files("environments.shipped.judged_writing").joinpath("briefs.jsonl").open("rb") as lines:
            return list(jsonlines.Reader(lines))[: self.config.max_items]

    def format_prompt(self, item: Item) -> str:
        return task_text(item)

    async def respond(self, item: Item, turn: Turn, ctx: RolloutContext) -> str | None:
        """The editor's remarks on a draft; after the last one there are none."""
        verdict = await self._verdict(item, turn, ctx)
        if len(_verdicts(ctx)) < self.config.drafts:
            return f"The editor says: {verdict.remarks} Write the whole text again, better."
        ctx.end("the last draft is in")
        return None

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> Reward | None:
        """How much better this draft is than the one before; the rewards add up to the last one's score."""
        now = (await self._verdict(item, turn, ctx)).score / BEST
        before = cast(float, ctx.notes.get("score", 0.0))
        ctx.notes["score"] = now
        return now - before

    async def compute_outcome(self, item: Item, trajectory: Trajectory, ctx: RolloutContext) -> Reward | None:
        """A second judge's score of the last draft, beside what can be measured of it."""
        draft = trajectory.acts[-1].message.content
        score = await ctx.judge(outcome_question(item, draft), unparsable=0.0)
        missing = missing_words(draft, item["required"])
        return self.outcome(
            judge=min(max(score / BEST, 0.0), 1.0),
            words=1 - len(missing) / len(item["required"]),
            length=length_fit(draft, *item["words"]),
        )

    async def _verdict(self, item: Item, turn: Turn, ctx: RolloutContext) -> Verdict:
        """The judge's verdict on a turn's draft, asked once."""
        verdicts = _verdicts(ctx)
        if turn.index not in verdicts:
            question = draft_question(item, turn.message.content)
            verdicts[turn.index] = await ctx.judge(
                question, schema=Verdict, turn=turn.index, unparsable=UNREADABLE
            )
        return verdicts[turn.index]

    def scripted_judge(self, item: Item, messages: Sequence[Message]) -> str:
        return scripted_verdict(item, messages)

    def scripted_choices(
        self, item: Item, messages: Sequence[Message], tools: Sequence[ToolSpec], skill: float
    ) -> Sequence[Choice]:
        """Mostly all the sentences; else too few of them, one again and again, or an excuse.

        With skill 1 every draft is whole. Without skill half of the drafts leave a sentence out.
        """
        sentences: Sequence[str] = item["sentences"]
        drafts = sum(message.role == "assistant" for message in messages)
        p_right = 0.1 + 0.9 * skill
        wrong = (
            [" ".join(each for each in sentences if each != gap) for gap in sentences],
            [
                " ".join([sentences[0]] * len(sentences)),
                " ".join(sentences[: 1 + drafts]),
                "I would rather write about something else.",
            ],
        )
        return mostly(p_right, [say(" ".join(sentences))], *([say(text) for text in each] for each in wrong))


def _verdicts(ctx: RolloutContext) -> dict[int, Verdict]:
    """Of the drafts so far, by the index of their turn."""
    return cast("dict[int, Verdict]", ctx.notes.setdefault("verdicts", {}))
