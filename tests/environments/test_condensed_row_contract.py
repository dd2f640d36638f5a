"""The contract of tokens under condensers: what a model saw before a turn, rendered anew, is its row so far.

Over the scripted policy, and over real HTTP by messages with ids, by text alone, and by the token wires.
"""

import pytest

from environments.trajectory import NOT_SAMPLED
from tests.environments.exploring import RENDERER, TASK, WIRES, playing
from tests.environments.test_row_contract import check_masks, contexts

BUDGET = 700
CONDENSED = {
    "keep_last_turns": {"condenser": ["keep_last_turns"], "condenser_turns": 2},
    "fit_context": {"condenser": ["fit_context"], "condenser_tokens": BUDGET},
    "trim_tool_output": {"condenser": ["trim_tool_output"], "condenser_tool_tokens": 40},
    "summarise": {"condenser": ["summarise"], "condenser_turns": 2},
    "summarise-by-tokens": {"condenser": ["summarise"], "condenser_tokens": BUDGET},
    "all": {
        "condenser": ["trim_tool_output", "summarise", "fit_context"],
        "condenser_turns": 3,
        "condenser_tool_tokens": 60,
        "condenser_tokens": BUDGET,
    },
}
EXACT = {name for name in WIRES if name != "chat-text"}
COUNTED = {name for name in WIRES if not name.startswith("chat")}


async def condensed(wire, condenser, **settings):
    """The trajectories of a group, and the specs of its tools."""
    async with playing(wire, **CONDENSED[condenser], **settings) as env:
        group = await env.rollout_group(TASK, 2)
        assert group.failures == ()
        if wire in EXACT:
            check_masks(env, group)
    return group.trajectories


@pytest.mark.parametrize("condenser", sorted(CONDENSED))
@pytest.mark.parametrize("wire", sorted(WIRES))
async def test_what_a_model_saw_rendered_anew_is_the_row_up_to_its_turn(wire, condenser):
    trajectories = await condensed(wire, condenser)
    for trajectory in trajectories:
        assert trajectory.stop_reason == "completed"
        assert trajectory.exact == (wire in EXACT)
        assert any(turn.condensed is not None for turn in trajectory.turns)
        for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
            row = trajectory.rows[turn.span.row].token_ids
            assert RENDERER.prompt_ids(seen, trajectory.tools) == row[: turn.span.start]
            sampled = RENDERER.parse(row[turn.span.start : turn.span.end])
            assert (sampled.content, len(sampled.tool_calls)) == (
                turn.message.content,
                len(turn.message.tool_calls),
            )
        check_rows(trajectory)
        ids = [call.id for turn in trajectory.turns for call in turn.message.tool_calls]
        assert len(ids) == len(set(ids))
        check_measures(trajectory, CONDENSED[condenser], is_estimate=wire not in COUNTED)


def check_rows(trajectory):
    """Every sampled token is in one row, once; logprobs stand at sampled tokens alone; forks have causes."""
    for index, row in enumerate(trajectory.rows):
        spans = [turn.span for turn in trajectory.turns if turn.span.row == index]
        assert spans
        sampled = [position for span in spans for position in range(span.start, span.end)]
        assert sampled == sorted(set(sampled))
        assert spans[-1].end == len(row.token_ids)
        if trajectory.exact:
            noted = [position for position, each in enumerate(row.logprobs) if each != NOT_SAMPLED]
            assert noted == sampled
        else:
            assert row.logprobs is None
    begun = [turn for turn in trajectory.turns if turn.fork is not None]
    assert len(begun) == len(trajectory.rows) - 1
    for turn in begun:
        assert turn.condensed is not None
        assert turn.fork == f"history: {turn.condensed.cause}"


def check_measures(trajectory, settings, *, is_estimate):
    for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
        if turn.condensed is None:
            continue
        assert turn.condensed.is_estimate == is_estimate
        if trajectory.exact:
            assert turn.condensed.tokens_after == turn.span.start
        if "fit_context" in settings["condenser"]:
            assert turn.span.start <= settings["condenser_tokens"]
        assert seen != trajectory.messages[: len(seen)]
