"""Tools of a rollout's state and context, in whole rollouts played by the scripted agent."""

import sqlite3
import typing
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import pytest

from environments.base_env import AgentEnv
from environments.rollout.items.tasks import GroupTask
from environments.run.experiment import origin_of
from environments.trajectory import StopReason
from tests.environments.listed_calls import (
    ARGUMENTS,
    Bank,
    Listed,
    Market,
    Shop,
    ShopEnv,
    add,
    contents,
    failure_of,
    rolled_out,
    trajectory_of,
)
from tests.tables import cases
from tools.calls import State, ToolContext
from tools.errors import ConfigError
from tools.registry import tool

T = TypeVar("T")


async def test_a_method_of_the_state_changes_the_state_of_its_own_rollout():
    group = await rolled_out(ShopEnv(), "sell", "sell", size=2)
    assert [each.rewards.outcome for each in group.trajectories if each.rewards] == [2.0, 2.0]
    assert [contents(each) for each in group.trajectories] == [['["tea"]', '["tea", "tea"]']] * 2


async def test_a_tool_ends_the_rollout_and_notes_a_metric_through_the_context():
    trajectory = await trajectory_of(ShopEnv(), "sell", "close", "sell")
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, "closed")
    assert (trajectory.metrics["sold"], len(trajectory.turns)) == (1.0, 2)


async def test_a_tool_without_a_sandbox_gives_its_number_as_text():
    assert contents(await trajectory_of(ShopEnv(), "add")) == ["3"]


async def test_a_tool_sees_its_rollout():
    trajectory = await trajectory_of(ShopEnv(), "sample")
    task = GroupTask(item=["sample"], item_id="x")
    assert contents(trajectory) == [
        f'{{"item": ["sample"], "seed": {trajectory.seed}, "group_seed": {task.group_seed(0)}, '
        '"state": "Shop(sold=[])"}'
    ]


@dataclass
class Box(State, Generic[T]):
    inside: list[T] = field(default_factory=list[T])

    @tool
    def fill(self, number: int) -> int:
        """Fill it."""
        self.inside.append(cast("T", number))
        return len(self.inside)


@tool
def peek(box: Box[int]) -> list[int]:
    """Look into it."""
    return box.inside


class BoxEnv(Listed):
    tools = (Box[int], peek)

    def prepare(self, item, sandbox) -> Iterator[Box[int]]:
        yield Box[int]()


async def test_a_generic_state_is_one_whatever_it_is_of(monkeypatch):
    monkeypatch.setitem(ARGUMENTS, "fill", {"number": 7})
    assert contents(await trajectory_of(BoxEnv(), "fill", "peek")) == ["1", "[7]"]


def env_giving(annotation: Any, *tools: Any, gives: Any = None) -> type[AgentEnv]:
    def prepare(self, item, sandbox):
        return gives

    if annotation is not ...:
        prepare.__annotations__["return"] = annotation
    return type("Given", (Listed,), {"prepare": prepare, "tools": tools or (Shop,)})


@cases(
    "annotation",
    [
        Shop,
        "Shop",
        Market,
        Iterator[Shop],
        Iterable[Shop],
        "Generator[Shop, None, None]",
        Generator[Shop, None, None],
        AsyncIterator[Market],
    ],
    ids=["class", "text", "subclass", "iterator", "iterable", "generator as text", "generator", "async"],
)
def test_prepare_may_be_annotated_in_every_way_that_gives_the_state(annotation: Any):
    assert env_giving(annotation)().toolset.name == "shop"


@cases(
    ("annotation", "got"),
    [
        (..., "nothing"),
        (None, "nothing"),
        (Any, "Any"),
        (dict[str, Any], "dict"),
        (Shop | None, "Shop | None"),
        (typing.Optional[Shop], "Shop]"),  # noqa: UP045  # as users write it
        ("Iterator[Shop | None]", "Shop | None"),
        (ToolContext, "ToolContext"),
        (typing.Iterator, "nothing"),  # as users write it
    ],
    ids=["missing", "none", "any", "dict", "or none", "optional", "yielded or none", "no state", "bare"],
)
def test_a_prepare_that_is_not_annotated_to_give_the_state_is_refused_with_what_to_write(
    annotation: Any, got: str
):
    with pytest.raises(ConfigError) as caught:
        env_giving(annotation)()
    message = str(caught.value)
    assert message.startswith(
        "environment 'listed': tool 'sell' takes Shop, and prepare is annotated to give "
    )
    assert got in message
    assert message.endswith(
        "; write `def prepare(self, item, sandbox) -> Shop`, or `-> Iterator[Shop]` with a yield"
    )


