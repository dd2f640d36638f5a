"""`credit --rewards`: rewards of a record, computed again by the code of today from what it holds."""

from functools import partial

import pytest

from environments.record.recorder import read_contents
from environments.run.process_run import process
from environments.run.rescore_run import read_seed
from environments.trajectory import StopReason
from tests.environments.chat.chat_env import Chat, ScalarChat, chat
from tests.environments.run.rescoring import recorded, rescored, without_fingerprint
from tests.environments.write_file import quiet
from tools.errors import RecordError, RunError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.jsonl"


def middle_is_not_trained(self, item, turn, ctx):
    return turn.index != 1


async def by_words(self, item, trajectories, ctx):
    said = [each.turns[0].message.content for each in trajectories]
    return [1.0 / said.count(word) for word in said]


async def outcome_of_metrics(self, item, trajectory, ctx):
    assert (trajectory.rewards, trajectory.metrics) == (None, {})
    return {"turns": ctx.metrics["said"], "sure": float(ctx.seed % 2)}


@pytest.mark.parametrize(
    ("cls", "hooks"),
    [
        (Chat, {}),
        (ScalarChat, {}),
        (Chat, {"compute_outcome": outcome_of_metrics, "train_turn": middle_is_not_trained}),
        (Chat, {"score_group": by_words, "estimator": "grpo", "mask_truncated": True}),
    ],
    ids=["turns", "scalar", "outcome", "group"],
)
async def test_the_same_rewards_again_change_nothing(path, cls, hooks):
    before = await recorded(path, cls, **hooks)
    after, shown = await rescored(path, cls, **hooks)
    assert list(map(without_fingerprint, after)) == list(map(without_fingerprint, before))
    assert shown.startswith("3 groups, 12 rollouts: rewards of 0 changed\n")


async def test_other_rewards_are_those_that_a_run_would_have_given(path, tmp_path):
    await recorded(path)
    after, shown = await rescored(path, worth=2.0)
    expected = await recorded(tmp_path / "other.jsonl", worth=2.0)
    assert [each.group.trajectories[0].rewards for each in after] == [
        each.group.trajectories[0].rewards for each in expected
    ]
    assert [each.advantages for each in after] == [each.advantages for each in expected]
    assert "rewards of 12 changed" not in shown
    assert "mean score" in shown


async def test_score_turn_sees_what_it_saw_then(path):
    live, again = [], []

    async def looking(seen, self, item, turn, ctx):
        seen.append(
            (
                ctx.seed,
                turn.index,
                [m.content for m in ctx.messages],
                list(ctx.turn_scores),
                dict(ctx.metrics),
            )
        )
        seen[-1] += (ctx.group_seed, ctx.item_id, item, turn.trained, ctx.end_reason)
        ctx.metrics["turns"] = turn.index
        return float(turn.index)

    hooks = {"seed": 7, "group_size": 2}
    await recorded(path, score_turn=wrapped(looking, live), **hooks)
    await rescored(path, score_turn=wrapped(looking, again), **hooks)
    assert len(live) == 18
    assert sorted(again, key=lambda each: each[:2]) == sorted(live, key=lambda each: each[:2])


def wrapped(hook, *args):
    async def method(self, *rest):
        return await partial(hook, *args)(self, *rest)

    return method


async def test_runs_of_several_seeds_are_refused(path, tmp_path):
    other = tmp_path / "other.jsonl"
    await recorded(path, seed=7, group_size=2)
    await recorded(other, seed=8, group_size=2)
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(RecordError, match="holds runs of seeds 7, 8; rescore each"):
        read_seed(read_contents(path))


async def test_the_end_of_a_rollout_is_known_when_its_last_turn_is_scored(path):
    reasons = []

    def respond(self, item, turn, ctx):
        ctx.end("enough")

    async def score_turn(self, item, turn, ctx):
        reasons.append((turn.index, ctx.end_reason))
        return 0.0

    await recorded(path, respond=respond, score_turn=score_turn)
    live, reasons[:] = list(reasons), []
    after, _ = await rescored(path, respond=respond, score_turn=score_turn)
    assert reasons == live
    assert {each.stop_reason for group in after for each in group.group.trajectories} == {StopReason.ENDED}


async def test_a_rollout_that_its_score_ended_is_scored_as_it_was(path):
    async def score_turn(self, item, turn, ctx):
        if turn.message.content == item["word"]:
            ctx.end("found")
        return float(ctx.end_reason is not None)

    before = await recorded(path, score_turn=score_turn)
    after, shown = await rescored(path, score_turn=score_turn)
    assert {each.end_reason for group in before for each in group.group.trajectories} == {"found", None}
    assert "rewards of 0 changed" in shown
    assert list(map(without_fingerprint, after)) == list(map(without_fingerprint, before))


