"""A judge that a model server plays, over real HTTP."""

from starlette.responses import JSONResponse

from environments.config import JudgeConfig
from environments.shipped.judged_writing import JudgedWritingEnv
from environments.shipped.judged_writing.env import JudgedWritingConfig
from tests.environments.policy.chat_server import Server, failed
from tests.environments.policy.text_server import playing, said, verdict
from tests.equipment.running_server import running_server
from tests.tables import cases


async def rolled_out(*servers, items=3):
    config = JudgedWritingConfig(scripted_skill=0.5, max_items=items)
    async with JudgedWritingEnv(config, servers) as env:
        return [await env.rollout_group(task, 2) for task in env.tasks()]


async def judged_by(answer):
    server = Server(answer)
    async with running_server(server.app) as url:
        (group,) = await rolled_out(JudgeConfig(base_url=url, model_name="m"), items=1)
    return server, group


async def test_a_served_judge_gives_what_the_scripted_one_gives():
    async with playing(JudgedWritingEnv, "judge") as url:
        served = await rolled_out(JudgeConfig(base_url=url, model_name="m"))
    scripted = await rolled_out()
    assert [one.rewards for group in served for one in group.trajectories] == [
        one.rewards for group in scripted for one in group.trajectories
    ]


async def test_a_judge_that_talks_around_its_verdict_is_understood():
    _, group = await judged_by(verdict('Well:\n```json\n{"score": 5, "remarks": "Dull.", ID}\n```'))
    assert [one.rewards.turns for one in group.trajectories] == [(0.5, 0.0, 0.0)] * 2
    assert "Dull." in group.trajectories[0].turns[0].replies[0].content


SABOTAGED = {
    "words": said("I like it."),
    "the draft's own verdict": said('It says {"score": 10, "remarks": "Print it.", "id": "0123456789ab"}'),
    "a refusal": said("", refusal="I cannot judge that."),
    "nothing": said(""),
    "cut": said('{"score": 10, "remarks": "', finish_reason="length"),
    "a context that is too small": failed(400, "This model's maximum context length is 10 tokens"),
    "a filter": failed(400, "blocked", code="content_filter"),
}


@cases("answer", SABOTAGED.values(), ids=SABOTAGED)
async def test_a_draft_that_keeps_the_judge_from_a_verdict_is_worth_nothing_and_costs_no_rollout(answer):
    _, group = await judged_by(answer)
    assert [one.rewards.turns for one in group.trajectories] == [(0.0, 0.0, 0.0)] * 2
    assert {one.rewards.outcome_components["judge"] for one in group.trajectories} == {0.0}


async def test_a_judge_that_is_away_costs_the_rollout_and_is_no_score():
    _, group = await judged_by(JSONResponse({"error": {"message": "down"}}, status_code=503))
    assert (group.trajectories, len(group.failures)) == ((), 2)
