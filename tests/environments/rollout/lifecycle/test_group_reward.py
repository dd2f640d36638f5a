"""`score_group`: the part of each outcome that compares siblings, asked once, before credit."""

import asyncio
from dataclasses import replace

import pytest

from environments.credit import GroupRules
from environments.credit import credited as recredited
from environments.run.evaluation_run import evaluate
from tests.environments.chat.chat_env import TASK, Chat, ScalarChat, chat, group_of_chat
from tests.environments.write_file import quiet


def giving(given):
    async def score_group(self, item, trajectories, ctx):
        return given

    return score_group


def parts(credited):
    return [each.rewards.group for each in credited.group.trajectories]


async def by_rank(self, item, trajectories, ctx):
    return [float(each.sibling) for each in trajectories]


@pytest.mark.parametrize("cls", [Chat, ScalarChat])
async def test_a_part_is_added_to_outcome_and_score(cls):
    plain = await group_of_chat(cls)
    compared = await group_of_chat(cls, score_group=by_rank)
    for before, after in zip(plain.group.trajectories, compared.group.trajectories, strict=True):
        assert after.rewards.group == after.sibling
        assert after.rewards.outcome == (before.rewards.outcome or 0.0) + after.sibling
        assert after.score == before.score + after.sibling


async def test_it_is_a_named_part_of_the_outcome_beside_those_that_were_there():
    async def compute_outcome(self, item, trajectory, ctx):
        return {"right": 0.5}

    (first, *_) = (
        await group_of_chat(score_group=by_rank, compute_outcome=compute_outcome)
    ).group.trajectories
    assert first.rewards.outcome_components == {"right": 0.5, "group": 0.0}
    (first, *_) = (await group_of_chat(ScalarChat, score_group=by_rank)).group.trajectories
    assert first.rewards.outcome_components == {"outcome": first.rewards.outcome, "group": 0.0}


async def test_parts_of_its_own_are_named_after_it():
    score_group = giving([{"rank": 1.0, "novelty": 0.5}] * 4)
    (first, *_) = (await group_of_chat(score_group=score_group)).group.trajectories
    assert first.rewards.outcome_components == {"group.rank": 1.0, "group.novelty": 0.5}
    assert (first.rewards.group, first.rewards.outcome) == (1.5, 1.5)


@pytest.mark.parametrize("given", [None, [None] * 4])
async def test_none_for_all_is_no_part(given):
    credited = await group_of_chat(score_group=giving(given))
    plain = await group_of_chat()
    assert credited.advantages == plain.advantages
    assert [t.rewards for t in credited.group.trajectories] == [t.rewards for t in plain.group.trajectories]


async def test_none_for_one_beside_others_is_refused_as_a_missing_outcome_is():
    credited = await group_of_chat(score_group=giving([1.0, None, 0.0, 0.5]), compute_outcome=zero)
    assert credited.status == "failed"
    assert credited.reason == (
        "no part from score_group beside siblings with one: siblings 1; missing_outcome says what is to "
        "count, drop or a number"
    )
    assert parts(credited) == [1.0, None, 0.0, 0.5]


async def zero(self, item, trajectory, ctx):
    return 0.0


@pytest.mark.parametrize(("missing", "outcomes"), [("drop", [1.0, 0.0, 0.5]), (-1.0, [1.0, -1.0, 0.0, 0.5])])
@pytest.mark.parametrize("hooks", [{}, {"compute_outcome": zero}], ids=["alone", "beside-an-outcome"])
async def test_what_is_missing_can_be_dropped_or_stated(missing, outcomes, hooks):
    score_group = giving([1.0, None, 0.0, 0.5])
    credited = await group_of_chat(score_group=score_group, missing_outcome=missing, **hooks)
    assert credited.status == "ok"
    assert [each.rewards.outcome for each in credited.group.trajectories] == outcomes
    assert len(credited.group.failures) == 4 - len(outcomes)


