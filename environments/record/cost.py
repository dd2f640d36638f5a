"""What rollouts cost: tokens of the policy and of second models, and seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.record.spread import finite
from environments.trajectory import JudgeCall, Trajectory, TrajectoryGroup


@dataclass(slots=True, kw_only=True)
class Asked:
    """What one second model was asked."""

    answers: int = 0
    prompt_tokens: int = 0
    """As far as its server says it, as the next; an answer that was used again costs nothing."""
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Of prompts and answers."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, calls: Sequence[JudgeCall]) -> None:
        """Take its answers in."""
        self.answers += len(calls)
        for call in calls:
            self.prompt_tokens += call.usage.get("prompt_tokens", 0)
            self.completion_tokens += call.usage.get("completion_tokens", 0)

    def text(self) -> str:
        """For people; empty where it was never asked."""
        cost = f", {self.tokens:,} tokens" if self.tokens else ""
        return f"{self.answers:,} answer{'' if self.answers == 1 else 's'}{cost}" if self.answers else ""


@dataclass(slots=True, kw_only=True)
class Cost:
    """Only `add` changes it."""

    act_tokens: int = 0
    """Sampled by the policy, as all tokens here that are not another's."""
    summary_tokens: int = 0
    exact_tokens: int = 0
    """Sampled tokens whose ids came from the sampler."""
    approximate_tokens: int = 0
    """Sampled tokens whose ids were made from text."""
    prompt_tokens: int = 0
    """That the model saw, over all calls: what was in the row before each; as exact as the row."""
    rollout_s: float = 0.0
    """Of all rollouts that were kept, one after the other."""
    model_s: float = 0.0
    tools_s: float = 0.0
    asked: dict[str, Asked] = field(default_factory=dict[str, Asked])
    """By role of the second model."""

    def add(self, group: TrajectoryGroup) -> None:
        """Take a group in, with what its lost siblings asked."""
        self._ask("judge", group.judge_calls)
        for each in (*group.failures, *group.trajectories):
            self._ask("judge", each.judge_calls)
            self._ask("user", each.user_calls)
            self._ask("summariser", each.summariser_calls)
        for trajectory in group.trajectories:
            self._add_tokens(trajectory)

    @property
    def sampled_tokens(self) -> int:
        """All that the policy sampled."""
        return self.act_tokens + self.summary_tokens

    def tokens(self) -> dict[str, int]:
        """Those of the policy, as JSON."""
        return {
            "sampled": self.sampled_tokens,
            "acts": self.act_tokens,
            "summaries": self.summary_tokens,
            "exact": self.exact_tokens,
            "approximate": self.approximate_tokens,
            "prompts": self.prompt_tokens,
        }

    def values(self) -> dict[str, Any]:
        """As JSON: seconds, and tokens of everybody who was paid for."""
        seconds = {"rollout_s": self.rollout_s, "model_s": self.model_s, "tools_s": self.tools_s}
        return {
            **{name: finite(value) for name, value in seconds.items()},
            "policy": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.sampled_tokens},
            **{
                role: {
                    "answers": asked.answers,
                    "prompt_tokens": asked.prompt_tokens,
                    "completion_tokens": asked.completion_tokens,
                }
                for role, asked in self.asked.items()
            },
        }

    def rows(self) -> list[tuple[str, str]]:
        """What second models were asked, for people."""
        return [(role, asked.text()) for role, asked in self.asked.items()]

    def _ask(self, role: str, calls: Sequence[JudgeCall]) -> None:
        if calls:
            self.asked.setdefault(role, Asked()).add(calls)

    def _add_tokens(self, trajectory: Trajectory) -> None:
        self.rollout_s += trajectory.wall_s
        for turn in trajectory.turns:
            sampled = turn.span.end - turn.span.start
            if turn.kind == "act":
                self.act_tokens += sampled
            else:
                self.summary_tokens += sampled
            if trajectory.exact:
                self.exact_tokens += sampled
            else:
                self.approximate_tokens += sampled
            self.prompt_tokens += turn.span.start
            self.model_s += turn.model_s
            self.tools_s += turn.tools_s
