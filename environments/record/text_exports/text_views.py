"""The views of a record as text, by name.

`openai`: a line per token row, for supervised fine-tuning; `preference`: pairs of answers to the very same
prompt; `prompt_response`: every turn as prompt and completion, with its credit.
"""

import hashlib
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import orjson

from environments.record.text_exports.sampled_turns import NO_TOOLS, SampledTurn, lacks_tools, sampled_turns
from environments.trajectory import CreditedGroup, Trajectory, Turn
from environments.wire.credited_rows import RowMessages, Shown

NO_REASONING = "messages without their reasoning, for which the format has no field"
UNTRAINED = "rows have no message to train"
UNSCORED = "turns have no return"
ALONE = "turns have a prompt of their own"
TIED = "prompts have no better and worse answer"
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
"""Returns that are nearer than this differ by rounding alone."""


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
        ValueError: a turn's message is not the assistant's.
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


def preference(credited: CreditedGroup, notes: Counter[str]) -> Iterator[dict[str, Any]]:
    """A line per prompt that several siblings answered: the answer of the highest return, and of the lowest.

    A prompt is the same where siblings saw equal messages, call ids aside, and tokens before the same turn,
    with the same tools. Equal answers count as one, with their mean return. Untrained turns are left out.

    Raises:
        CreditError, ValueError: see `sampled_turns`.
    """
    prompts: defaultdict[bytes, list[SampledTurn]] = defaultdict(list)
    for each in sampled_turns(credited, notes):
        if each.to_go is None:
            notes[UNSCORED] += 1
        elif each.turn.trained:
            prompts[_prompt_key(each)].append(each)
    for turns in prompts.values():
        if len(turns) == 1:
            notes[ALONE] += 1
        elif (pair := _best_and_worst(turns)) is None:
            notes[TIED] += 1
        else:
            yield _line(credited, *pair)


def _best_and_worst(turns: Sequence[SampledTurn]) -> tuple[tuple[SampledTurn, float], ...] | None:
    """A turn and the return of the best answer, and of the worst; `None` where none is better."""
    answers: defaultdict[bytes, list[SampledTurn]] = defaultdict(list)
    for each in turns:
        answers[_answer_key(each)].append(each)
    valued = [(same[0], fmean(each.to_go or 0.0 for each in same)) for same in answers.values()]
    best = max(valued, key=lambda answer: answer[1])
    worst = min(valued, key=lambda answer: answer[1])
    if math.isclose(best[1], worst[1], rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
        return None
    return best, worst


def _line(
    credited: CreditedGroup, best: tuple[SampledTurn, float], worst: tuple[SampledTurn, float]
) -> dict[str, Any]:
    group, turn = credited.group, best[0].turn
    *prompt, chosen = best[0].messages.until(turn)
    return {
        "prompt": prompt,
        "chosen": [chosen],
        "rejected": [worst[0].messages.until(worst[0].turn)[-1]],
        "tools": best[0].tools,
        "chosen_return": best[1],
        "rejected_return": worst[1],
        "env": group.env,
        "item_id": group.item_id,
        "epoch": group.epoch,
        "group_id": group.group_id,
        "turn": turn.index,
        "kind": turn.kind,
        "chosen_sibling": best[0].trajectory.sibling,
        "rejected_sibling": worst[0].trajectory.sibling,
        "status": credited.status,
    }


def _prompt_key(each: SampledTurn) -> bytes:
    turn, rows = each.turn, each.trajectory.rows
    seen = each.messages.shown_until(turn)[:-1]
    tokens = rows[turn.span.row].token_ids[: turn.span.start] if rows else ()
    key = hashlib.sha256(_without_ids(seen))
    key.update(orjson.dumps([each.tools, turn.index, turn.kind]))
    key.update(array("q", tokens).tobytes())
    return key.digest()


def _answer_key(each: SampledTurn) -> bytes:
    return _without_ids(each.messages.shown_until(each.turn)[-1:])


def _without_ids(messages: Sequence[Shown]) -> bytes:
    """Messages whose calls are named by their order: a server draws the ids anew for each sibling."""
    order: dict[str, int] = {}
    bare: list[Shown] = []
    for message in messages:
        named = dict(message)
        if "tool_calls" in named:
            named["tool_calls"] = [
                {**call, "id": order.setdefault(call["id"], len(order))} for call in named["tool_calls"]
            ]
        if "tool_call_id" in named:
            named["tool_call_id"] = order.setdefault(named["tool_call_id"], len(order))
        bare.append(named)
    return orjson.dumps(bare)


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


TEXT_VIEWS: Mapping[str, Callable[[CreditedGroup, Counter[str]], Iterable[dict[str, Any]]]] = {
    "prompt_response": prompt_response,
    "openai": openai_chat,
    "preference": preference,
}
"""`TEXT_VIEWS[name](credited, notes)` gives a group's lines; `notes` counts remarks on them."""
