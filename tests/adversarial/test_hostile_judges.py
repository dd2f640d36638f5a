"""A judge or a user that is dead, slow, busy or answers anything: what siblings, group and run get."""

import pytest

from environments.config import JudgeConfig, UserConfig
from tests.adversarial.hostile_server import OK, answer, endless, hostile
from tests.environments.policy.chat_server import Server, failed
from tests.environments.policy.text_server import verdict
from tests.environments.talk import Talk, talk
from tests.equipment.running_server import running_server
from tests.tables import cases
from turnwise.cli.main import main

MODELS = answer({"data": [{"id": "m"}]})


def judged(url, cls=Talk, **settings):
    fast = {"request_timeout_s": 5.0, **settings}
    return talk(cls, servers=[JudgeConfig(base_url=url, model_name="m")], **fast)


async def group_judged(url, cls=Talk, **settings):
    async with judged(url, cls, **settings) as env:
        return await env.run_group(env.tasks()[0])


async def hang_up(writer):
    writer.write(OK + b"Content-Length: 100\r\n\r\n{")


LOST = {
    "hangs up": hang_up,
    "never ends": endless,
    "no JSON": answer(b"<html>"),
    "busy": answer({"error": {"message": "slow down"}}, status=429),
}


@cases("made", LOST.values(), ids=LOST)
async def test_a_judge_without_an_answer_fails_the_siblings_and_is_named(made):
    async with hostile({"/v1/models": MODELS, "*": made}) as server:
        credited = await group_judged(f"{server.url}/v1", request_timeout_s=5.0)
    failures = credited.group.failures
    assert [failure.error_class for failure in failures] == ["SecondModelError"] * 2
    assert [failure.refuses_group for failure in failures] == [False] * 2
    assert all(
        failure.error.startswith(f"SecondModelError: the judge's model, {server.url}") for failure in failures
    )
    assert all(len(failure.error) < 1_000 for failure in failures)


async def test_a_judge_that_is_lost_for_one_sibling_costs_that_one_alone():
    class Numbered(Talk):
        async def score_turn(self, item, turn, ctx):
            return None

        async def compute_outcome(self, item, trajectory, ctx):
            return await ctx.judge(f"sibling {trajectory.sibling}")

    async def lost_for_one(request):
        asked = (await request.json())["messages"][0]["content"]
        return failed(500) if "sibling 1" in asked else await verdict('{"score": 1, ID}')(request)

    async with running_server(Server(lost_for_one).app) as url:
        credited = await group_judged(url, Numbered, group_size=3)
    assert [failure.sibling for failure in credited.group.failures] == [1]
    assert [trajectory.score for trajectory in credited.group.trajectories] == [1.0, 1.0]


async def test_a_user_that_is_lost_fails_the_sibling_and_is_named():
    async with hostile({"/v1/models": MODELS, "*": answer({}, status=500)}) as server:
        servers = [UserConfig(base_url=f"{server.url}/v1", model_name="m")]
        async with talk(servers=servers) as env:
            credited = await env.run_group(env.tasks()[0])
    assert {failure.error_class for failure in credited.group.failures} == {"SecondModelError"}
    assert "the user's model" in credited.group.failures[0].error


NOBODY = """
from turnwise import AgentEnv


class Judged(AgentEnv):
    name = "judged"
    sandbox = "none"

    def load_items(self):
        return ["a", "b"]

    def format_prompt(self, item):
        return item

    async def compute_reward(self, item, trajectory, ctx):
        return await ctx.judge("Good?")
"""
NOBODY_COMPARES = (
    NOBODY.replace("return await", "return 0.0").replace('ctx.judge("Good?")', "")
    + """
    async def score_group(self, item, trajectories, ctx):
        return [await ctx.judge("Good?") for _ in trajectories]
"""
)


@pytest.mark.parametrize(
    ("command", "source"),
    [("process", NOBODY), ("evaluate", NOBODY), ("process", NOBODY_COMPARES)],
    ids=["process", "evaluate", "compare"],
)
def test_a_run_with_a_judge_that_nobody_plays_ends_at_once_with_2(
    command, source, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    name = f"judged_by_nobody_{command}_{source == NOBODY}.py"
    (tmp_path / name).write_text(source, encoding="utf-8")
    assert main([command, name]) == 2
    error = capsys.readouterr().err
    assert "name its model server with --judge.base_url, or write scripted_judge" in " ".join(error.split())