async def test_metrics_of_tools_and_the_world_stay_and_those_of_rewards_are_new(path):
    def respond(self, item, turn, ctx):
        ctx.metrics["asked"] = 1.0

    async def score_turn(self, item, turn, ctx):
        ctx.metrics["value"] = self.worth
        return 0.0

    await recorded(path, respond=respond, score_turn=score_turn)
    after, _ = await rescored(path, respond=respond, score_turn=score_turn, worth=5.0)
    assert all(
        each.metrics == {"asked": 1.0, "value": 5.0} for group in after for each in group.group.trajectories
    )


async def test_failures_stay_and_a_hook_that_breaks_now_makes_one_more(path):
    def failing(*siblings):
        async def compute_outcome(self, item, trajectory, ctx):
            if trajectory.sibling in siblings:
                raise ZeroDivisionError("no judge")
            return 0.0

        return compute_outcome

    await recorded(path, compute_outcome=failing(1))
    after, shown = await rescored(path, compute_outcome=failing(1, 3))
    for group in after:
        assert [each.sibling for each in group.group.trajectories] == [0, 2]
        assert [each.sibling for each in group.group.failures] == [1, 3]
        assert "ZeroDivisionError: no judge" in group.group.failures[1].error
    assert "failed now 3x ZeroDivisionError: no judge" in shown


async def test_a_group_that_failed_for_its_rewards_can_be_scored_after_all(path):
    async def sometimes(self, item, trajectory, ctx):
        return None if trajectory.sibling else 1.0

    async def always(self, item, trajectory, ctx):
        return 1.0

    await recorded(path, compute_outcome=sometimes)
    after, shown = await rescored(path, compute_outcome=always)
    assert "failed" not in {each.status for each in after}
    assert "groups     failed 3 -> " in shown


async def test_the_new_record_says_what_it_came_from_and_what_changed(path):
    (before, *_) = await recorded(path)
    (after, *_), _ = await rescored(path, missing_outcome="drop")
    origins = read_contents(path.with_suffix(".new")).origins
    facts = origins[after.group.fingerprint]
    assert after.group.fingerprint != before.group.fingerprint
    assert facts["rescored from"] == before.group.fingerprint
    assert "missing_outcome was null, is " in facts["changed since"]
    assert facts["policy"] == before.policy == after.policy


async def test_a_run_does_not_go_on_in_a_rescored_record(path):
    await recorded(path)
    await rescored(path)
    with pytest.raises(RecordError, match=r"another run.*rescored from is gone"):
        await process(chat(data_path_to_save_groups=str(path.with_suffix(".new"))), quiet())


async def test_items_come_from_the_record_where_the_environment_has_them_no_more(path):
    async def load_items(self):
        return [{"id": "other", "word": "red"}]

    before = await recorded(path)
    after, _ = await rescored(path, load_items=load_items)
    assert [each.advantages for each in after] == [each.advantages for each in before]


async def test_an_item_that_changed_is_refused_by_name(path):
    async def load_items(self):
        return [{"id": name, "word": "pink"} for name in "abc"]

    await recorded(path)
    with pytest.raises(RecordError, match=r"line 1: item '.' changed: the environment's is not the one"):
        await rescored(path, load_items=load_items)
    assert {each.name for each in path.parent.iterdir()} == {"r.jsonl"}


async def test_a_record_of_another_environment_is_refused(path):
    await recorded(path)
    with pytest.raises(
        RecordError, match="it is of environment 'chat', and cannot be rescored by 'scalar_chat'"
    ):
        await rescored(path, ScalarChat)


async def test_a_record_that_is_there_is_not_written_over(path):
    await recorded(path)
    out = path.with_suffix(".new")
    out.write_text("mine\n")
    with pytest.raises(RecordError, match="exists; credit writes a new record"):
        await rescored(path)
    assert out.read_text() == "mine\n"


async def test_where_nothing_can_be_scored_no_record_is_written(path):
    async def breaks(self, item, trajectory, ctx):
        raise ZeroDivisionError("no judge")

    await recorded(path)
    with pytest.raises(RunError, match=r"every group of .* failed, and no record was written: .*no judge"):
        await rescored(path, compute_outcome=breaks)
    assert {each.name for each in path.parent.iterdir()} == {"r.jsonl"}
