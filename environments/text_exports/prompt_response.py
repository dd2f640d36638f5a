"""The view `prompt_response`: every turn as prompt and completion, with its credit."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from environments.text_exports.sampled_turns import sampled_turns
from environments.trajectory import CreditedGroup


def prompt_response(credited: CreditedGroup, notes: Counter[str]) -> Iterator[dict[str, Any]]:
    """A line per turn: the messages that the model saw, its own, the tools, and what it was worth.

    Raises:
        CreditError, ValueError: see `sampled_turns`.
    """
    group = credited.group
    for each in sampled_turns(credited, notes):
        *prompt, completion = each.messages.until(each.turn)
        rewards = each.trajectory.rewards
        yield {
            "prompt": prompt,
            "completion": [completion],
            "tools": each.tools,
            "reward": _number(each.reward),
            "return": _number(each.to_go),
            "advantage": _number(each.advantage),
            "outcome": _number(rewards and rewards.outcome),
            "score": _number(each.trajectory.score),
            "env": group.env,
            "item_id": group.item_id,
            "epoch": group.epoch,
            "group_id": group.group_id,
            "sibling": each.trajectory.sibling,
            "turn": each.turn.index,
            "kind": each.turn.kind,
            "trained": each.turn.trained,
            "finish_reason": each.turn.finish_reason,
            "stop_reason": each.trajectory.stop_reason,
            "status": credited.status,
        }


def _number(value: float | None) -> float | None:
    """Written with a point, so that no reader takes a column for one of whole numbers."""
    return None if value is None else float(value)
