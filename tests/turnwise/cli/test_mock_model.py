"""Which item the mock model plays, found by what a conversation begins with, and the second models."""

import pytest

from environments.config import JudgeConfig, UserConfig
from environments.policy.mock_server import mock_app
from environments.policy.scripted import Choice, say
from environments.rollout.context import SUMMARY_REQUEST
from environments.rollout.items.tasks import GroupTask
from environments.trajectory import Message
from tests.environments.talk import Talk, talk
from tests.environments.talking import Talking, made
from tests.environments.write_file import WriteFile
from tests.environments.write_file import made as written
from tests.equipment.running_server import running_server
from tools.errors import ConfigError
from turnwise.cli.mock_model import MockRole, items_by_opening, script_for


class Rooms(Talking):
    """Each item has an opening of its own; the agent says which item it was told of."""

    def load_items(self):
        return [{"id": "a"}, {"id": "b"}]

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say(item["id"]))]


async def played(env, messages):
    """What the mock says in a conversation; `None`: it knows no item of it."""
    async with env.loaded():
        script = script_for(env, await items_by_opening(env), messages)
    return None if script is None else script(messages, (), 1.0)[0].message.content


def conversation(*said):
    return [Message(role=role, content=content) for role, content in said]


class Titled(Rooms):
    def format_prompt(self, item):
        return conversation(("system", f"room {item['id']}"), ("user", "begin"))


async def test_items_that_share_their_first_user_message_differ_by_the_system_prompt():
    for item in ("a", "b"):
        asked = conversation(
            ("system", f"room {item}"), ("user", "begin"), ("assistant", "a"), ("user", "on")
        )
        assert await played(made(Titled), asked) == item


async def test_of_openings_that_begin_alike_the_longest_is_played():
    class Nested(Rooms):
        def format_prompt(self, item):
            opening = conversation(("user", "begin"), ("assistant", "ok"), ("user", "go"))
            return opening if item["id"] == "a" else opening[:1]

    asked = conversation(("user", "begin"), ("assistant", "ok"), ("user", "go"))
    assert await played(made(Nested), asked) == "a"
    assert await played(made(Nested), asked[:1]) == "b"


class Stated(Rooms):
    """The prompt shows the state, which siblings share."""

    closed = 0

    def prepare(self, item, sandbox, ctx):
        yield f"{item['id']}, board {ctx.group_seed}"
        type(self).closed += 1

    async def format_prompt(self, item, ctx):
        return ctx.state


async def test_a_prompt_made_of_the_state_is_prepared_as_in_a_rollout():
    env = made(Stated)
    group = await env.rollout_group(GroupTask(item={"id": "b"}, item_id="b"), 1)
    before = Stated.closed
    assert await played(made(Stated), group.trajectories[0].prompt) == "b"
    assert Stated.closed == before + 2


class SumsUp(Rooms):
    def format_prompt(self, item):
        return item["id"]

    def scripted_summary(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say(f"in {item['id']}"))]


async def test_where_a_summary_is_asked_for_the_scripted_one_is_given():
    asked = conversation(("user", "b"), ("assistant", "on"), ("user", SUMMARY_REQUEST))
    assert await played(made(SumsUp), asked) == "in b"
    assert await played(made(SumsUp), asked[:2]) == "b"


async def test_of_an_unknown_conversation_the_generic_summary_is_given():
    asked = conversation(("user", "?"), ("user", "42"), ("user", SUMMARY_REQUEST))
    assert await played(made(SumsUp), asked) == "What I know:\n42"


# The second models.


def app(env, role):
    return mock_app(MockRole(env, role).script, skill=1.0, renderer=env.renderer)


def without_calls(group):
    return [
        (t.messages, t.rewards, t.end_reason, [call.answer for call in (*t.judge_calls, *t.user_calls)])
        for t in group.trajectories
    ]


async def both_ways():
    """The groups of an environment whose hooks play, and of one that asks servers."""
    async with talk(max_items=2) as env:
        scripted = [await env.rollout_group(task, 2) for task in env.tasks()]
        served_as = {"judge": JudgeConfig, "user": UserConfig}
        async with (
            running_server(app(env, "judge")) as judge,
            running_server(app(env, "user")) as user,
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


async def test_an_environment_that_plays_no_judge_is_refused():
    async with written(WriteFile).loaded() as env:
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
