"""Every token of the canaries: what it adds to the gradient, and what a trainer may weigh it by."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from environments.probe.canary_model import CanaryModel
from environments.probe.tensor_files import Weights
from environments.trainers.canary import CANARIES, GROUP_SIZE
from environments.trajectory import NOT_SAMPLED, CreditedGroup, TokenRow, Trajectory
from environments.wire.credited_rows import CreditedRow, credited_rows

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]


def canary_groups(model: CanaryModel) -> list[CreditedGroup]:
    """Every canary as `model` would have sampled it: a trainer's ratios are 1."""
    return [_sampled_by(model, make()) for make in CANARIES.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """One token after the first of its row."""

    group: int
    trajectory: int
    row: int
    turn: int
    """These four are counted over all canaries; `turn` is -1 where nobody sampled the token."""
    index: int
    """In its row, from 1: the first token is no target."""
    token_id: int
    advantage: float
    score: float
    reward: float
    """Of its turn, NaN where nobody scored it."""
    offset: int
    """In its turn, from 0."""
    is_turn_end: bool = False
    is_later_row: bool = False
    """Whether its trajectory was condensed before it."""
    is_forked: bool = False
    is_summary: bool = False
    is_prompt: bool = False
    """Whether it stands before the first token that was sampled in its row."""
    is_before_turn: bool = False
    """Whether nobody sampled it, and the next token was."""
    is_after_turn: bool = False
    """Whether nobody sampled it, and the token before was."""


@dataclass(frozen=True)
class CanaryTokens:
    """Columns with an entry per token, see `TokenFacts`."""

    model: CanaryModel
    groups: Sequence[CreditedGroup]
    facts: Sequence[TokenFacts]
    errors: Weights
    """One-hot minus probabilities, (tokens, VOCABULARY)."""
    hidden: Weights
    """Before the head, (tokens, WIDTH): a token's ∇log π is the outer product of the two."""

    @classmethod
    def of(
        cls,
        model: CanaryModel,
        groups: Sequence[CreditedGroup],
        *,
        unshifted: bool = False,
    ) -> "CanaryTokens":
        """Those of credited groups.

        Args:
            model: whose forward pass it is.
            groups: the canaries.
            unshifted: whether each token is held against the logits that are about the next one.
        """
        facts: list[TokenFacts] = []
        errors: list[Weights] = []
        hidden: list[Weights] = []
        rows = turns = 0
        for index, credited in enumerate(groups):
            for row in credited_rows(credited):
                trajectory = GROUP_SIZE * index + row.trajectory.sibling
                facts += _facts_of(row, _Counted(group=index, trajectory=trajectory, row=rows, turn=turns))
                rows, turns = rows + 1, turns + len(row.turns)
                states, log_p = model.forward(row.tokens)
                about = slice(1, None) if unshifted else slice(None, -1)
                errors.append(_one_hot_minus(np.exp(log_p[about]), row.tokens[1:]))
                hidden.append(states[about])
        return cls(model, groups, facts, np.concatenate(errors), np.concatenate(hidden))

    def gradient(self, weights: Numbers) -> Weights:
        """Σ weight · ∇log π for the head, (VOCABULARY, WIDTH)."""
        return self.errors.T @ (weights[:, None] * self.hidden)

    def at(self, temperature: float) -> "CanaryTokens":
        """The same tokens, where logits are divided by a temperature."""
        taken = self.ids("token_id").tolist()
        probabilities = np.maximum(_one_hot_minus(self.errors, taken), np.finfo(np.float64).tiny)
        return replace(self, errors=_one_hot_minus(_heated(np.log(probabilities), temperature), taken))

    def weights_in(self, step: Weights) -> Numbers:
        """What each token weighs in a step, by least squares."""
        return self._inverse @ ((self.errors @ step) * self.hidden).sum(axis=1)

    @cached_property
    def _inverse(self) -> Weights:
        """Of the products of every two tokens' ∇log π."""
        products = (self.errors @ self.errors.T) * (self.hidden @ self.hidden.T)
        return cast("Weights", np.linalg.inv(products))

    @cached_property
    def trained(self) -> Flags:
        """Whether a token was sampled."""
        return self.ids("turn") >= 0

    @cached_property
    def advantages(self) -> Numbers:
        """0 where nobody sampled."""
        return self.numbers("advantage")

    def numbers(self, name: str) -> Numbers:
        """A field of `TokenFacts`."""
        return np.array([getattr(fact, name) for fact in self.facts], np.float64)

    def flags(self, name: str) -> Flags:
        """A field of `TokenFacts`."""
        return np.array([getattr(fact, name) for fact in self.facts], np.bool_)

    def ids(self, name: str) -> Ids:
        """A field of `TokenFacts`."""
        return np.array([getattr(fact, name) for fact in self.facts], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    group: int
    trajectory: int
    row: int
    turn: int
    """Of the first turn in the row."""


def _facts_of(row: CreditedRow, counted: _Counted) -> list[TokenFacts]:
    rewards = None if row.trajectory.rewards is None else row.trajectory.rewards.turns
    first = min((turn.span.start for turn in row.turns), default=len(row.tokens))
    ground = TokenFacts(
        group=counted.group,
        trajectory=counted.trajectory,
        row=counted.row,
        turn=-1,
        index=0,
        token_id=0,
        advantage=0.0,
        score=cast("float", row.trajectory.score),
        reward=float("nan"),
        offset=0,
        is_later_row=any(turn.span.row > 0 for turn in row.turns),
        is_forked=len(row.trajectory.rows) > 1,
    )
    facts = [replace(ground, is_prompt=index < first) for index in range(len(row.tokens))]
    for index, (turn, advantage) in enumerate(zip(row.turns, row.turn_advantages, strict=True)):
        reward = None if rewards is None else rewards[turn.index]
        for place in range(turn.span.start, turn.span.end):
            facts[place] = replace(
                ground,
                turn=counted.turn + index,
                advantage=advantage,
                reward=float("nan") if reward is None else reward,
                offset=place - turn.span.start,
                is_turn_end=place == turn.span.end - 1,
                is_summary=turn.kind == "summary",
            )
    sampled = [fact.turn >= 0 for fact in facts]
    return [
        replace(
            fact,
            index=index,
            token_id=row.tokens[index],
            is_before_turn=not sampled[index] and sampled[index + 1 : index + 2] == [True],
            is_after_turn=not sampled[index] and sampled[index - 1],
        )
        for index, fact in enumerate(facts)
        if index > 0
    ]


def _heated(log_p: Weights, temperature: float) -> Weights:
    raised = np.exp(log_p / temperature)
    return raised / raised.sum(axis=1, keepdims=True)


def _one_hot_minus(probabilities: Weights, token_ids: Sequence[int]) -> Weights:
    errors = -probabilities
    errors[np.arange(len(token_ids)), list(token_ids)] += 1.0
    return errors


def _sampled_by(model: CanaryModel, credited: CreditedGroup) -> CreditedGroup:
    trajectories = tuple(
        replace(trajectory, rows=tuple(_with_logprobs(model, trajectory, row) for row in trajectory.rows))
        for trajectory in credited.group.trajectories
    )
    return replace(credited, group=replace(credited.group, trajectories=trajectories))


def _with_logprobs(model: CanaryModel, trajectory: Trajectory, row: TokenRow) -> TokenRow:
    log_p = model.forward(list(row.token_ids))[1]
    logprobs = [NOT_SAMPLED] * len(row.token_ids)
    for turn in trajectory.turns:
        if trajectory.rows[turn.span.row] is row:
            for place in range(turn.span.start, turn.span.end):
                logprobs[place] = float(log_p[place - 1, row.token_ids[place]])
    return replace(row, logprobs=tuple(logprobs))
