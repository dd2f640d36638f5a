"""A mock model in the part of the judge or the user: over HTTP it answers as the hooks do in the process."""

import pytest

from environments.cli.mock_roles import MockRole
from environments.policy.mock.mock_quirks import QUIRKS, SERVERS, quirks_named
from environments.policy.mock.mock_server import mock_app, running_mock_server
from environments.policy.mock.quirky_server import QuirkyServer
from environments.server_config import JudgeConfig, UserConfig
from environments.trajectory import Message
from tests.environments.talk import Talk, talk
from tests.environments.write_file import WriteFile, made
from tools.errors import ConfigError


def app(env, role):
    return mock_app(MockRole(env, role).script, skill=1.0, renderer=env.renderer)


def without_calls(group):
    return [
        (t.messages, t.rewards, t.end_reason, [call.answer for call in (*t.judge_calls, *t.user_calls)])
        for t in group.trajectories
    ]


async def both_ways(quirks=()):
    """The groups of an environment whose hooks play, and of one that asks servers."""
    async with talk(max_items=2) as env:
        scripted = [await env.rollout_group(task, 2) for task in env.tasks()]
        served_as = {"judge": JudgeConfig, "user": UserConfig}
        async with (
            running_mock_server(QuirkyServer(app(env, "judge"), quirks)) as judge,
            running_mock_server(QuirkyServer(app(env, "user"), quirks)) as user,
        ):
            servers = [
                served_as[role](base_url=url, model_name="scripted", temperature=1.0)
                for role, url in (("judge", judge), ("user", user))
            ]
            async with talk(servers=servers) as other:
                served = [await other.rollout_group(task, 2) for task in other.tasks()]
    return scripted, served


async def test_over_http_the_rollouts_are_those_that_hooks_give():
    scripted, served = await both_ways()
    assert [without_calls(group) for group in served] == [without_calls(group) for group in scripted]
    calls = served[0].trajectories[0].user_calls
    assert calls[0].usage["completion_tokens"] > 0


@pytest.mark.parametrize("server", ["openai", "llamacpp", "mistral", "transformers"])
async def test_servers_that_take_less_are_asked_for_less(server):
    chosen = [name for name in SERVERS[server] if QUIRKS[name].models is None]
    scripted, served = await both_ways(quirks_named(chosen))
    assert [without_calls(group) for group in served] == [without_calls(group) for group in scripted]


async def test_an_environment_that_plays_no_judge_is_refused():
    async with made(WriteFile).loaded() as env:
        with pytest.raises(ConfigError, match=r"'write_file' plays no judge; write scripted_judge"):
            MockRole(env, "judge")


async def test_the_item_is_the_one_that_is_quoted_most():
    class Named(Talk):
        def scripted_judge(self, item, messages):
            return item["id"]

    async with talk(Named).loaded() as env:
        script = MockRole(env, "judge").script
        for item in env.items:
            messages = [Message(role="user", content=f"Does it suit {item['persona']}, not Ada?")]
            (choice,) = await script(messages)(messages, (), 1.0)
            assert choice.message.content == item["id"]
