"""The five environments of docs/comparison.md do here what they say; the table there is what is counted."""

import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.trajectory import CreditedGroup, Message, Trajectory
from tests.comparison.count_lines import count, table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "comparison.md"
SHARED = ("common", "maths", "shop", "word_game", "rubric", "judge")
Says = Callable[[Sequence[Message]], Message]


@pytest.fixture
def env_of(monkeypatch):
    """The environment class of one of the files, which import what they share from beside them."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(HERE / "turnwise_envs"))

    def load(name: str) -> type[AgentEnv]:
        module = importlib.import_module(name)
        (env,) = [
            each
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, AgentEnv) and each.__module__ == name
        ]
        return env

    yield load
    for name in SHARED:
        sys.modules.pop(name, None)


async def played(env: type[AgentEnv], says: Says, **hooks: object) -> Trajectory:
    """The first item, played by what `says` answers to a conversation."""

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=says(messages))]

    cls = type("Played", (env,), {"scripted_choices": scripted_choices, **hooks})
    async with cls(AgentEnvConfig(group_size=1, min_group_size=1)) as opened:
        credited: CreditedGroup = await opened.run_group(opened.tasks()[0])
    assert credited.group.failures == ()
    return credited.group.trajectories[0]


def turns_of(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


def numbers_of(messages: Sequence[Message]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", messages[0].content)][:3]


async def test_maths(env_of):
    def says(messages: Sequence[Message]) -> Message:
        a, b, c = numbers_of(messages)
        if messages[-1].role == "tool":
            return say(str(int(messages[-1].content) + c))
        return call("multiply", {"a": a, "b": b})

    assert (await played(env_of("maths"), says)).score == 1.0


async def test_word_game(env_of):
    guesses = ["?", "plant", "grape", "crane"]
    trajectory = await played(env_of("word_game"), lambda messages: say(guesses[turns_of(messages)]))
    assert (trajectory.rewards.outcome, trajectory.end_reason) == (1.0, "won")
    assert trajectory.rewards.turns == pytest.approx((0.0, 0.2, 0.1, 0.2))


async def test_rubric(env_of):
    def says(messages: Sequence[Message]) -> Message:
        a, b, c = numbers_of(messages)
        return say(f"It is \\boxed{{{a * b + c}}}.")

    trajectory = await played(env_of("rubric"), says)
    assert trajectory.rewards.outcome_components == {"correct": 1.0, "boxed": 0.2, "short": 0.1}


async def test_shop(env_of):
    def says(messages: Sequence[Message]) -> Message:
        return say("Done.") if messages[-1].role == "tool" else call("cancel_order", {"order_id": "17"})

    def scripted_user(self, item, messages):
        return "###STOP###" if any("Done." in message.content for message in messages) else item["persona"]

    trajectory = await played(env_of("shop"), says, scripted_user=scripted_user)
    assert (trajectory.score, trajectory.end_reason) == (1.0, "user is done")


async def test_judge(env_of):
    def scripted_judge(self, item, messages):
        return '{"score": 0.%s}' % re.search(r"Draft (\d)", messages[-1].content)[1]  # noqa: UP031

    trajectory = await played(
        env_of("judge"),
        lambda messages: say(f"Draft {turns_of(messages)}."),
        scripted_judge=scripted_judge,
    )
    assert trajectory.rewards.turns == (0.0, 0.1, 0.2)


def test_the_table_is_what_is_counted():
    assert table() in PAGE.read_text()


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Doc."""\n\nimport a\nfrom b import (\n    c,\n)\n\nx = 1  # why\n# no\n', 1),
        ('"""Doc."""\ndef f():\n    """Told.\n\n    Twice.\n    """\n\n    return [\n        1,\n    ]\n', 7),
    ],
    ids=["imports", "docstring"],
)
def test_lines_of_code_are_counted_alone(source: str, lines: int):
    assert count(source) == lines
