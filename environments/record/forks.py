"""Turns that began a new row although the last one was there to go on from, and what that costs a trainer."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from environments.record.tally import counts, tally
from environments.trajectory import Trajectory

REMEDIES = {
    "template": "the server writes what was said otherwise than it was sampled: use a chat template that "
    "keeps all of it (--openai.extra_body.chat_template_kwargs), or token ids (--openai.server_type vllm or "
    "sglang)",
    "history": "a condenser shortened what the model saw: a larger budget (--env.condenser_tokens) makes "
    "fewer, longer rows, and keep_last_turns makes one a turn",
    "renderer": "the chat format cannot go on from what was sampled; --openai.family chooses another",
}
"""What to do, by the first word of a cause."""


@dataclass(slots=True, kw_only=True)
class Forks:
    """Only `add` changes it."""

    causes: Counter[str] = field(default_factory=Counter[str])
    turns: int = 0
    row_tokens: int = 0
    """Of all rows: what a trainer gets."""
    sampled_tokens: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Take one rollout in."""
        self.turns += len(trajectory.turns)
        self.row_tokens += sum(len(row.token_ids) for row in trajectory.rows)
        self.sampled_tokens += sum(turn.span.end - turn.span.start for turn in trajectory.turns)
        for turn in trajectory.turns:
            if turn.fork is not None:
                tally(self.causes, turn.fork)

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "turns": self.turns,
            "forked": self.causes.total(),
            "causes": dict(self.causes),
            "row_tokens": self.row_tokens,
            "sampled_tokens": self.sampled_tokens,
        }

    def short(self) -> str:
        """For a line that has more to say; empty when no row forked."""
        count = self.causes.total()
        return f"forks {count:,}, {self._ratio()}" if count else ""

    def text(self) -> str:
        """How many turns forked and why, the tokens they cost, and what to do; empty when none did."""
        if not self.causes:
            return ""
        forked = f"{self.causes.total():,} of {self.turns:,} turns began a new row: {counts(self.causes)}"
        cost = (
            f"a trainer gets {self.row_tokens:,} tokens for {self.sampled_tokens:,} sampled ({self._ratio()})"
        )
        kinds = dict.fromkeys(cause.partition(":")[0] for cause in self.causes)
        remedies = [f"{kind}: {REMEDIES[kind]}" for kind in kinds if kind in REMEDIES]
        return "\n".join([forked, cost, *remedies])

    def _ratio(self) -> str:
        if not self.sampled_tokens:
            return "nothing sampled"
        return f"{self.row_tokens / self.sampled_tokens:.3g} trainer tokens per sampled one"
