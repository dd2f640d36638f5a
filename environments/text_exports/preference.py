"""The view `preference`: pairs of answers to the very same prompt, the better one and the worse one."""

import hashlib
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import orjson

from environments.text_exports.sampled_turns import SampledTurn, sampled_turns
from environments.trajectory import CreditedGroup
from environments.wire.row_messages import Shown

UNSCORED = "turns have no return"
ALONE = "turns have a prompt of their own"
TIED = "prompts have no better and worse answer"

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
"""Returns that are nearer than this differ by rounding alone."""


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
    valued = [(same[0], fmean(_return(each) for each in same)) for same in answers.values()]
    best = max(valued, key=lambda answer: answer[1])
    worst = min(valued, key=lambda answer: answer[1])
    if math.isclose(best[1], worst[1], rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
        return None
    return best, worst


def _return(turn: SampledTurn) -> float:
    return turn.to_go or 0.0


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
