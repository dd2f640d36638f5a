"""Condensers of users that cheat, or go on asking: the sibling fails and says why, and nothing else does."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from environments.config import AgentEnvConfig
from environments.rollout.context import Entry, History, keep_last_turns, summarise
from environments.rollout.model_calls import Stopped
from environments.trajectory import Failure, Message, StopReason, Trajectory
from tests.adversarial.misbehaving_env import Own
from tests.environments.talking import TASK, Talking
from tests.tables import cases
from tools.calls import ToolCall
from tools.errors import ConfigError, ContextOverflow


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
    "text": (lambda history: "all of it", "gave 'all of it'"),
    "messages": (lambda history: [each.message for each in history], "is a turnwise.condensers.Entry"),
    "each twice": (lambda history: [each for each in history for _ in range(2)], "out of order, or twice"),
    "calls alone": (lambda history: [e for e in history if e.message.role != "tool"], "without its result"),
    "changed": (
        lambda history: [replace(e, message=replace(e.message, content="!")) for e in history],
        "changed message 0 and kept its index",
    ),
    "beyond the end": (lambda history: [*history, replace(history[0], index=99)], "the index 99"),
    "a role of its own": (lambda history: [*history, writing(role="critic")], "its role is 'critic'"),
    "no UTF-8": (lambda history: [*history, writing(content="\ud800")], "no UTF-8"),
    "a call of its own": (
        lambda history: [*history, writing(role="assistant", tool_calls=BOGUS_CALL)],
        "without its result",
    ),
    "a result of its own": (lambda history: [*history, writing(role="tool")], "tool_call_id is None"),
    "a turn that is none": (
        lambda history: [*history, replace(writing(), turn=7)], "an entry of turn 7"
    ),
    "turns out of order": (
        lambda history: [history[0], *(replace(writing(), turn=turn) for turn in (1, 0))] if len(history) > 5
        else history,
        "turns out of order",
    ),
    "a result of another turn": (
        lambda history: [
            replace(e.with_content("short"), turn=None) if e.message.role == "tool" else e for e in history
        ],
        "entry.with_content(text)",
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


MAY = {
    "a rewritten opening": lambda history: [history[0].with_content("go"), *history[1:]],
    "a note": lambda history: [*history[:1], writing(content="note"), *history[1:]],
    "shorter results": lambda history: [
        each.with_content("short") if each.message.role == "tool" else each for each in history
    ],
    "no reasoning": lambda history: [
        replace(each, message=replace(each.message, reasoning=None), index=None)
        if each.message.role == "assistant"
        else each
        for each in history
    ],
}


@cases("name", MAY)
async def test_what_is_a_history_may_be_given(name):
    result = await rolled_out(Own(lambda history, asking: MAY[name](history)))
    assert isinstance(result, Trajectory), result.error
    assert result.stop_reason is StopReason.COMPLETED


async def test_what_was_dropped_may_be_brought_back():
    kept: list[History] = []

    def condense(history, asking):
        kept.append(history)
        return history[:1] if len(kept) == 2 else kept[1] if len(kept) == 3 else history

    result = await rolled_out(Own(condense))
    assert [turn.fork for turn in result.turns] == [None, "history: own", "history: own", None, None]


async def test_a_list_that_grows_later_is_as_it_was_given():
    given = []

    def condense(history, asking):
        given[:] = history
        return given

    env = env_of(Own(condense))
    result = (await env.rollout_group(TASK, 1)).trajectories[0]
    given.append("junk")
    assert {turn.context for turn in result.turns} == {None}


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


async def two_summaries(history, asking):
    return [*history, writing(content=await asking.policy_summary(history, REQUEST)), *[
        writing(content=await asking.policy_summary(history, REQUEST + str(index))) for index in range(1)
    ]]  # fmt: skip


async def summaries_at_once(history, asking):
    texts = await asyncio.gather(*(asking.policy_summary(history, REQUEST + str(n)) for n in range(2)))
    return [*history, *(writing(content=text) for text in texts)]


@pytest.mark.parametrize("condense", [two_summaries, summaries_at_once], ids=["one by one", "at once"])
async def test_two_summaries_before_an_act_are_two_turns_of_one_rollout(condense):
    result = await rolled_out(Own(condense), max_turns=2)
    assert [turn.kind for turn in result.turns] == ["summary", "summary", "act"] * 2
    assert [turn.index for turn in result.turns] == list(range(6))
    for turn in result.turns:
        assert 0 < turn.span.start < turn.span.end <= len(result.rows[turn.span.row].token_ids)


async def goes_on_after_the_end(history, asking):
    if len(history) > 3:
        for _ in range(50):
            with suppress(Exception):
                await asking.policy_summary(history, REQUEST)
    return history


async def in_a_group(history, asking):
    if len(history) > 3:
        async with asyncio.TaskGroup() as tasks:
            for number in range(9):
                tasks.create_task(asking.policy_summary(history, REQUEST + str(number)))
    return history


@pytest.mark.parametrize("condense", [goes_on_after_the_end, in_a_group], ids=["suppressed", "in a group"])
async def test_nothing_is_paid_once_the_rollout_has_stopped(condense):
    result = await rolled_out(Own(condense), token_budget=60, scripted_skill=0)
    assert result.stop_reason is StopReason.TOKEN_BUDGET
    assert [turn.kind for turn in result.turns][:2] == ["act", "summary"]
    assert sum(turn.span.end - turn.span.start for turn in result.turns) == 60


async def test_a_condenser_may_end_the_rollout():
    def condense(history, asking):
        if len(history) > 3:
            raise ContextOverflow("enough")
        return history

    result = await rolled_out(Own(condense))
    assert (result.stop_reason, len(result.turns)) == (StopReason.CONTEXT_OVERFLOW, 1)


class Nameless:
    async def condense(self, history, asking):
        return history


class Renamed(Nameless):
    """Has another name each time."""

    names = iter(["first", "x" * 10_000_000])

    @property
    def name(self):
        return next(self.names)


BAD = {
    "no name": Nameless(),
    "a long name": Own(keep_last_turns(1).condense, "x" * 100_000),
    "lines": Own(keep_last_turns(1).condense, "a\nb"),
    "no UTF-8": Own(keep_last_turns(1).condense, "\ud800"),
    "a class": summarise,
    "a function": lambda history, asking: history,
}


@cases("name", BAD)
def test_what_is_no_condenser_is_refused_before_a_run(name):
    with pytest.raises(ConfigError, match=r"^environment 'talking': ") as refused:
        env_of(BAD[name])
    assert len(str(refused.value)) < 500


async def test_a_name_that_changes_into_none_costs_the_sibling():
    result = await rolled_out(Renamed())
    assert "has the name 'xxx" in result.error
    assert len(result.error) < 1_000
