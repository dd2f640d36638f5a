"""Messages against tokens: what a model saw before a turn, rendered anew, is its row up to that turn."""

from collections.abc import Iterator, Sequence

from environments.env_checks.checked_env import CheckedEnv
from environments.env_checks.finding import Answer
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.trajectory import Kept, Message, Trajectory, Turn


async def check_row_text(checked: CheckedEnv) -> Answer:
    """The record's text and its tokens say the same."""
    played = [each for each in checked.trajectories if each.exact]
    if not played:
        return "skipped", "no rollout came to an end"
    turns = 0
    for trajectory in played:
        turns += len(trajectory.turns)
        problem = row_problem(trajectory, checked.env.renderer)
        if problem is not None:
            return "fail", f"item {trajectory.item_id}, rollout {trajectory.sibling}, {problem}"
    rows = sum(len(each.rows) for each in played)
    return "ok", f"{turns} turns in {rows} rows: text and token ids say the same"


def row_problem(trajectory: Trajectory, renderer: ChatMLRenderer) -> str | None:
    """The first turn whose text is not its tokens; `None`: there is none."""
    for turn, seen in zip(trajectory.turns, _contexts(trajectory), strict=True):
        row = trajectory.rows[turn.span.row].token_ids
        if renderer.prompt_ids(seen, trajectory.tools) != row[: turn.span.start]:
            return f"turn {turn.index + 1}: what the model saw is not what its row says"
        if not _has_same_text(turn, renderer, row[turn.span.start : turn.span.end]):
            return f"turn {turn.index + 1}: what it said is not what its tokens say"
    return None


def _has_same_text(turn: Turn, renderer: ChatMLRenderer, sampled: Sequence[int]) -> bool:
    # What was cut in the middle of a call stands in the message as text.
    return turn.finish_reason == "length" or renderer.parse(sampled).content == turn.message.content


def _contexts(trajectory: Trajectory) -> Iterator[list[Message]]:
    """Per turn, what the model saw."""
    messages, said = trajectory.messages, len(trajectory.prompt)
    for turn in trajectory.turns:
        parts = (Kept(start=0, end=said),) if turn.context is None else turn.context
        yield [
            message
            for part in parts
            for message in (messages[part.start : part.end] if isinstance(part, Kept) else [part])
        ]
        said += len(turn.messages)
