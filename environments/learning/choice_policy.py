"""The policy that learns: it chooses among what the scripted agent could say, and samples the real tokens."""

from collections.abc import Sequence
from dataclasses import replace

from environments.learning.networks import Decision, Network, probabilities
from environments.policy.base import CompletionRequest, Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, Script, ScriptedPolicy
from environments.trajectory import Completion, Message, Trajectory
from tools.errors import ConfigError


class ChoicePolicy:
    """Samples with a network's probabilities among the choices that a script offers.

    Its probabilities are those of whole messages; the tokens and their log-probabilities are what a language
    model with this distribution would give. It knows nothing of the item but its choices.
    """

    def __init__(self, network: Network, renderer: ChatMLRenderer, *, name: str = "learned") -> None:
        """A policy at step 0."""
        self.network, self.step = network, 0
        self._renderer, self._name = renderer, name
        self._decisions: dict[int, list[Decision | None]] = {}

    @property
    def name(self) -> str:
        """What the record calls it."""
        return self._name

    @property
    def vocabulary_size(self) -> int:
        """The tokenizer's."""
        return self._renderer.vocabulary_size

    async def complete(self, request: CompletionRequest) -> Completion:
        """It has no choices without a script.

        Raises:
            ConfigError: always; `AgentEnv` asks whoever `playing` gives.
        """
        raise ConfigError("a ChoicePolicy plays by an environment's scripted_choices: give it to AgentEnv")

    def playing(self, script: Script, summary: Script, skill: float) -> Policy:
        """Whoever plays one rollout."""
        return _Player(self, script, skill=skill, renderer=self._renderer, summary=summary)

    def decisions_of(self, trajectory: Trajectory) -> Sequence[Decision | None]:
        """What each of its turns chose among, since the last `forget`; `None` for a summary."""
        return self._decisions[trajectory.seed][: len(trajectory.turns)]

    def forget(self) -> None:
        """Drop the decisions of rollouts that were learned from."""
        self._decisions.clear()

    def weighed(self, request: CompletionRequest, choices: Sequence[Choice]) -> Sequence[Choice]:
        """The choices with the network's probabilities; equal ones count as one."""
        messages = {self._renderer.completion_ids(choice.message): choice.message for choice in choices}
        state = request.messages[-1].content if request.anchor is None else request.anchor
        decision = Decision(state=state, choices=tuple(messages))
        self.note(request, decision)
        weights = probabilities(self.network.logits(decision)).tolist()
        return [
            Choice(probability=weight, message=message)
            for weight, message in zip(weights, messages.values(), strict=True)
        ]

    def chances(self, state: str, messages: Sequence[Message]) -> list[float]:
        """How likely each of the messages is in a state, where those are all that can be written."""
        choices = tuple(self._renderer.completion_ids(message) for message in messages)
        return probabilities(self.network.logits(Decision(state=state, choices=choices))).tolist()

    def note(self, request: CompletionRequest, decision: Decision | None) -> None:
        """Keep what the next turn of a rollout chooses among."""
        self._decisions.setdefault(request.seed, []).append(decision)


class _Player(ScriptedPolicy):
    """One rollout of a `ChoicePolicy`; summaries are those of the script, and are not learned."""

    def __init__(
        self, policy: ChoicePolicy, script: Script, *, skill: float, renderer: ChatMLRenderer, summary: Script
    ) -> None:
        super().__init__(script, skill=skill, renderer=renderer, summary=summary)
        self._policy = policy

    async def choices(self, request: CompletionRequest) -> Sequence[Choice]:
        choices = await super().choices(request)
        if request.kind == "summary":
            self._policy.note(request, None)
            return choices
        return self._policy.weighed(request, choices)

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await super().complete(request)
        return replace(completion, weight_version=f"step-{self._policy.step}")
