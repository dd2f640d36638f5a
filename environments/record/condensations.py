"""How often what the model saw was made shorter, by whom, and what that left; and the summaries it took."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from environments.record.spread import Spread, finite
from environments.record.tally import counts, tally
from environments.trajectory import Trajectory


@dataclass(slots=True, kw_only=True)
class Condensations:
    """Only `add` changes it."""

    rollouts: int = 0
    condensed_rollouts: int = 0
    causes: Counter[str] = field(default_factory=Counter[str])
    """The condensers that changed something before a turn, by name."""
    before: Spread = field(default_factory=Spread)
    """Tokens of prompts as they would have been."""
    after: Spread = field(default_factory=Spread)
    is_estimate: bool = False
    seconds: float = 0.0
    summaries: int = 0
    """Turns in which the policy itself summed up."""
    summary_tokens: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Take one rollout in."""
        self.rollouts += 1
        done = [turn.condensed for turn in trajectory.turns if turn.condensed is not None]
        self.condensed_rollouts += bool(done)
        for each in done:
            tally(self.causes, each.cause)
            self.before.add(each.tokens_before)
            self.after.add(each.tokens_after)
            self.is_estimate |= each.is_estimate
            self.seconds += each.seconds
        spans = [turn.span for turn in trajectory.turns if turn.kind == "summary"]
        self.summaries += len(spans)
        self.summary_tokens += sum(span.end - span.start for span in spans)

    def rows(self) -> list[tuple[str, str]]:
        """Names and texts for people; none where nothing was condensed."""
        return [
            (name, text) for name, text in (("condensed", self._text()), ("summaries", self._sums())) if text
        ]

    def values(self) -> dict[str, Any]:
        """As JSON; empty where nothing was condensed."""
        if not self.causes and not self.summaries:
            return {}
        return {
            "times": self.before.count,
            "rollouts": self.condensed_rollouts,
            "per_rollout": self.before.count / self.rollouts,
            "tokens_before": self.before.values(),
            "tokens_after": self.after.values(),
            "is_estimate": self.is_estimate,
            "seconds": finite(self.seconds),
            "causes": dict(self.causes),
            "summaries": self.summaries,
            "summaries_per_rollout": self.summaries / self.rollouts,
        }

    def _text(self) -> str:
        if self.before.mean is None or self.after.mean is None:
            return ""
        about = ", estimated" if self.is_estimate else ""
        return (
            f"{self.before.count:,} times in {self.condensed_rollouts:,} of {self.rollouts:,} rollouts, "
            f"{self.before.mean:,.0f} to {self.after.mean:,.0f} tokens on average{about}, "
            f"{self.seconds:.1f} s{counts(self.causes, ': ')}"
        )

    def _sums(self) -> str:
        if not self.summaries:
            return ""
        return (
            f"{self.summaries:,} by the policy, {self.summary_tokens / self.summaries:,.0f} tokens on average"
        )
