"""No request is sent whose prompt does not fit, with any condenser; calls whose ids repeat are condensed."""

import pytest

from environments.policy.scripted import ScriptedPolicy
from environments.trajectory import StopReason
from tests.environments.exploring import TASK, WIRES, playing
from tests.environments.test_condensed_row_contract import CONDENSED, check_rows
from tests.equipment.quirky_server import Quirk, QuirkyServer, calls_of
from tests.tables import cases

KEEPS_TOO_MUCH = {"condenser": ["keep_last_turns"], "condenser_turns": 50}
OVER_HTTP = sorted(name for name, settings in WIRES.items() if settings)


@pytest.fixture
def asked(monkeypatch):
    """Prompt tokens of each completion that a model was asked for."""
    seen = []
    complete = ScriptedPolicy.complete

    async def noted(self, request):
        completion = await complete(self, request)
        row = len(request.row.token_ids) if completion.extends_row else 0
        seen.append(row + len(completion.prompt_ids))
        return completion

    monkeypatch.setattr(ScriptedPolicy, "complete", noted)
    return seen


async def rollout(wire, **settings):
    async with playing(wire, **settings) as env:
        group = await env.rollout_group(TASK, 1)
    assert group.failures == ()
    return group.trajectories[0]


@pytest.mark.parametrize("wire", sorted(WIRES))
async def test_a_prompt_that_its_row_cannot_hold_is_not_asked_for(wire, asked):
    trajectory = await rollout(wire, max_token_length=700, max_tokens_per_turn=64, **KEEPS_TOO_MUCH)
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert len(asked) == len(trajectory.turns)
    assert max(asked) < 700


@pytest.mark.parametrize("wire", OVER_HTTP)
async def test_a_prompt_that_the_window_cannot_hold_is_not_asked_for(wire, asked):
    settings = KEEPS_TOO_MUCH | {"max_tokens_per_turn": 64}
    trajectory = await rollout(wire, window=700, server={"context_tokens": 700}, **settings)
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert len(asked) == len(trajectory.turns)


@pytest.mark.parametrize("wire", OVER_HTTP)
async def test_beside_a_budget_near_the_window_a_turn_gets_the_room_that_is_left(wire, asked):
    """A turn takes some 30 tokens: a window 40 above the budget always has room for it."""
    settings = {"condenser": ["fit_context"], "condenser_tokens": 660, "max_tokens_per_turn": 200}
    trajectory = await rollout(wire, window=700, server={"context_tokens": 700}, **settings)
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert max(asked) <= 660


def named_by_position(reply):
    """As servers of Kimi K2 name calls: alike in each reply."""
    for choice in reply["choices"]:
        for index, call in enumerate(calls_of(choice["message"])):
            call["id"] = f"functions.{call['function']['name']}:{index}"


@cases("condenser", sorted(CONDENSED))
async def test_calls_whose_ids_repeat_are_condensed_as_others(condenser):
    repeating = Quirk(says="ids that repeat", replies=named_by_position)
    settings = CONDENSED[condenser]
    trajectory = await rollout("chat-ids", around=lambda app: QuirkyServer(app, [repeating]), **settings)
    assert trajectory.stop_reason is StopReason.COMPLETED
    ids = [call.id for turn in trajectory.turns for call in turn.message.tool_calls]
    assert set(ids) == {"functions.look:0"}
    check_rows(trajectory)
