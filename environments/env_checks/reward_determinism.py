"""Whether the same trajectory earns the same twice: an agent repeats what it did."""

from collections.abc import Mapping, Sequence

from environments.env_checks.call_trace import TracedCall
from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.finding import Answer
from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import Choice, ScriptedPolicy, say
from environments.trajectory import Completion, Message, Trajectory
from tools.calls import ToolSpec

_REWARD_HOOKS = ("score_turn", "compute_turn_rewards", "compute_outcome", "compute_reward", "score_group")


class RepeatedPolicy:
    """Says what the agents of recorded rollouts said, in the same order."""

    name = "repeated"

    def __init__(self, said: Mapping[int, Sequence[Message]], renderer: ChatMLRenderer) -> None:
        """Repeat `said`, by the seeds of the rollouts."""
        self._left = {seed: list(messages) for seed, messages in said.items()}
        self._renderer = renderer

    async def complete(self, request: CompletionRequest) -> Completion:
        """What was said next, then nothing."""
        left = self._left.get(request.seed)
        return await self._says(left.pop(0) if left else say("")).complete(request)

    async def prompt_tokens(self, request: CompletionRequest) -> int | None:
        """As many as the scripted agent counted, so that condensers do what they did."""
        return await self._says(say("")).prompt_tokens(request)

    def _says(self, message: Message) -> ScriptedPolicy:
        def script(_: Sequence[Message], __: Sequence[ToolSpec], ___: float) -> Sequence[Choice]:
            return [Choice(probability=1.0, message=message)]

        return ScriptedPolicy(script, skill=1.0, renderer=self._renderer, summary=script)


async def check_determinism(checked: CheckedEnv) -> Answer:
    """What the same actions earn does not depend on chance: `ctx.seed` is there for what should."""
    task = checked.tasks[0]
    checked.env.config.scripted_skill = 0.5
    with checked.trace.recorded() as calls_before:
        first = await checked.env.run_group(task)
    said = {each.seed: [turn.message for turn in each.turns] for each in first.group.trajectories}
    if not said:
        return "skipped", "no rollout came to an end"
    with checked.trace.recorded() as calls_after:
        second = await checked.play_with(RepeatedPolicy(said, checked.env.renderer), task)
    again = {each.sibling: each for each in second.group.trajectories}
    for each in first.group.trajectories:
        if each.sibling not in again:
            return "fail", f"item {task.item_id}, rollout {each.sibling} broke when it was repeated"
        difference = _difference(each, again[each.sibling])
        if difference is not None:
            hook = _first_difference(calls_before, calls_after, _REWARD_HOOKS)
            cause = f"; {hook} gives another value" if hook else ""
            earlier = _first_difference(calls_before, calls_after, ())
            if earlier is not None and earlier != hook:
                cause += f", and before it {earlier}"
            return "fail", f"item {task.item_id}, rollout {each.sibling}, {difference}{cause}"
    other = _first_difference(calls_before, calls_after, ())
    note = f"; {other} is not the same twice, which no reward shows" if other else ""
    return "ok", f"{len(again)} rollouts repeated, rewards and parts equal{note}"


def _difference(first: Trajectory, second: Trajectory) -> str | None:
    """What differs between the rewards of equal actions."""
    one, two = first.rewards, second.rewards
    if one == two or one is None or two is None:
        return None
    for index, (before, after) in enumerate(zip(one.turns or (), two.turns or (), strict=False)):
        if before != after:
            parts = _parts(one.turn_components, two.turn_components, index)
            return f"turn {index + 1}: {_shown(before)}, then {_shown(after)}{parts}"
    if one.outcome != two.outcome:
        parts = _parts([one.outcome_parts], [two.outcome_parts], 0)
        return f"the outcome: {_shown(one.outcome)}, then {_shown(two.outcome)}{parts}"
    return f"the rewards: score {_shown(one.score)}, then {_shown(two.score)}"


def _parts(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]], index: int) -> str:
    if index >= len(before) or index >= len(after):
        return ""
    names = [
        name for name, value in before[index].items() if after[index].get(name) != value and name != "outcome"
    ]
    return f" (part {', '.join(names)})" if names else ""


def _first_difference(
    before: Sequence[TracedCall], after: Sequence[TracedCall], names: Sequence[str]
) -> str | None:
    """The first call of a rollout that gave something else; `names`: among those."""
    for sibling in sorted({call.sibling for call in before}):
        one, two = _of(before, sibling, names), _of(after, sibling, names)
        for first, second in zip(one, two, strict=False):
            if first.name != second.name or first.given != second.given:
                return first.name
    return None


def _of(calls: Sequence[TracedCall], sibling: int, names: Sequence[str]) -> list[TracedCall]:
    """Of one rollout; what its agent said is repeated, and not compared."""
    scripted = "scripted_choices", "scripted_summary"
    return [
        call
        for call in calls
        if call.sibling == sibling and (call.name in names if names else call.name not in scripted)
    ]


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
