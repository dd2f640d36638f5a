"""Export of a record as lines of text: prompt, completion, and the rewards and advantage of each turn.

`datasets` infers column types from each stretch of 10 MB, merges the keys of all messages, reads texts as
dates, and fails where a number follows nulls. Therefore the first line's messages have an extra key, which
prevents the merge; lines with the first number of a column come early; dates are quoted; and arguments of a
call stay text where `datasets` would change them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import orjson

from environments.credit.acts import acts_alone
from environments.credit.scored import read
from environments.record.private_file import private
from environments.trajectory import CreditedGroup
from environments.wire.credited_rows import OpenAIMessage, RowMessages
from tools.json_input import JsonError, read_exact_json

KEPT_AS_TEXT = "tool calls keep their arguments as text"
NO_TOOLS = "groups have no tools recorded"
_DECIMALS = 10
_DEEPEST = 100
_MARK = b'"first_line":true,'
_MESSAGES = ("prompt", "completion")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T][\d:.,Z+-]*)?")
_STRETCH = 10 << 20
"""Bytes that `datasets` reads at a time, up to the end of a line."""


def prompt_response(credited: CreditedGroup, notes: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield a line per turn; messages are JSON bytes already, and remarks are counted in `notes`."""
    group = credited.group
    notes[NO_TOOLS] += any(
        turn.message.tool_calls for each in group.trajectories if not each.tools for turn in each.turns
    )
    siblings = zip(group.trajectories, returns_of(credited), credited.advantages, strict=True)
    for trajectory, to_go, advantages in siblings:
        conversation, known = RowMessages(trajectory), dict[int, bytes]()
        lasting = frozenset(map(id, conversation.all))
        tools = orjson.dumps([tool.to_openai() for tool in trajectory.tools] or None).decode()
        rewards = trajectory.rewards
        by_turn = rewards.turns if rewards else None
        for turn in trajectory.turns:
            messages: list[bytes] = []
            for message in conversation.until(turn, ()):
                text = known.get(id(message)) or orjson.dumps(_for_templates(message, notes))
                if id(message) in lasting:
                    known[id(message)] = text
                messages.append(text)
            yield {
                "prompt": messages[:-1],
                "completion": messages[-1:],
                "tools": tools,
                "reward": _number(by_turn[turn.index] if by_turn else None),
                "return": _number(to_go[turn.index]),
                "advantage": _number(advantages[turn.index]),
                "outcome": _number(rewards and rewards.outcome),
                "score": _number(trajectory.score),
                "env": group.env,
                "item_id": group.item_id,
                "epoch": group.epoch,
                "group_id": group.group_id,
                "sibling": trajectory.sibling,
                "turn": turn.index,
                "kind": turn.kind,
                "trained": turn.trained,
                "finish_reason": turn.finish_reason,
                "stop_reason": trajectory.stop_reason,
                "status": credited.status,
            }


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _for_templates(message: OpenAIMessage, notes: Counter[str]) -> OpenAIMessage:
    if "tool_calls" not in message:
        return message
    calls: list[OpenAIMessage] = []
    for call in message["tool_calls"]:
        arguments = read_arguments(call["function"]["arguments"])
        notes[KEPT_AS_TEXT] += isinstance(arguments, str)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def read_arguments(text: str) -> Mapping[str, Any] | str:
    """Return a call's arguments as an object, or as text where `datasets` would alter the object."""
    try:
        value: Any = read_exact_json(text)
    except JsonError:
        return text
    kept = isinstance(value, dict) and _survives(cast("object", value), _DEEPEST)
    return cast("Mapping[str, Any]", value) if kept else text


def _survives(value: object, depth: int) -> bool:
    """Whether the parser of `datasets` reads a JSON value unchanged."""
    if isinstance(value, bool | str | None):
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, float):
        # It reads whole part + decimals * 10^-n, and writes ten decimals.
        whole, point, decimals = repr(abs(value)).partition(".")
        is_plain = bool(point) and "e" not in decimals and len(decimals) <= _DECIMALS
        return is_plain and int(whole) + int(decimals) * float(f"1e-{len(decimals)}") == abs(value)
    inner = cast(
        "Sequence[object]", value if isinstance(value, list) else [*cast("dict[str, object]", value).values()]
    )
    return depth > 0 and all(_survives(each, depth - 1) for each in inner)


def returns_of(credited: CreditedGroup) -> list[list[float | None]]:
    """Return `[trajectory][turn]` returns by the recorded `gamma` and `outcome_weight`; None if unscored."""
    recorded = (credited.estimator_params.get(name) for name in ("gamma", "outcome_weight"))
    gamma, weight = (float(value) if isinstance(value, int | float) else 1.0 for value in recorded)
    returns: list[list[float | None]] = []
    for scored, trajectory in zip(read(acts_alone(credited.group)), credited.group.trajectories, strict=True):
        ones = (None if reward is None else 1.0 for reward in scored.turns)
        counted = replace(scored, turns=tuple(ones), outcome=None if scored.outcome is None else 1.0)
        by_act = zip(scored.returns(gamma, weight), counted.returns(1.0), strict=True)
        of_acts = [*(value if count else None for value, count in by_act), None]
        before = accumulate((turn.kind != "summary" for turn in trajectory.turns), initial=0)
        returns.append([of_acts[act] for act, _ in zip(before, trajectory.turns, strict=False)])
    return returns


class LineFile:
    def __init__(self, path: Path) -> None:
        self.lines = 0
        self._path = path
        self._file: BinaryIO = open(path, "wb", opener=private)  # noqa: SIM115  # `Path.open` takes no opener
        self._size = 0
        self._known: set[str] = set()
        self._late: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        fields = dict(line)
        for name, value in line.items():
            if name in _MESSAGES:
                first, *rest = value
                marked = b"{" + (b"" if self.lines else _MARK) + first[1:]
                fields[name] = [orjson.Fragment(message) for message in (marked, *rest)]
            elif isinstance(value, str) and _DATE.fullmatch(value):
                fields[name] = f'"{value}"'
        text = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        start, self._size = self._size, self._size + len(text)
        columns = {name for name, value in line.items() if value is not None}
        if not self._known.issuperset(columns):
            self._known.update(columns)
            if start >= _STRETCH:
                self._late.append((start, self._size))
        self._file.write(text)
        self.lines += 1

    def put_early(self) -> None:
        """Move lines to where `datasets` needs them."""
        self._file.close()
        if not self._late:
            return
        sorted_path = self._path.with_name(self._path.name + ".sorted")
        try:
            with self._path.open("rb") as lines, open(sorted_path, "wb", opener=private) as file:
                first = len(lines.readline())
                starts = (first, *(end for _, end in self._late))
                ends = (*(start for start, _ in self._late), self._size)
                for start, end in ((0, first), *self._late, *zip(starts, ends, strict=True)):
                    lines.seek(start)
                    left = end - start
                    while piece := lines.read(min(left, _STRETCH)):
                        file.write(piece)
                        left -= len(piece)
            sorted_path.replace(self._path)
        finally:
            sorted_path.unlink(missing_ok=True)