def test_an_environment_without_prepare_has_no_state_for_tools():
    with pytest.raises(ConfigError, match="prepare is annotated to give"):
        type("Bare", (Listed,), {"tools": (Shop,)})()


def test_an_annotation_that_cannot_be_read_is_told():
    with pytest.raises(ConfigError, match="what prepare is annotated to give cannot be read: name 'Lost'"):
        env_giving("Lost")()


@pytest.mark.parametrize("annotation", [Bank, Iterator[Bank]], ids=["given", "yielded"])
def test_tools_of_another_state_are_refused_when_the_environment_is_made(annotation: Any):
    message = "tool 'sell' takes Shop, and environment 'listed': prepare is annotated to give Bank"
    with pytest.raises(ConfigError, match=message):
        env_giving(annotation)()


def test_a_rollout_has_one_state_and_two_classes_of_tools_need_one_that_is_both():
    with pytest.raises(ConfigError, match="tool 'balance' takes Bank"):
        env_giving(Shop, Shop, Bank)()
    both = type("Both", (Shop, Bank), {})
    assert len(env_giving(both, Shop, Bank)().toolset.tools) == 3


def test_no_state_is_asked_for_where_no_tool_takes_one():
    assert env_giving(..., add)().toolset.name == "add"


@pytest.mark.parametrize("calls", [["sell"], []], ids=["used", "not used"])
async def test_another_state_than_announced_costs_the_rollout(calls: list[str]):
    env = env_giving(Shop, gives=Bank())()
    message = "ConfigError: tool 'sell' takes Shop, and the state is of class Bank"
    assert await failure_of(env, *calls) == message


async def test_a_state_that_a_hook_put_there_later_costs_the_rollout():
    class Replaced(ShopEnv):
        async def respond(self, item, turn, ctx):
            ctx.state = {}

    message = "ConfigError: tool 'sell' takes Shop, and the state is of class dict"
    assert await failure_of(Replaced(), "add", "sell") == message


class Ledger(State):
    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table sales (what text)")

    @tool
    def note(self) -> int:
        """Note a sale."""
        self.database.execute("insert into sales values ('tea')")
        return self.database.execute("select count(*) from sales").fetchone()[0]


class LedgerEnv(Listed):
    tools = (Ledger,)

    def prepare(self, item, sandbox) -> Iterator[Ledger]:
        ledger = Ledger()
        yield ledger
        ledger.database.close()

    def compute_reward(self, item, trajectory, ctx):
        return float(ctx.state.database.execute("select count(*) from sales").fetchone()[0])


async def test_a_database_of_a_def_prepare_is_used_by_def_tools_and_rewards_and_closed():
    group = await rolled_out(LedgerEnv(), "note", "note", size=3)
    assert [failure.error for failure in group.failures] == []
    assert [contents(each) for each in group.trajectories] == [["1", "2"]] * 3
    assert [each.rewards.outcome for each in group.trajectories if each.rewards] == [2.0] * 3


@cases("error", [StopIteration("over"), StopAsyncIteration("over"), GeneratorExit("over")])
@cases("is_async", [False, True], ids=["def", "async"])
async def test_a_sign_that_python_itself_gives_is_the_failure_of_its_rollout(
    error: BaseException, is_async: bool
):
    @tool(name="act")
    def plain() -> str:
        """Act."""
        raise error

    @tool(name="act")
    async def asynchronous() -> str:
        """Act."""
        raise error

    env = env_giving(..., asynchronous if is_async else plain)()
    assert (await failure_of(env, "act")).startswith(f"{type(error).__name__}: over")


def state_with(text: str, kind: type) -> type[State]:
    def wait(self, how_long: kind) -> str:  # pyright: ignore[reportInvalidTypeForm]
        return str(how_long)

    wait.__doc__ = text
    return type("Room", (State,), {"wait": tool(wait)})


def test_what_a_model_sees_of_a_states_tool_is_part_of_the_experiment():
    def facts(text: str, kind: type) -> str:
        state = state_with(text, kind)
        return origin_of(env_giving(state, state)()).experiment["tool wait"]

    first = facts("Wait.", int)
    assert first == facts("Wait.", int)
    assert len({first, facts("Wait!", int), facts("Wait.", float)}) == 3
