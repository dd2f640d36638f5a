"""The view `openai`: a line per token row, in the format of OpenAI's supervised fine-tuning."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from environments.text_exports.sampled_turns import NO_TOOLS, lacks_tools
from environments.trajectory import CreditedGroup, Trajectory, Turn
from environments.wire.row_messages import RowMessages, Shown

NO_REASONING = "messages without their reasoning, for which the format has no field"
UNTRAINED = "rows have no message to train"


def openai_chat(
    credited: CreditedGroup,
    notes: Counter[str],
    *,
    min_score: float | None = None,
    min_advantage: float | None = None,
) -> Iterator[dict[str, Any]]:
    """What the model saw in each row, up to its last turn there; weight 1 where a turn is to be trained.

    A turn that another row holds too is trained in the row that it was sampled in.

    Raises:
        ValueError: somebody else than the assistant speaks in a turn.
    """
    notes[NO_TOOLS] += lacks_tools(credited)
    for trajectory, advantages in zip(credited.group.trajectories, credited.advantages, strict=True):
        if min_score is not None and (trajectory.score is None or trajectory.score < min_score):
            trained: list[Turn] = []
        else:
            trained = [
                turn
                for turn, advantage in zip(trajectory.turns, advantages, strict=True)
                if turn.trained and (min_advantage is None or advantage >= min_advantage)
            ]
        yield from _lines(trajectory, trained, notes)


def _lines(trajectory: Trajectory, trained: Sequence[Turn], notes: Counter[str]) -> Iterator[dict[str, Any]]:
    conversation = RowMessages(trajectory)
    tools = [tool.to_openai() for tool in trajectory.tools]
    for row in dict.fromkeys(turn.span.row for turn in trajectory.turns):
        here = [turn for turn in trajectory.turns if turn.span.row == row]
        weighed = {id(conversation.of_turn(turn)) for turn in trained if turn.span.row == row}
        if not weighed:
            notes[UNTRAINED] += 1
            continue
        seen = conversation.until(here[-1], ())
        line: dict[str, Any] = {
            "messages": [_weighed(message, id(message) in weighed, notes) for message in seen]
        }
        yield line | ({"tools": tools} if tools else {})


def _weighed(message: Shown, is_trained: bool, notes: Counter[str]) -> Shown:
    if message["role"] != "assistant":
        return message
    notes[NO_REASONING] += "reasoning_content" in message
    bare = {name: value for name, value in message.items() if name != "reasoning_content"}
    return bare | {"weight": int(is_trained)}
