"""What a policy learned to do: its most visited states with the probability of each choice."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from os.path import commonprefix

from environments.lab.learning.choice_policy import ChoicePolicy
from environments.lab.learning.networks import Decision, probabilities
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trajectory import Message, Trajectory

_LABEL_CHARS = 100
_STATE_CHARS = 400
_KEPT_CHARS = 20
"""Of how all choices of a state begin, where that is long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedState:
    """A state, and what the policy does there."""

    state: str
    visits: int
    choices: tuple[tuple[str, float], ...]
    """Each with its probability, the likeliest first."""


def learned_states(
    policy: ChoicePolicy, rollouts: Iterable[Trajectory], renderer: ChatMLRenderer, *, most: int
) -> list[LearnedState]:
    """The states that rollouts of the policy came to most often, and in which it had a choice.

    Args:
        policy: it has the decisions of these rollouts still.
        rollouts: those of one measurement.
        renderer: reads the choices.
        most: how many states.
    """
    visits: Counter[Decision] = Counter()
    for trajectory in rollouts:
        visits.update(each for each in policy.decisions_of(trajectory) if each is not None)
    choosing = [(each, count) for each, count in visits.most_common() if len(each.choices) > 1]
    return [
        LearnedState(
            state=_cut(decision.state, _STATE_CHARS),
            visits=count,
            choices=_choices(policy, decision, renderer),
        )
        for decision, count in choosing[:most]
    ]


def _choices(
    policy: ChoicePolicy, decision: Decision, renderer: ChatMLRenderer
) -> tuple[tuple[str, float], ...]:
    chances = probabilities(policy.network.logits(decision)).tolist()
    texts = [" ".join(_in_words(renderer.parse(ids)).split()) for ids in decision.choices]
    shared = len(commonprefix(texts))  # noqa: RUF071  # of characters: these are no paths
    skipped = shared - _KEPT_CHARS if shared > 2 * _KEPT_CHARS else 0
    labels = [_cut(f"…{text[skipped:]}" if skipped else text, _LABEL_CHARS) for text in texts]
    return tuple(sorted(zip(labels, chances, strict=True), key=lambda each: -each[1]))


def _in_words(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return " ".join([*calls, message.content]).strip() or "(says nothing)"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
