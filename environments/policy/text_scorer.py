"""Scores texts by the policy for the hooks of one rollout, and keeps the scores for its record."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from environments.policy.base import CompletionRequest, ScoreText
from environments.trajectory import Message, ScoringModel, TextScore
from tools.calls import ToolSpec
from tools.errors import ConfigError
from tools.time_profile import measure

Question = tuple[ScoringModel, str, str]
"""Model, hash of the context, and text."""


def by_question(scores: Iterable[TextScore]) -> dict[Question, TextScore]:
    return {(each.model, each.context, each.text): each for each in scores}


@dataclass(slots=True, kw_only=True)
class TextScorer:
    ask: ScoreText | None = None
    reference: ScoreText | None = None
    tools: tuple[ToolSpec, ...] = ()
    seed: int = 0
    hook: Callable[[], str] = lambda: ""
    recorded: Mapping[Question, TextScore] = field(default_factory=dict[Question, TextScore])
    """Scores that are used instead of new ones."""
    scores: list[TextScore] = field(default_factory=list[TextScore])

    async def score(self, messages: Sequence[Message], text: str, by: ScoringModel) -> TextScore:
        ask = self.ask if by == "policy" else self.reference
        if ask is None and by == "reference":
            raise ConfigError("no reference model scores texts: name its server, --reference.base_url")
        if ask is None:
            raise ConfigError("ctx.policy_logprob works from the rollout's first turn on")
        context = hashlib.blake2b(b"\n".join(each.json() for each in messages), digest_size=16).hexdigest()
        score = self.recorded.get((by, context, text))
        if score is None:
            request = CompletionRequest(messages=tuple(messages), tools=self.tools, seed=self.seed)
            with measure("policy_logprob"):
                bare = await ask(request, text)
            score = replace(bare, model=by, hook=self.hook(), context=context, text=text)
        self.scores.append(score)
        return score
