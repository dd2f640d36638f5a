"""The policy that learns: it chooses among the scripted agent's messages, and samples the real tokens."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from environments.policy.base import CompletionRequest, Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, PlaysByScript, Script, ScriptedPolicy
from environments.trajectory import IGNORED, Completion, CreditedGroup, Message, Trajectory
from environments.wire.credited_rows import credited_rows
from environments.wire.views import every_row
from tools.errors import WireError
from turnwise.viewer.learning_values import LearnedChoice, LearnedStateValues

Array = NDArray[np.float64]
TokenIds = tuple[int, ...]

_TOLERANCE = 1e-6
_LABEL_CHARS = 100
_STATE_CHARS = 400
_KEPT_CHARS = 20
"""Of how all choices of a state begin, where that is long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a turn chose among."""

    state: str
    """What the choice may depend on: the turn's anchor, or else the last message."""
    choices: tuple[TokenIds, ...]
    """The sampled tokens of each message that the agent could write."""


class Table:
    """A logit of its own for each choice in each state: nothing is shared between states."""

    def __init__(self) -> None:
        """All choices are equally likely."""
        self.values: Array = np.zeros(0)
        """All logits; the array grows as states and choices are met."""
        self._index: dict[tuple[str, TokenIds], int] = {}

    def probabilities(self, decision: Decision) -> Array:
        """One per choice: the softmax of the logits, which are 0 in a state that was never met."""
        indices = self._indices(decision)  # the array grows
        logits = self.values[indices]
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def gradient(self, decisions: Sequence[Decision], of_logits: Sequence[Array]) -> Array:
        """The derivative by each of `values`.

        Args:
            decisions: those whose logits were used.
            of_logits: `[decision][choice]`, the derivative by each logit.
        """
        gradient = np.zeros_like(self.values)
        for decision, values in zip(decisions, of_logits, strict=True):
            np.add.at(gradient, self._indices(decision), values)
        return gradient

    def _indices(self, decision: Decision) -> list[int]:
        index = self._index
        indices = [index.setdefault((decision.state, ids), len(index)) for ids in decision.choices]
        self.values = _grown(self.values, len(index))
        return indices


class ChoicePolicy(PlaysByScript):
    """Samples with a table's probabilities among the choices that a script offers.

    Its probabilities are those of whole messages; the tokens and their log-probabilities are what a language
    model with this distribution would give. It knows nothing of the item but its choices.
    """

    def __init__(self, renderer: ChatMLRenderer, *, name: str = "learned") -> None:
        """A policy at step 0."""
        self.table, self.step = Table(), 0
        self._renderer, self._name = renderer, name
        self._rollouts: defaultdict[int, list[list[Decision | None]]] = defaultdict(list)

    @property
    def name(self) -> str:
        """What the record calls it."""
        return self._name

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        """The policy of one rollout."""
        return _Player(self, script, skill=skill, renderer=self._renderer, summary=summary)

    def decisions_of(self, trajectory: Trajectory) -> Sequence[Decision | None]:
        """What each of its turns chose among, since the last `forget`; `None` for a summary.

        Raises:
            WireError: this policy has not begun it since then; or rollouts with its seed went different ways,
                so that it may be any of them.
        """
        if any(turn.thread for turn in trajectory.turns):
            raise WireError(
                f"item {trajectory.item_id!r}: the agent has several threads, whose decisions cannot be told "
                f"apart here; learn takes agents of one"
            )
        count, rollouts = len(trajectory.turns), self._rollouts.get(trajectory.seed, ())
        begun = [tuple(each[:count]) for each in rollouts if len(each) >= count]
        if not begun:
            raise WireError(
                f"item {trajectory.item_id!r}: sibling {trajectory.sibling} did not begin after the last "
                f"step of the policy {self._name!r}; learn once from each batch, before the next one begins"
            )
        if any(each != begun[0] for each in begun):
            raise WireError(
                f"item {trajectory.item_id!r}: two rollouts of a batch have the seed {trajectory.seed} and "
                f"went different ways; give each group of a batch an item or an epoch of its own"
            )
        return begun[0]

    def choices_of(self, rollouts: Iterable[Trajectory]) -> list[Decision]:
        """The decisions of these rollouts that had more than one message to choose among.

        Raises:
            WireError: see `decisions_of`.
        """
        decisions = [each for rollout in rollouts for each in self.decisions_of(rollout)]
        return [each for each in decisions if each is not None and len(each.choices) > 1]

    def learned_states(self, rollouts: Iterable[Trajectory], *, most: int) -> list[LearnedStateValues]:
        """The states that rollouts came to most often and in which they had a choice, the first of them.

        Raises:
            WireError: see `decisions_of`.
        """
        return [
            LearnedStateValues(
                state=_cut(decision.state, _STATE_CHARS), visits=visits, choices=self._shares(decision)
            )
            for decision, visits in Counter(self.choices_of(rollouts)).most_common(most)
        ]

    def _shares(self, decision: Decision) -> list[LearnedChoice]:
        """The choices in a state, in words, the likeliest first."""
        shares = self.table.probabilities(decision).tolist()
        texts = [" ".join(_in_words(self._renderer.parse(ids)).split()) for ids in decision.choices]
        shared = len(commonprefix(texts))  # noqa: RUF071  # of characters: these are no paths
        skipped = shared - _KEPT_CHARS if shared > 2 * _KEPT_CHARS else 0
        labels = [_cut(f"…{text[skipped:]}" if skipped else text, _LABEL_CHARS) for text in texts]
        choices = zip(labels, shares, strict=True)
        return [
            LearnedChoice(message=label, probability=share)
            for label, share in sorted(choices, key=lambda each: -each[1])
        ]

    def forget(self) -> None:
        """Drop the decisions of rollouts that were learned from."""
        self._rollouts.clear()

    def begun(self, seed: int, decisions: list[Decision | None]) -> None:
        """Keep what a rollout chooses among; the list grows turn by turn."""
        self._rollouts[seed].append(decisions)

    def weighed(
        self, request: CompletionRequest, choices: Sequence[Choice]
    ) -> tuple[Decision, Sequence[Choice]]:
        """What is chosen among, and the choices with the table's probabilities; equal ones count as one."""
        messages = {self._renderer.completion_ids(choice.message): choice.message for choice in choices}
        state = request.messages[-1].content if request.anchor is None else request.anchor
        decision = Decision(state=state, choices=tuple(messages))
        weights = self.table.probabilities(decision).tolist()
        return decision, [
            Choice(probability=weight, message=message)
            for weight, message in zip(weights, messages.values(), strict=True)
        ]

    def chances(self, state: str, messages: Sequence[Message]) -> list[float]:
        """How likely each of the messages is in a state, where those are all that can be written."""
        choices = tuple(self._renderer.completion_ids(message) for message in messages)
        return self.table.probabilities(Decision(state=state, choices=choices)).tolist()


