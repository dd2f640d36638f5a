"""One scripted rollout, the hooks that were called for it, and what all rollouts came to."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from environments.env_checks.call_trace import TracedCall
from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.finding import Answer, Report
from environments.env_checks.offer_checks import show_offer
from environments.trajectory import Trajectory

_SLOW_S = 2.0
"""A hook that takes longer holds its rollout up more than a model does."""


class FirstRollout:
    """Played alone: where it breaks, the others would break alike."""

    def __init__(self, report: Report) -> None:
        """Show it in `report`."""
        self._report = report
        self._calls: list[TracedCall] = []
        self.is_whole = False
        """Whether it came to an end."""

    async def check_rollout(self, checked: CheckedEnv) -> Answer:
        """It comes to an end, with a score."""
        task = checked.tasks[0]
        with checked.trace.recorded() as calls:
            group = await checked.env.rollout_group(task, 1)
        self._calls = calls
        self._report.shown("hooks", [each.to_json() for each in calls])
        for failure in group.failures:
            return "fail", f"item {task.item_id}: {failure.error}"
        (trajectory,) = group.trajectories
        self.is_whole = True
        show_offer(self._report, trajectory)
        self._report.shown("rollout", shown_rollout(trajectory))
        score = "no score" if trajectory.score is None else f"score {trajectory.score:.3g}"
        ended = trajectory.end_reason or trajectory.stop_reason.value
        return "ok", f"item {task.item_id}: {len(trajectory.acts)} turns, ended {ended!r}, {score}"

    async def check_hooks(self, checked: CheckedEnv) -> Answer:
        """None of them raised; in the order of their first calls."""
        times = Counter(call.name for call in self._calls)
        raised = [call for call in self._calls if call.given.startswith("raised ")]
        order = " → ".join(f"{count} {name}" if count > 1 else name for name, count in times.items())
        if raised:
            return "fail", f"{raised[-1].name} {raised[-1].given}; called: {order}"
        given = (call.given for call in self._calls if call.name == "limits_for")
        limits: dict[str, float] = json.loads(next(given, "{}"))
        for name, limit in limits.items():
            if limit > (most := getattr(checked.env.config, name)):
                return "warn", f"limits_for gives {name} {limit}, and --env.{name} permits {most}; {order}"
        return "ok", order or "none was called"


async def check_failures(checked: CheckedEnv) -> Answer:
    """No rollout of those that were played broke, whatever the agent did."""
    groups = [each for played in checked.played.values() for each in played]
    failures = [failure for each in groups for failure in each.group.failures]
    count = sum(len(each.group.trajectories) for each in groups) + len(failures)
    if failures:
        return "fail", f"{len(failures)} of {count} rollouts broke: {failures[0].error}"
    broken = next((each for each in groups if each.status == "failed"), None)
    if broken is not None:
        return "fail", f"the group of item {broken.group.item_id} cannot be compared: {broken.reason}"
    return "ok", f"{count} rollouts, none broke"


async def check_time(checked: CheckedEnv) -> Answer:
    """How long hooks and tools take at most; models wait for them."""
    longest = sorted(checked.trace.longest_s.items(), key=lambda each: -each[1])[:3]
    found = ", ".join(f"{name} {_seconds(seconds)}" for name, seconds in longest) or "nothing was called"
    if longest and longest[0][1] > _SLOW_S:
        return "warn", f"longest calls: {found}; each rollout waits for it"
    return "ok", f"longest calls: {found}"


def shown_rollout(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Turn by turn: what the agent did, what answered it, and what it earned."""
    rewards: Sequence[float | None] = (trajectory.rewards and trajectory.rewards.turns) or [None] * len(
        trajectory.turns
    )
    return [
        {
            "turn": turn.index,
            "says": turn.message.content,
            "calls": [f"{call.name}({call.arguments})" for call in turn.message.tool_calls],
            "answers": [message.content for message in turn.messages[1:]],
            "reward": reward,
        }
        for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