async def test_siblings_that_cannot_be_compared_are_dropped_before_it_is_asked():
    async def compute_outcome(self, item, trajectory, ctx):
        return None if trajectory.sibling == 1 else 0.0

    credited = await group_of_chat(
        missing_outcome="drop", compute_outcome=compute_outcome, score_group=giving([1.0, 2.0, 3.0])
    )
    assert (credited.status, parts(credited)) == ("ok", [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "fields", [{"min_group_size": 4}, {"missing_outcome": "refuse"}], ids=["too-few", "refused"]
)
async def test_of_a_group_that_fails_it_is_not_asked(fields):
    asked = []

    async def compute_outcome(self, item, trajectory, ctx):
        if trajectory.sibling == 1 and "min_group_size" in fields:
            raise ZeroDivisionError
        return None if trajectory.sibling == 1 else 0.0

    async def score_group(self, item, trajectories, ctx):
        asked.append(trajectories)

    credited = await group_of_chat(compute_outcome=compute_outcome, score_group=score_group, **fields)
    assert (credited.status, asked) == ("failed", [])


async def test_it_gets_the_survivors_in_order_scored_and_with_their_metrics():
    seen = []

    async def compute_outcome(self, item, trajectory, ctx):
        if trajectory.sibling == 1:
            raise ZeroDivisionError
        await asyncio.sleep(0.01 * (3 - trajectory.sibling))
        ctx.metrics["checked"] = 1.0

    async def score_group(self, item, trajectories, ctx):
        seen.append([(each.sibling, each.metrics["checked"], each.score is None) for each in trajectories])
        assert (ctx.item, ctx.item_id, ctx.group_seed) == (TASK.item, "a", TASK.group_seed(0))

    credited = await group_of_chat(compute_outcome=compute_outcome, score_group=score_group)
    assert credited.reason is None
    assert seen == [[(0, 1.0, False), (2, 1.0, False), (3, 1.0, False)]]


async def test_what_it_changes_in_the_item_reaches_nobody():
    def score_group(self, item, trajectories, ctx):
        item["word"] = "changed"

    env = chat(score_group=score_group)
    async with env:
        task = env.tasks()[0]
        await env.run_group(task)
    assert task.item["word"] == "red"


async def test_a_sibling_that_went_alone_is_among_those_that_it_compares():
    counted = []

    async def score_group(self, item, trajectories, ctx):
        counted.append(len(trajectories))

    env = chat(score_group=score_group)
    async with env:
        first = await env.rollout_group(TASK, 1)
        assert counted == []
        await env.run_group(replace(TASK, rolled_out=first.trajectories))
    assert counted == [4]


async def test_evaluate_does_not_ask(tmp_path):
    def score_group(self, item, trajectories, ctx):
        raise AssertionError

    assert (
        await evaluate(
            chat(score_group=score_group, eval_rollouts=2, data_dir_to_save_evals=str(tmp_path)), quiet()
        )
        == 0
    )


@pytest.mark.parametrize("name", ["sandbox", "state", "verify", "metrics"])
async def test_what_rollouts_have_is_refused_with_what_to_do_instead(name):
    async def score_group(self, item, trajectories, ctx):
        getattr(ctx, name)

    credited = await group_of_chat(score_group=score_group)
    assert credited.status == "failed"
    assert credited.reason.startswith(
        f"score_group broke: ConfigError: score_group has no ctx.{name}: the rollouts are over"
    )


async def test_what_the_judge_is_asked_is_kept_with_the_group():
    async def score_group(self, item, trajectories, ctx):
        return [await ctx.judge(f"Rate {each.sibling}") for each in trajectories]

    def scripted_judge(self, item, messages):
        return f'{{"score": {messages[-1].content[-1]}}}'

    credited = await group_of_chat(score_group=score_group, scripted_judge=scripted_judge)
    assert parts(credited) == [0.0, 1.0, 2.0, 3.0]
    assert [(call.hook, call.model) for call in credited.group.judge_calls] == [
        ("score_group", "scripted")
    ] * 4


async def test_an_answer_of_the_judge_that_cannot_be_read_refuses_no_group_and_gives_none_a_part():
    async def score_group(self, item, trajectories, ctx):
        async with asyncio.TaskGroup() as asking:
            asked = [asking.create_task(ctx.judge(f"Rate {each.sibling}")) for each in trajectories]
        return [each.result() for each in asked]

    def scripted_judge(self, item, messages):
        return "I refuse." if messages[0].content == "Rate 2" else '{"score": 1}'

    credited = await group_of_chat(score_group=score_group, scripted_judge=scripted_judge)
    assert (credited.group.error, parts(credited)) == (None, [None] * 4)


@pytest.mark.parametrize("missing", ["drop", 0.0])
async def test_a_group_that_was_refused_before_it_was_asked_gets_no_credit_without_its_part(missing):
    """What `credit` settles would be a group that was never compared."""

    async def compute_outcome(self, item, trajectory, ctx):
        return None if trajectory.sibling == 1 else 1.0

    refused = await group_of_chat(compute_outcome=compute_outcome, score_group=by_rank)
    assert "no outcome beside siblings with one: siblings 1" in (refused.reason or "")
    again = recredited(refused.group, "turn_return", policy="p", rules=GroupRules(missing_outcome=missing))
    assert (again.status, again.reason) == ("failed", refused.reason)
    plain = await group_of_chat(compute_outcome=compute_outcome)
    again = recredited(plain.group, "turn_return", policy="p", rules=GroupRules(missing_outcome=missing))
    assert again.status == "ok"
