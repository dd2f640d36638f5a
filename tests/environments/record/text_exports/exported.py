"""Groups for text exports, and what is written of them."""

from collections import Counter
from dataclasses import replace

import orjson

from environments.record.text_exports.line_file import LineFile
from environments.record.text_exports.text_views import TEXT_VIEWS
from environments.trajectory import (
    CreditedGroup,
    Message,
    Rewards,
    Span,
    TokenRow,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tools.calls import ToolCall, ToolResult, ToolSpec

LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object", "properties": {}})


def said(text, *calls, **fields):
    """An assistant's message; `calls` are arguments."""
    made = tuple(ToolCall(id=f"c{n}", name="look", arguments=arguments) for n, arguments in enumerate(calls))
    return Message(role="assistant", content=text, tool_calls=made, **fields)


def trajectory(*messages, rewards, outcome=None, prompt="Go.", tools=(LOOK,), sibling=0):
    """One whose turns are these messages, each of two tokens after one that was not sampled."""
    turns = tuple(
        Turn(
            index=index,
            message=message,
            tool_results=tuple(
                ToolResult(call_id=call.id, name=call.name, content=f"result {index}")
                for call in message.tool_calls
            ),
            span=Span(row=0, start=3 * index + 1, end=3 * index + 3),
        )
        for index, message in enumerate(messages)
    )
    score = sum(reward or 0.0 for reward in rewards or ()) + (outcome or 0.0)
    return Trajectory(
        item_id="item",
        sibling=sibling,
        prompt=(Message(role="system", content="Be."), Message(role="user", content=prompt)),
        turns=turns,
        rows=(TokenRow(token_ids=tuple(range(3 * len(turns))), logprobs=None),),
        tools=tools,
        rewards=Rewards(turns=rewards, outcome=outcome, score=score),
    )


def group(*trajectories, advantages=None, **fields):
    """Siblings, credited."""
    siblings = tuple(replace(each, sibling=index) for index, each in enumerate(trajectories))
    return CreditedGroup(
        group=TrajectoryGroup(group_id="g", env="e", item_id="item", trajectories=siblings),
        advantages=advantages or tuple((0.5,) * len(each.turns) for each in siblings),
        policy="p",
        estimator="turn_return",
        **fields,
    )


def lines_of(view, *groups, **limits):
    """The lines of a view as objects, without what marks the first, and the notes."""
    notes = Counter()
    lines = [
        {name: _plain(value) for name, value in line.items()}
        for each in groups
        for line in TEXT_VIEWS[view](each, notes, **limits)
    ]
    return lines, {name: count for name, count in notes.items() if count}


def write(path, view, *groups):
    """A text export of groups."""
    with LineFile(path) as file:
        for each in groups:
            for line in TEXT_VIEWS[view](each, Counter()):
                file.write(line)
        file.put_early()


def _plain(value):
    if isinstance(value, list):
        return [orjson.loads(each) if isinstance(each, bytes) else each for each in value]
    return value
