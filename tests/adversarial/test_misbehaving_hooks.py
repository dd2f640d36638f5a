"""Whatever an environment's code does, it costs the rollout that it did it in, and nothing else."""

import asyncio
import inspect
from contextlib import nullcontext

import pytest

from environments.rollout.containment import hook_calls
from environments.rollout.lifecycle import rollout_hooks
from environments.run.group_source import score_eval
from tests.adversarial.misbehaving_env import AROUND_A_YIELD, NO_HOOKS, ORDINARY, TASK, first, misbehaving
from tests.adversarial.misbehaviour import HANGS, KINDS, breaks
from tests.tables import cases

HOOKS = [spot for spot in ORDINARY if spot not in NO_HOOKS]


EVERYWHERE = {
    "async raises an error",
    "def raises SystemExit",
    "def raises StopIteration",
    "async raises CancelledError",
    "async raises a group with an exit",
    "def raises a class without a name",
    "cancels its own task",
    "exits in a task",
    "gives a generator",
}
"""Hooks are called alike, in `hook_calls`; a tool and a policy are not."""


WHOLE = {"compute_outcome", "prepare", "tool", "policy"}
"""Where every kind is tried without `--soak`, too."""


def kinds_in(spot, soak):
    """What breaks there: one kind per mechanism, or all of them."""
    wanted = KINDS if soak or spot in WHOLE else EVERYWHERE
    return [kind for kind in KINDS if kind in wanted and breaks(kind, spot)]


@pytest.mark.parametrize("spot", [*ORDINARY, "before the yield"])
async def test_what_breaks_costs_one_sibling_and_says_what_it_was(spot, soak):
    @cases("kind", kinds_in(spot, soak))
    async def check(kind):
        group = await misbehaving(spot, KINDS[kind]).rollout_group(TASK, 3)
        assert len(group.trajectories) == 2
        (failure,) = group.failures
        assert failure.error.startswith(failure.error_class)
        assert len(failure.error.encode()) < 2_500
        assert len(failure.traceback.encode()) < 25_000

    await check()


async def test_what_breaks_when_a_state_is_closed_costs_no_scored_rollout(soak, caplog):
    @cases("kind", kinds_in("after the yield", soak))
    async def check(kind, caplog):
        group = await misbehaving("after the yield", KINDS[kind]).rollout_group(TASK, 3)
        assert (len(group.trajectories), len(group.failures)) == (3, 0)
        assert caplog.text.count("misbehaving, item bad: prepare, after its yield: ") == 1

    await check(caplog=caplog)


async def test_the_traceback_begins_at_the_environments_own_code():
    env = misbehaving("compute_outcome", KINDS["async raises an error"])
    (failure,) = (await env.rollout_group(TASK, 3)).failures
    assert failure.error == f"ZeroDivisionError: mine ({failure.where})"
    assert failure.where.startswith("misbehaviour.py:")
    assert "environments/" not in failure.traceback


VERDICTS = {**KINDS, "hangs": HANGS["hangs"], "blocks": HANGS["blocks in def"]}


@cases("kind", VERDICTS)
async def test_a_verdict_that_breaks_costs_the_rollout_that_it_is_about(kind):
    env = misbehaving("none", None, hook_timeout_s=1)
    group = await env.rollout_group(TASK, 3)
    env.passed = first(VERDICTS[kind], lambda item, trajectory: True, skipped=0)
    left = await score_eval(env, TASK, group, nullcontext)
    assert ([each.passed for each in left.trajectories], len(left.failures)) == ([True, True], 1)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(hook_calls, "_CANCEL_S", 0.3)


async def groups_of(made):
    """The groups of environments by their names, rolled out at once."""
    groups = await asyncio.gather(*(env.rollout_group(TASK, 3) for env in made.values()))
    return list(zip(made, groups, strict=True))


