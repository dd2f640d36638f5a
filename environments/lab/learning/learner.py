"""One step of policy gradient from credited groups, taken from tokens, masks and advantages alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from environments.lab.learning.choice_policy import ChoicePolicy
from environments.lab.learning.networks import Adam, Array, Decision, TokenIds, probabilities
from environments.trajectory import IGNORED, CreditedGroup
from environments.wire.credited_rows import credited_rows
from environments.wire.views import every_row
from tools.errors import WireError

_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """A turn as a trainer sees it."""

    decision: Decision
    tokens: TokenIds
    logprobs: Sequence[float]
    """As the wire has them."""
    advantages: Sequence[float]
    """Likewise, one per token."""


class Learner:
    """Ascends Σ A log π / rollouts with Adam: on-policy, one step for each batch of groups."""

    def __init__(self, policy: ChoicePolicy, learning_rate: float) -> None:
        """The policy is changed in place."""
        self.policy, self._optimizer = policy, Adam(learning_rate)

    def sampled_turns(self, groups: Sequence[CreditedGroup]) -> list[SampledTurn]:
        """The trained turns of a batch, read from the columns that a trainer gets.

        Raises:
            WireError: the tokens of a turn are none of its choices.
        """
        return [turn for credited in groups for turn in _turns(credited, self.policy)]

    def learn_from(
        self, groups: Sequence[CreditedGroup], *, permuted_by: np.random.Generator | None = None
    ) -> None:
        """Take one step on the groups of a batch that did not fail.

        Args:
            groups: rolled out by the policy since its last step.
            permuted_by: has the advantages of their turns change places: a control, which can learn nothing.

        Raises:
            WireError: see `sampled_turns` and `learn`.
        """
        usable = [credited for credited in groups if credited.status != "failed"]
        turns = self.sampled_turns(usable)
        if permuted_by is not None:
            turns = _permuted(turns, permuted_by)
        self.learn(turns, max(1, sum(len(credited.group.trajectories) for credited in usable)))

    def learn(self, turns: Sequence[SampledTurn], rollouts: int) -> None:
        """Take one step on turns that the policy has sampled since its last one.

        Raises:
            WireError: their log-probabilities are not the policy's.
        """
        network = self.policy.network
        of_logits = [self._of_logits(turn) for turn in turns]
        decisions = [turn.decision for turn in turns]
        gradient = network.gradient(decisions, [each / rollouts for each in of_logits])
        self._optimizer.step(network.parameters, gradient)
        self.policy.step += 1
        self.policy.forget()

    def _of_logits(self, turn: SampledTurn) -> Array:
        """Σ over tokens of A ∂log π(token | tokens before) by the logits of the turn's choices."""
        choice = probabilities(self.policy.network.logits(turn.decision))
        total = np.zeros_like(choice)
        agreeing = np.ones(len(choice), dtype=bool)
        before = choice  # the distribution over choices, given the tokens so far
        for index, token in enumerate(turn.tokens):
            goes_on = np.array([len(ids) > index and ids[index] == token for ids in turn.decision.choices])
            after = agreeing & goes_on
            logprob = 0.0
            if not np.array_equal(after, agreeing):
                kept = np.where(after, before, 0.0)
                logprob = math.log(kept.sum())
                given = kept / kept.sum()
                total += turn.advantages[index] * (given - before)
                agreeing, before = after, given
            if abs(logprob - turn.logprobs[index]) > _TOLERANCE:
                raise WireError(
                    f"token {index} of a turn has the log-probability {turn.logprobs[index]:.6g} in its row, "
                    f"and {logprob:.6g} by the policy that sampled it"
                )
        return total


def _permuted(turns: Sequence[SampledTurn], shuffle: np.random.Generator) -> list[SampledTurn]:
    """The advantages of the turns of a batch change places, across groups and trajectories."""
    moved = shuffle.permutation([turn.advantages[0] for turn in turns]).tolist()
    return [
        replace(turn, advantages=[advantage] * len(turn.tokens))
        for turn, advantage in zip(turns, moved, strict=True)
    ]


def _turns(credited: CreditedGroup, policy: ChoicePolicy) -> list[SampledTurn]:
    """The spans say where turns begin and end; everything else is read from the columns."""
    shown = every_row(credited).rows
    turns: list[SampledTurn] = []
    for row, columns in zip(credited_rows(credited), shown, strict=True):
        decisions = policy.decisions_of(row.trajectory)
        for turn in row.turns:
            decision = decisions[turn.index]
            span = slice(turn.span.start, turn.span.end)
            if decision is None or not turn.trained or IGNORED in columns.mask[span]:
                continue
            tokens = tuple(columns.tokens[span])
            if not any(ids[: len(tokens)] == tokens for ids in decision.choices):
                raise WireError(f"turn {turn.index} sampled tokens that are none of its choices")
            if columns.logprobs is None or columns.advantages is None:
                raise WireError(f"group {credited.group.group_id} has no advantage per token")
            turns.append(
                SampledTurn(
                    decision=decision,
                    tokens=tokens,
                    logprobs=columns.logprobs[span],
                    advantages=columns.advantages[span],
                )
            )
    return turns