class _Player(ScriptedPolicy):
    """One rollout of a `ChoicePolicy`; summaries are those of the script, and are not learned."""

    def __init__(
        self, policy: ChoicePolicy, script: Script, *, skill: float, renderer: ChatMLRenderer, summary: Script
    ) -> None:
        super().__init__(script, skill=skill, renderer=renderer, summary=summary)
        self._policy = policy
        self._decisions: list[Decision | None] = []

    async def choices(self, request: CompletionRequest) -> Sequence[Choice]:
        choices, decision = await super().choices(request), None
        if request.kind == "act":
            decision, choices = self._policy.weighed(request, choices)
        if not self._decisions:
            seed = request.seed if request.rollout_seed is None else request.rollout_seed
            self._policy.begun(seed, self._decisions)
        self._decisions.append(decision)
        return choices

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await super().complete(request)
        return replace(completion, weight_version=f"step-{self._policy.step}")


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
            WireError: see `ChoicePolicy.decisions_of`.
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
        table = self.policy.table
        of_logits = [self._of_logits(turn) / rollouts for turn in turns]
        gradient = table.gradient([turn.decision for turn in turns], of_logits)
        self._optimizer.step(table.values, gradient)
        self.policy.step += 1
        self.policy.forget()

    def _of_logits(self, turn: SampledTurn) -> Array:
        """Σ over tokens of A ∂log π(token | tokens before) by the logits of the turn's choices."""
        choice = self.policy.table.probabilities(turn.decision)
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


class Adam:
    """Ascent by Adam (arXiv 1412.6980), on values that may have grown since the step before."""

    def __init__(self, learning_rate: float, *, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        """No step was taken."""
        self.learning_rate, self._betas, self._steps = learning_rate, betas, 0
        self._mean: Array = np.zeros(0)
        self._square: Array = np.zeros(0)

    def step(self, values: Array, gradient: Array) -> None:
        """Change the values in place, uphill."""
        self._steps += 1
        first, second = self._betas
        self._mean = first * _grown(self._mean, len(gradient)) + (1 - first) * gradient
        self._square = second * _grown(self._square, len(gradient)) + (1 - second) * gradient**2
        unbiased = np.sqrt(self._square / (1 - second**self._steps)) + 1e-8
        values += self.learning_rate * self._mean / (1 - first**self._steps) / unbiased


def _permuted(turns: Sequence[SampledTurn], shuffle: np.random.Generator) -> list[SampledTurn]:
    """The advantages of the turns of a batch change places, across groups and trajectories."""
    moved = shuffle.permutation([turn.advantages[0] for turn in turns]).tolist()
    return [
        replace(turn, advantages=[advantage] * len(turn.tokens))
        for turn, advantage in zip(turns, moved, strict=True)
    ]


def _turns(credited: CreditedGroup, policy: ChoicePolicy) -> list[SampledTurn]:
    """The spans are the turns' bounds; everything else is read from the columns."""
    shown = every_row(credited).rows
    turns: list[SampledTurn] = []
    for row, columns in zip(credited_rows(credited), shown, strict=True):
        decisions = policy.decisions_of(row.trajectory)
        for turn in row.turns:
            decision = decisions[turn.index]
            span = slice(turn.span.start, turn.span.end)
            if decision is None or not turn.trained or IGNORED in columns.mask[span]:
                continue
            assert columns.logprobs is not None
            assert columns.advantages is not None
            turns.append(
                SampledTurn(
                    decision=decision,
                    tokens=tuple(columns.tokens[span]),
                    logprobs=columns.logprobs[span],
                    advantages=columns.advantages[span],
                )
            )
    return turns


def _grown(array: Array, length: int) -> Array:
    """The array with zeros at its end."""
    if len(array) == length:
        return array
    return np.concatenate([array, np.zeros(length - len(array))])


def _in_words(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return " ".join([*calls, message.content]).strip() or "(says nothing)"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