# What spins keeps the loop from whatever else waits.
@pytest.mark.parametrize("kinds", [["spins at awaits"], [kind for kind in HANGS if "spins" not in kind]])
async def test_a_hook_that_never_ends_costs_one_sibling_and_is_named_with_its_limit(kinds, impatient):
    made = {
        (kind, spot): misbehaving(spot, HANGS[kind], hook_timeout_s=2) for kind in kinds for spot in HOOKS
    }
    found = {name: [each.error for each in group.failures] for name, group in await groups_of(made)}
    assert [
        (name, errors)
        for name, errors in found.items()
        if len(errors) != 1 or f"{name[1]} took longer than 2 s (--env.hook_timeout_s)" not in errors[0]
    ] == []


async def test_a_state_that_is_never_made_or_closed_keeps_nothing(impatient, monkeypatch, caplog):
    monkeypatch.setattr(rollout_hooks, "_AFTERWARDS_S", 1.0)
    made = {
        (kind, spot): misbehaving(spot, HANGS[kind], hook_timeout_s=1)
        for kind in HANGS
        for spot in AROUND_A_YIELD
    }
    for (_, spot), group in await groups_of(made):
        before = spot == "before the yield"
        assert (len(group.trajectories), len(group.failures)) == ((2, 1) if before else (3, 0))
        assert [each.error.partition(";")[0] for each in group.failures] == [
            "TimeLimitExceeded: prepare took longer than 1 s (--env.hook_timeout_s)"
        ] * before
    told = caplog.text.count("TimeLimitExceeded: prepare, after its yield took longer than 1 s")
    assert told >= len(HANGS)


TOOLS = [*(("tool", kind) for kind in HANGS), ("method", "hangs"), ("method", "blocks in def")]


async def test_a_tool_that_never_ends_is_told_to_the_model_or_ends_one_rollout_with_the_floor(impatient):
    made = {(spot, kind): misbehaving(spot, HANGS[kind], tool_timeout_s=1) for spot, kind in TOOLS}
    for (_, kind), group in await groups_of(made):
        assert len(group.trajectories) == 3
        floors = [each for each in group.trajectories if each.agent_caused is not None]
        told = [r for t in group.trajectories for turn in t.turns for r in turn.tool_results if r.timed_out]
        # What goes on may still change what the rollout is judged by.
        goes_on = not inspect.iscoroutinefunction(HANGS[kind]) or "swallows" in kind or "clean-up" in kind
        assert [each.agent_caused.cause for each in floors] == ["tool_timeout"] * goes_on, kind
        assert [result.content.partition(";")[0] for result in told] == [
            "[broken off: tool act, turn 1 took longer than 1 s (--env.tool_timeout_s)"
            if goes_on
            else "[stopped: still running after 1 s]"
        ]


async def test_a_policy_that_never_ends_uses_up_the_rollouts_time(impatient):
    envs = [misbehaving("policy", kind, rollout_timeout_s=2) for kind in HANGS.values()]
    groups = await asyncio.gather(*(env.rollout_group(TASK, 3) for env in envs))
    errors = {
        kind: [each.error for each in group.failures] for kind, group in zip(HANGS, groups, strict=True)
    }
    assert errors == {kind: ["RolloutError: no turn was finished: time_budget"] for kind in HANGS}
    assert {env.policy_name for env in envs} == {"scripted"}


@cases("kind", ["hangs", "hangs and swallows cancellation", "blocks in def"])
async def test_a_cancellation_from_outside_is_no_failure_and_waits_for_nothing(kind, impatient):
    group = asyncio.ensure_future(misbehaving("compute_outcome", HANGS[kind]).rollout_group(TASK, 3))
    await asyncio.sleep(0.1)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await group


def test_threads_that_hooks_block_are_neither_in_our_way_nor_in_that_of_the_end():
    kind = HANGS["blocks a thread of asyncio's"]

    async def main():
        envs = [misbehaving("prepare", kind, hook_timeout_s=1) for _ in range(50)]
        groups = await asyncio.gather(*(env.rollout_group(TASK, 3) for env in envs))
        async with asyncio.timeout(90):
            return len(groups), await asyncio.to_thread(lambda: "ours")

    assert asyncio.run(main()) == (50, "ours")
