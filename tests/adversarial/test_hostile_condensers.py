"""Condensers of users that cheat, or go on asking: the sibling fails and says why, and nothing else does."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from environments.config import AgentEnvConfig
from environments.rollout.context import Entry, keep_last_turns, summarise
from environments.rollout.model_calls import Stopped
from environments.trajectory import Failure, Message, StopReason, Trajectory
from tests.adversarial.misbehaving_env import Own
from tests.environments.talking import TASK, Talking
from tests.tables import cases
from tools.calls import ToolCall
from tools.errors import ConfigError


def env_of(*condensers, **settings):
    """Looks once and talks twice, and hears something each time."""

    class Env(Talking):
        plays = ("look", "I see.", "look")
        says = ("one", "two", "three")
        condenser = condensers

    return Env(AgentEnvConfig(**{"group_size": 1, "min_group_size": 1} | settings))


async def rolled_out(*condensers, **settings) -> Trajectory | Failure:
    group = await env_of(*condensers, **settings).rollout_group(TASK, 1)
    return (*group.trajectories, *group.failures)[0]


def writing(**fields):
    return Entry(message=Message(**{"role": "user", "content": "x"} | fields))


BOGUS_CALL = (ToolCall(id="c", name="look", arguments="{}"),)
GIVEN = {
    "None": (lambda history: None, "gave None"),
    "messages": (lambda history: [each.message for each in history], "is a turnwise.condensers.Entry"),
    "each twice": (lambda history: [each for each in history for _ in range(2)], "out of order, or twice"),
    "changed": (
        lambda history: [replace(e, message=replace(e.message, content="!")) for e in history],
        "changed message 0 and kept its index",
    ),
    "beyond the end": (lambda history: [*history, replace(history[0], index=99)], "the index 99"),
    "a call of its own": (
        lambda history: [*history, writing(role="assistant", tool_calls=BOGUS_CALL)],
        "without its result",
    ),
    "a turn that is none": (
        lambda history: [*history, replace(writing(), turn=7)], "an entry of turn 7"
    ),
    "turns out of order": (
        lambda history: [history[0], *(replace(writing(), turn=turn) for turn in (1, 0))] if len(history) > 5
        else history,
        "turns out of order",
    ),
    "the agent's word last": (
        lambda history: history[:-1] if len(history) > 5 else history, "ends with the agent's own message"
    ),
}  # fmt: skip


@cases("name", GIVEN)
async def test_what_is_no_history_costs_the_sibling_and_is_told(name):
    give, says = GIVEN[name]
    result = await rolled_out(Own(lambda history, asking: give(history)))
    assert isinstance(result, Failure)
    assert result.error.startswith("ConfigError: environment 'talking', item 'one': condenser own ")
    assert says in result.error


REQUEST = "Sum up."


async def asks_late(history, asking, kept=[]):  # noqa: B006  # kept from call to call
    kept.append(asking)
    if len(kept) > 1:
        await kept[0].tokens(history)
    return history


async def leaves_a_summary_open(history, asking, tasks=set()):  # noqa: B006
    tasks.add(asyncio.ensure_future(asking.policy_summary(history, REQUEST)))
    await asyncio.sleep(0)
    return history


async def asks_for_a_number(history, asking):
    await asking.policy_summary(history, 7)
    return history


async def counts_what_is_none(history, asking):
    await asking.tokens(["everything"])
    return history


async def stops_by_itself(history, asking):
    raise Stopped


async def breaks_while_stopped(history, asking):
    try:
        while True:
            await asking.policy_summary(history, REQUEST)
    except Stopped:
        raise ZeroDivisionError from None


ASKING = {
    "afterwards": (asks_late, {}, "asks after it gave its history"),
    "and not waiting": (leaves_a_summary_open, {}, "ended while its summary was being written"),
    "by a number": (asks_for_a_number, {}, "what it asks about is 7"),
    "to count what is none": (counts_what_is_none, {}, "is a turnwise.condensers.Entry"),
    "nobody, and stopping": (stops_by_itself, {}, "Stopped"),
    "and breaking at the end": (breaks_while_stopped, {"token_budget": 12}, "ZeroDivisionError"),
}


@cases("name", ASKING)
async def test_a_condenser_that_asks_wrongly_costs_the_sibling(name):
    condense, settings, says = ASKING[name]
    result = await rolled_out(Own(condense), **settings)
    assert isinstance(result, Failure)
    assert says in result.error


async def goes_on_after_the_end(history, asking):
    if len(history) > 3:
        for _ in range(50):
            with suppress(Exception):
                await asking.policy_summary(history, REQUEST)
    return history


@pytest.mark.parametrize("condense", [goes_on_after_the_end])
async def test_nothing_is_paid_once_the_rollout_has_stopped(condense):
    result = await rolled_out(Own(condense), token_budget=60, scripted_skill=0)
    assert result.stop_reason is StopReason.TOKEN_BUDGET
    assert [turn.kind for turn in result.turns][:2] == ["act", "summary"]
    assert sum(turn.span.end - turn.span.start for turn in result.turns) == 60


class Nameless:
    async def condense(self, history, asking):
        return history


BAD = {
    "no name": Nameless(),
    "lines": Own(keep_last_turns(1).condense, "a\nb"),
    "a class": summarise,
}


@cases("name", BAD)
def test_what_is_no_condenser_is_refused_before_a_run(name):
    with pytest.raises(ConfigError, match=r"^environment 'talking': ") as refused:
        env_of(BAD[name])
    assert len(str(refused.value)) < 500
