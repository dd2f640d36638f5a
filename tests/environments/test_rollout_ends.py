"""How an environment ends a rollout: `ctx.end`, from hooks and tools."""

import pytest

from environments.policy.scripted import Choice, call
from environments.trajectory import Message, StopReason
from tests.environments.talking import Talking, made, played, world
from tools.calls import ToolContext
from tools.registry import Toolset, tool


def ending(hook, *reasons):
    def end(self, item, turn, ctx):
        for reason in reasons:
            ctx.end(reason)
        return 1.0 if hook == "score_turn" else "goodbye"

    return world("a", "b", **{hook: end})


@pytest.mark.parametrize("hook", ["respond", "score_turn"])
async def test_a_hook_ends_the_rollout_after_its_turn(hook):
    trajectory = await played(made(ending(hook, "won")))
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, "won")
    assert len(trajectory.turns) == 1
    assert trajectory.rewards.turns == (1.0,)


async def test_the_first_reason_wins_of_which_the_start_is_kept_as_is_the_reply():
    trajectory = await played(made(ending("respond", "x" * 10_000, "lost")))
    assert trajectory.end_reason == "x" * 200
    assert trajectory.turns[0].replies[0].content == "goodbye"


async def test_an_end_wins_over_a_budget():
    trajectory = await played(made(ending("score_turn", "won"), max_turns=1))
    assert trajectory.stop_reason is StopReason.ENDED


@tool
def leave(ctx: ToolContext) -> str:
    """Leave the room."""
    ctx.end("left")
    ctx.end("left twice")
    return "gone"


async def test_a_tool_ends_the_rollout_and_calls_that_have_not_run_are_answered():
    class Leaving(Talking):
        tools = (Toolset("acting", (leave,)),)

        def respond(self, item, turn, ctx):
            raise AssertionError("respond is not asked after an end")

        def scripted_choices(self, item, messages, tools, skill):
            calls = call("leave", {}).tool_calls * 3
            return [Choice(probability=1.0, message=Message(role="assistant", tool_calls=calls))]

    trajectory = await played(made(Leaving))
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, "left")
    assert [result.content for result in trajectory.turns[0].tool_results] == [
        "gone", "[not run: the task has ended]", "[not run: the task has ended]",
    ]  # fmt: skip


@pytest.mark.parametrize("hook", ["compute_turn_rewards", "compute_outcome"])
async def test_an_end_after_the_last_turn_is_refused(hook):
    def end(self, item, trajectory, ctx):
        ctx.end("late")

    failure = await played(made(world(**{hook: end})))
    assert "ConfigError: ctx.end('late') comes after the last turn" in failure.error


async def test_an_end_before_the_first_turn_is_refused():
    def prepare(self, item, sandbox, ctx):
        ctx.end("early")

    failure = await played(made(world(prepare=prepare)))
    assert "ConfigError: ctx.end('early') comes before the first turn" in failure.error


@pytest.mark.parametrize("reason", ["", None, 3, "\udcff"], ids=str)
async def test_a_reason_that_is_no_text_is_refused(reason):
    failure = await played(made(ending("respond", reason)))
    assert "ctx.end takes a reason in a few words, got" in failure.error
