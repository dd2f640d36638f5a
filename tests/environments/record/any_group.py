"""Any group that a record may hold, every field of it varied by its type, from one seed."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from environments.trajectory import (
    NOT_SAMPLED,
    Condensed,
    CreditedGroup,
    Kept,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
    TurnClock,
    WeightSpan,
)
from tools.calls import ToolCall, ToolSpec
from tools.sandbox.base import SandboxLimits

TEXTS = ["", "a", "two\nlines", '\x00"\\', "é\u2028", "\U0001f600"]
NUMBERS = [0.0, -0.1, 5e-324, 1e100, 1 / 3]
COUNTS = [0, 1, 2**63 - 1]
JSONS = [None, True, -(2**63), 0.1, "text", [1, [None]], {"a": {"b": []}, "": 1.5}]
LEFT = {"contents", "profile", "stale", "is_evaluation"}
"""Fields that keep their default: they are not in the line, or change what the others may be."""


def all_withheld(group, why):
    return replace(group, trajectories=tuple(each.withhold(why) for each in group.trajectories))


class Draw:
    def __init__(self, seed):
        self.random = Random(seed)
        self.toolsets = [self.several(ToolSpec) for _ in range(2)]

    def one(self, of):
        return self.random.choice(list(of))

    def several(self, kind, most=2):
        return tuple(self.any(kind) for _ in range(self.random.randint(0, most)))

    def any(self, kind, /, **given):
        """A value of a type; of a dataclass with the fields that are given."""
        origin, args = get_origin(kind), get_args(kind)
        simple = {str: TEXTS, int: COUNTS, float: NUMBERS, bool: [True, False], Any: JSONS, NoneType: [None]}
        if kind in simple:
            return self.one(simple[kind])
        if origin is Literal:
            return self.one(args)
        if origin in (Union, UnionType):
            return self.any(self.one(args))
        if origin in (tuple, Sequence):
            return self.several(args[0])
        if origin is Mapping:
            return {self.one(TEXTS): self.any(args[1]) for _ in range(self.random.randint(0, 2))}
        if issubclass(kind, Enum):
            return self.one(kind)
        assert is_dataclass(kind), kind
        # What a parser made of calls is kept for the calls of turns alone.
        given = {ToolCall: {"status": "ok", "span": None}}.get(kind, {}) | given
        if kind is SandboxLimits:
            return SandboxLimits(memory_mb=self.one([1, 4096]))
        hints = get_type_hints(kind)
        drawn = [each.name for each in fields(kind) if each.init and each.name not in {*LEFT, *given}]
        return kind(**given, **{name: self.any(hints[name]) for name in drawn})

    def contexts(self, turns):
        """What each turn saw: much of it again and again, as where a condenser's work lasts."""
        put_in = [self.any(Message) for _ in range(3)]
        seen: list[tuple | None] = []
        for _ in range(turns):
            before = next((context for context in reversed(seen) if context), ())
            again = before[self.random.randint(0, len(before)) :] if self.any(bool) else ()
            count = self.random.randint(0, 3)
            new = tuple(self.any(Kept) if self.any(bool) else self.one(put_in) for _ in range(count))
            seen.append(self.one([None, (*again, *new), (*new, *again)]))
        return seen

    def turn(self, index, span):
        message = self.any(Message, role="assistant")
        statuses = get_type_hints(ToolCall)["status"]
        calls = tuple(
            replace(call, status=self.any(statuses), span=self.one([None, (0, 3)]))
            for call in message.tool_calls
        )
        starts = range(self.random.randint(0, 2))
        return self.any(
            Turn,
            index=index,
            kind=self.one(["act", "summary"]),
            message=replace(message, tool_calls=calls),
            replies=tuple(replace(each, role=self.one(["system", "user"])) for each in self.several(Message)),
            span=span,
            context=None,
            condensed=self.one([None, self.any(Condensed)]),
            clock=self.one([None, TurnClock(requested=0, handed_out=3, scored=8)]),
            weight_spans=tuple(WeightSpan(start=start, version=self.one(TEXTS)) for start in starts),
        )

    def rewards(self, turns):
        each = [Mapping[str, float]] * turns
        return self.any(
            Rewards,
            turns=self.one([None, tuple(self.any(float | None) for _ in each)]),
            score=self.any(float),
            turn_components=self.one([(), tuple(map(self.any, each))]),
            turn_raw=self.one([(), tuple(map(self.any, each))]),
        )

    def trajectory(self):
        rows, turns = [], []
        for row in range(self.random.randint(1, 2)):
            ids, logprobs = [7], [NOT_SAMPLED]
            for _ in range(self.random.randint(1, 2)):
                length = self.random.randint(0, 3)
                turns.append(self.turn(len(turns), Span(row=row, start=len(ids), end=len(ids) + length)))
                ids += [self.random.randrange(300_000) for _ in range(length)]
                logprobs += [-0.5] * length
            rows.append(TokenRow(token_ids=tuple(ids), logprobs=tuple(logprobs) if self.any(bool) else None))
        contexts = zip(turns, self.contexts(len(turns)), strict=True)
        return self.any(
            Trajectory,
            turns=tuple(replace(turn, context=context) for turn, context in contexts),
            rows=tuple(rows),
            tools=self.one([(), self.one(self.toolsets)]),
            rewards=self.one([None, self.rewards(len(turns))]),
        )

    def credited(self):
        trajectories = tuple(self.trajectory() for _ in range(self.random.randint(0, 2)))
        return self.any(
            CreditedGroup,
            group=self.any(TrajectoryGroup, trajectories=trajectories),
            advantages=tuple(tuple(self.any(float) for _ in each.turns) for each in trajectories),
        )
