"""The policy that learns: it chooses among what the scripted agent could say, and samples the real tokens."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from environments.lab.learning.networks import Decision, Network, probabilities
from environments.policy.base import CompletionRequest, Policy
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, PlaysByScript, Script, ScriptedPolicy
from environments.trajectory import Completion, Message, Trajectory
from tools.errors import WireError


class ChoicePolicy(PlaysByScript):
    """Samples with a network's probabilities among the choices that a script offers.

    Its probabilities are those of whole messages; the tokens and their log-probabilities are what a language
    model with this distribution would give. It knows nothing of the item but its choices.
    """

    def __init__(self, network: Network, renderer: ChatMLRenderer, *, name: str = "learned") -> None:
        """A policy at step 0."""
        self.network, self.step = network, 0
        self._renderer, self._name = renderer, name
        self._rollouts: defaultdict[int, list[list[Decision | None]]] = defaultdict(list)

    @property
    def name(self) -> str:
        """What the record calls it."""
        return self._name

    @property
    def vocabulary_size(self) -> int:
        """The tokenizer's."""
        return self._renderer.vocabulary_size

    def playing_by_script(self, script: Script, summary: Script, skill: float) -> Policy:
        """Whoever plays one rollout."""
        return _Player(self, script, skill=skill, renderer=self._renderer, summary=summary)

    def decisions_of(self, trajectory: Trajectory) -> Sequence[Decision | None]:
        """What each of its turns chose among, since the last `forget`; `None` for a summary.

        Raises:
            WireError: this policy has not begun it since then; or rollouts with its seed went different ways,
                so that nobody knows which of them it is.
        """
        count = len(trajectory.turns)
        begun = [
            tuple(each[:count]) for each in self._rollouts.get(trajectory.seed, ()) if len(each) >= count
        ]
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

    def forget(self) -> None:
        """Drop the decisions of rollouts that were learned from."""
        self._rollouts.clear()

    def begun(self, seed: int, decisions: list[Decision | None]) -> None:
        """Keep what a rollout chooses among; the list grows turn by turn."""
        self._rollouts[seed].append(decisions)

    def weighed(
        self, request: CompletionRequest, choices: Sequence[Choice]
    ) -> tuple[Decision, Sequence[Choice]]:
        """What is chosen among, and the choices with the network's probabilities; equal ones count as one."""
        messages = {self._renderer.completion_ids(choice.message): choice.message for choice in choices}
        state = request.messages[-1].content if request.anchor is None else request.anchor
        decision = Decision(state=state, choices=tuple(messages))
        weights = probabilities(self.network.logits(decision)).tolist()
        return decision, [
            Choice(probability=weight, message=message)
            for weight, message in zip(weights, messages.values(), strict=True)
        ]

    def chances(self, state: str, messages: Sequence[Message]) -> list[float]:
        """How likely each of the messages is in a state, where those are all that can be written."""
        choices = tuple(self._renderer.completion_ids(message) for message in messages)
        return probabilities(self.network.logits(Decision(state=state, choices=choices))).tolist()


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
            self._policy.begun(request.seed, self._decisions)
        self._decisions.append(decision)
        return choices

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await super().complete(request)
        return replace(completion, weight_version=f"step-{self._policy.step}")
