"""`credit --rewards` and judges: what a judge was asked in the same words is answered from the record."""

from dataclasses import replace

import pytest

from environments.policy.scripted import ScriptedPolicy
from environments.record.recorder import Recorder
from environments.trajectory import TextScore
from tests.environments.run.rescoring import recorded, rescored, without_fingerprint
from tools.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.jsonl"


async def judged(self, item, trajectory, ctx):
    return await ctx.judge(f"{self.question} {trajectory.turns[0].message.content}?")


def answering(asked):
    def scripted_judge(self, item, messages):
        asked.append(messages[-1].content)
        return f'{{"score": {len(messages[-1].content)}}}'

    return scripted_judge


async def test_what_the_judge_was_asked_is_answered_from_the_record(path):
    asked = []
    hooks = {"compute_outcome": judged, "question": "Is it", "scripted_judge": answering(asked)}
    before = await recorded(path, **hooks)
    asked.clear()
    after, _ = await rescored(path, **hooks)
    assert asked == []
    assert list(map(without_fingerprint, after)) == list(map(without_fingerprint, before))


async def test_a_new_question_is_asked_and_recorded(path):
    asked = []
    hooks = {"compute_outcome": judged, "scripted_judge": answering(asked)}
    await recorded(path, question="Is it", **hooks)
    asked.clear()
    after, _ = await rescored(path, question="Was it", **hooks)
    assert len(asked) == 12
    calls = [call for group in after for each in group.group.trajectories for call in each.judge_calls]
    assert sorted(call.messages[-1].content.partition("\n")[0] for call in calls) == sorted(asked)


async def by_judge(self, item, trajectories, ctx):
    return [await ctx.judge(f"{self.question} {each.sibling}?") for each in trajectories]


@pytest.mark.parametrize("hook", ["compute_outcome", "score_group"])
async def test_a_script_does_not_stand_in_for_the_judge_of_a_record(path, hook):
    asked = []
    hooks = {hook: judged if hook == "compute_outcome" else by_judge, "scripted_judge": answering(asked)}
    groups = await recorded(path, question="Is it", **hooks)
    path.unlink()
    with Recorder(path) as recorder:
        for credited in groups:
            recorder.append(with_judge(credited, "gpt-judge"))
    asked.clear()
    await rescored(path, question="Is it", **hooks)
    path.with_suffix(".new").unlink()
    with pytest.raises(
        ConfigError, match=f"{hook} asks the judge what its record does not hold; name its server"
    ):
        await rescored(path, question="Was it", **hooks)
    assert asked == []


def with_judge(credited, model):
    def named(calls):
        return tuple(replace(call, model=model) for call in calls)

    group = credited.group
    trajectories = tuple(replace(each, judge_calls=named(each.judge_calls)) for each in group.trajectories)
    return replace(
        credited, group=replace(group, trajectories=trajectories, judge_calls=named(group.judge_calls))
    )


async def test_without_any_judge_a_question_is_refused(path):
    await recorded(path)
    with pytest.raises(
        ConfigError, match=r"compute_outcome asks the judge .* name its server, --judge\.base_url"
    ):
        await rescored(path, compute_outcome=judged, question="Is it")


async def scored_by_policy(self, item, trajectory, ctx):
    return (await ctx.policy_logprob(self.text)).total


async def test_what_the_policy_scored_is_read_from_the_record(path, monkeypatch):
    async def score(self, request, text):
        return TextScore(logprobs=(-0.25, -0.5), weight_version="step-3")

    monkeypatch.setattr(ScriptedPolicy, "score", score)
    hooks = {"compute_outcome": scored_by_policy, "text": "yes"}
    before = await recorded(path, **hooks)
    monkeypatch.delattr(ScriptedPolicy, "score")
    after, _ = await rescored(path, **hooks)
    assert list(map(without_fingerprint, after)) == list(map(without_fingerprint, before))
    assert {each.rewards.outcome for group in after for each in group.group.trajectories} == {-0.75}
    path.with_suffix(".new").unlink()
    with pytest.raises(ConfigError, match="compute_outcome scores 'no' by a model, which its record has"):
        await rescored(path, compute_outcome=scored_by_policy, text="no")
