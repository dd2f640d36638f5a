"""Any group that a record may hold, every field of it varied, from one seed."""

from dataclasses import replace
from random import Random
from typing import get_args

from environments.trajectory import (
    NOT_SAMPLED,
    AgentRun,
    Condensed,
    CreditedGroup,
    Failure,
    JudgeCall,
    Kept,
    Message,
    Rewards,
    Span,
    StopReason,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
    TurnClock,
    WeightSpan,
)
from tools.calls import CallStatus, ToolCall, ToolResult, ToolSpec
from tools.sandbox.base import SandboxLimits, SandboxRecord

TEXTS = ["", "a", "two\nlines", '\x00"\\', "é\u2028", "\U0001f600"]
NUMBERS = [0.0, -0.1, 5e-324, 1e100, 1 / 3]
COUNTS = [0, 1, 2**63 - 1]
JSONS = [None, True, -(2**63), 0.1, "text", [1, [None]], {"a": {"b": []}, "": 1.5}]


def all_withheld(group, why):
    return replace(group, trajectories=tuple(each.withheld(why) for each in group.trajectories))


class Draw:
    def __init__(self, seed):
        self.random = Random(seed)
        self.toolsets = [self.tools() for _ in range(2)]

    def one(self, of):
        return self.random.choice(list(of))

    def bool(self):
        return self.random.random() < 0.5

    def text(self):
        return self.one(TEXTS)

    def name(self):
        return self.one([None, *TEXTS])

    def number(self):
        return self.one(NUMBERS)

    def count(self):
        return self.one(COUNTS)

    def some(self):
        return self.one([None, *NUMBERS])

    def several(self, make, most=2):
        return tuple(make() for _ in range(self.random.randint(0, most)))

    def named(self, make):
        return {self.text(): make() for _ in range(self.random.randint(0, 2))}

    def message(self, *roles):
        return Message(
            role=self.one(roles or ("system", "user", "assistant", "tool")),
            content=self.text(),
            reasoning=self.name(),
            tool_calls=self.several(
                lambda: ToolCall(id=self.text(), name=self.text(), arguments=self.text())
            ),
            tool_call_id=self.name(),
        )

    def judge_call(self):
        return JudgeCall(
            hook=self.text(),
            turn=self.one([None, *COUNTS]),
            model=self.text(),
            messages=self.several(self.message),
            sampling=self.named(self.number),
            answer=self.name(),
            usage=self.named(self.count),
        )

    def tool_result(self):
        return ToolResult(
            call_id=self.text(),
            name=self.text(),
            content=self.text(),
            error=self.one([None, "unknown_tool", "tool_error"]),
            exit_code=self.one([None, -1, 255]),
            timed_out=self.bool(),
            duration_s=self.number(),
        )

    def kept(self):
        return Kept(start=self.count(), end=self.count())

    def contexts(self, turns):
        """What each turn saw: much of it again and again, as where a condenser's work lasts."""
        put_in = [self.message() for _ in range(3)]
        seen: list[tuple | None] = []
        for _ in range(turns):
            before = next((context for context in reversed(seen) if context), ())
            again = before[self.random.randint(0, len(before)) :] if self.bool() else ()
            new = self.several(lambda: self.kept() if self.bool() else self.one(put_in), most=3)
            seen.append(self.one([None, (*again, *new), (*new, *again)]))
        return seen

    def condensed(self):
        return Condensed(
            cause=self.text(),
            tokens_before=self.count(),
            tokens_after=self.count(),
            is_estimate=self.bool(),
            seconds=self.number(),
        )

    def tools(self):
        return self.several(
            lambda: ToolSpec(name=self.text(), description=self.text(), parameters=self.named(self.text))
        )

    def turn(self, index, span):
        message = self.message("assistant")
        calls = tuple(
            replace(call, status=self.one(get_args(CallStatus)), span=self.one([None, (0, 3)]))
            for call in message.tool_calls
        )
        return Turn(
            index=index,
            kind=self.one(["act", "summary"]),
            message=replace(message, tool_calls=calls),
            tool_results=self.several(self.tool_result),
            replies=self.several(lambda: self.message("system", "user")),
            finish_reason=self.text(),
            span=span,
            trained=self.bool(),
            anchor=self.name(),
            noted=self.named(self.number),
            condensed=self.one([None, self.condensed()]),
            fork=self.one([None, "history: fit_context", *TEXTS]),
            thread=self.count(),
            clock=self.one([None, TurnClock(requested=0, handed_out=3, scored=8)]),
            weight_version=self.name(),
            weight_spans=tuple(
                WeightSpan(start=start, version=self.text()) for start in range(self.count() % 3)
            ),
            sampling=self.named(lambda: self.one(JSONS)),
            model_s=self.number(),
            tools_s=self.number(),
        )

    def sandbox(self):
        return SandboxRecord(
            backend=self.text(),
            tier=self.text(),
            limits=SandboxLimits(memory_mb=self.one([1, 4096])),
            enforced=self.several(self.text),
            image=self.name(),
            lacks=self.several(self.text),
        )

    def rewards(self, turns):
        return Rewards(
            turns=self.one([None, tuple(self.some() for _ in range(turns))]),
            outcome=self.some(),
            score=self.number(),
            turn_components=self.one([(), tuple(self.named(self.number) for _ in range(turns))]),
            outcome_components=self.named(self.number),
            turn_raw=self.one([(), tuple(self.named(self.number) for _ in range(turns))]),
            outcome_raw=self.named(self.number),
            group=self.some(),
        )

    def agent(self):
        return AgentRun(
            error=self.text(),
            exit_code=self.one([None, -9, 0]),
            output=self.text(),
            wall_s=self.number(),
            counts=self.named(self.count),
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
            rows.append(TokenRow(token_ids=tuple(ids), logprobs=tuple(logprobs) if self.bool() else None))
        return Trajectory(
            item_id=self.text(),
            sibling=self.count(),
            seed=self.count(),
            prompt=self.several(self.message),
            turns=tuple(
                replace(turn, context=context)
                for turn, context in zip(turns, self.contexts(len(turns)), strict=True)
            ),
            rows=tuple(rows),
            tools=self.one([(), self.one(self.toolsets)]),
            stop_reason=self.one(StopReason),
            end_reason=self.name(),
            agent=self.one([None, self.agent()]),
            exact=self.bool(),
            sandbox=self.one([None, self.sandbox()]),
            rewards=self.one([None, self.rewards(len(turns))]),
            metrics=self.named(self.number),
            judge_calls=self.several(self.judge_call),
            user_calls=self.several(self.judge_call),
            other_calls=self.several(self.judge_call),
            wall_s=self.number(),
        )

    def failure(self):
        return Failure(
            sibling=self.count(),
            stop_reason=self.one([None, *StopReason]),
            error=self.text(),
            traceback=self.text(),
            turns=self.count(),
            error_class=self.text(),
            where=self.name(),
            refuses_group=self.bool(),
            judge_calls=self.several(self.judge_call),
            user_calls=self.several(self.judge_call),
            other_calls=self.several(self.judge_call),
        )

    def credited(self):
        group = TrajectoryGroup(
            group_id=self.text(),
            env=self.text(),
            item_id=self.text(),
            epoch=self.count(),
            item=self.one(JSONS),
            item_hash=self.name(),
            fingerprint=self.name(),
            trajectories=self.several(self.trajectory),
            failures=self.several(self.failure),
            judge_calls=self.several(self.judge_call),
            error=self.name(),
        )
        return CreditedGroup(
            group=group,
            advantages=tuple(tuple(self.number() for _ in each.turns) for each in group.trajectories),
            policy=self.text(),
            estimator=self.text(),
            estimator_params=self.named(lambda: self.one(JSONS)),
            status=self.one(["ok", "no_credit", "failed"]),
            reason=self.name(),
            turns_without_peer=self.count(),
        )
