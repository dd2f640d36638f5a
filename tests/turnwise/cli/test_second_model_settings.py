"""The settings of the judge's and the user's model servers, as those of the policy's."""

import pytest

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, JudgeConfig, ServerConfig, UserConfig
from environments.policy.mock_server import mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import say
from environments.run.experiment import origin_of
from tests.environments.talk import Talk, talk
from tests.environments.write_file import WriteFile
from tests.environments.written_policy import Written
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ConfigError
from turnwise.cli.env_command import EnvCall, uses
from turnwise.cli.main import main
from turnwise.cli.settings import merge_settings, split_overrides


def seconds(*args, servers=(), file=None):
    overrides, rest = split_overrides(args)
    assert rest == []
    return merge_settings((AgentEnvConfig(), [ServerConfig(), *servers]), file, overrides).second


def test_the_command_line_names_both_or_none():
    assert seconds() == []
    assert seconds("--judge.base_url", "http://j/v1", "--judge.max_tokens=9", "--user.top_p", "0.5") == [
        JudgeConfig(base_url="http://j/v1", max_tokens=9),
        UserConfig(top_p=0.5),
    ]


def test_a_judge_is_asked_for_its_likeliest_answer_and_a_user_for_any():
    assert (JudgeConfig().temperature, UserConfig().temperature) == (0.0, 1.0)


def test_more_fields_of_requests_are_json():
    (judge,) = seconds("--judge.extra_body.response_format", '{"type": "json_object"}')
    assert judge.extra_body == {"response_format": {"type": "json_object"}}


WRONG = {
    "unknown": (
        ["--judge.modelname", "x"],
        r"no setting --judge\.modelname; did you mean --judge\.model_name",
    ),
    "of the policy": (["--judge.server_type", "chat"], r"no setting --judge\.server_type"),
    "range": (["--user.temperature", "3"], r"--user\.temperature should be less than or equal to 2"),
    "field of ours": (
        ["--judge.extra_body.max_tokens", "3"],
        r"cannot set max_tokens: set --judge\.max_tokens",
    ),
}


@cases(("args", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_by_its_name(args, message):
    with pytest.raises(ConfigError, match=message):
        seconds(*args)


def test_an_environment_gets_those_with_an_address():
    flags, _ = split_overrides(
        ["--judge.base_url", "http://j/v1", "--judge.proxy", "none", "--user.max_tokens=5"]
    )
    env = EnvCall(env_cls=Talk, file=None, flags=flags).open()
    assert [server.section for server in env.lifecycle.parts.second_servers] == ["judge"]
    assert env.servers == ()


@cases(
    ("urls", "said"),
    [
        (["http://a/v1", "http://b/v1"], "2 model servers for the judge; one is possible"),
        (["nowhere"], "base_url 'nowhere' is not a URL"),
    ],
)
def test_servers_that_cannot_be_are_refused_before_anything_opens(urls, said):
    with pytest.raises(ConfigError, match=said):
        talk(servers=[JudgeConfig(base_url=url) for url in urls])


def test_help_shows_the_models_that_the_environment_uses(capsys):
    shown = {}
    for env in ("terminal_tasks", "judged_writing", "retail", "long_math"):
        assert main(["process", env, "--help", "all"]) == 0
        text = capsys.readouterr().out
        shown[env] = [role for role in ("judge", "user", "summariser") if f"--{role}.max_tokens" in text]
    assert shown == {
        "terminal_tasks": [], "judged_writing": ["judge"], "retail": ["user"], "long_math": ["summariser"],
    }  # fmt: skip


UNUSED = {
    "judge": ["--judge.base_url", "http://j/v1"],
    "user": ["--user.model_name", "m"],
    "summariser": ["--summariser.top_p", "1"],
}


@cases("role", UNUSED)
def test_a_model_that_the_environment_does_not_use_is_a_usage_error(role, capsys):
    assert main(["process", "terminal_tasks", *UNUSED[role]]) == 2
    error = capsys.readouterr().err
    assert f"{UNUSED[role][0]}: environment 'terminal_tasks' has no" in error.replace("asks no", "has no")
    assert error.count("\n") == 1


def test_a_class_that_asks_a_judge_may_have_one_without_a_script():
    class Asks(AgentEnv):
        async def compute_reward(self, item, trajectory, ctx):
            return await ctx.judge("Is it good?")

    assert uses(Asks, "judge", AgentEnvConfig())


def test_by_a_setting_any_environment_has_a_summariser():
    assert uses(WriteFile, "summariser", AgentEnvConfig(condenser=["summarise_by_model"]))


def test_check_model_takes_the_settings_of_one_server(capsys):
    assert main(["doctor", "model", "http://127.0.0.1:9/v1", "--judge.model_name", "m"]) == 2
    assert "give its settings as --openai.NAME" in capsys.readouterr().err


async def test_a_run_with_a_model_says_which_of_the_others_are_scripted():
    lines = []
    env = Talk(AgentEnvConfig(), policy=Written(say("meow")))
    async with env.opened(notify=lines.append):
        pass
    assert lines == [
        "the judge is scripted (scripted_judge): --judge.base_url names a model server",
        "the user is scripted (scripted_user): --user.base_url names a model server",
    ]


async def test_the_only_model_of_a_judge_s_server_is_said():
    lines = []
    app = mock_app(lambda _: None, skill=1, renderer=ChatMLRenderer.embedded())
    async with running_server(app) as base_url:
        env = talk(servers=[JudgeConfig(base_url=base_url)])
        async with env.opened(notify=lines.append):
            pass
    assert "the judge is scripted, the only model of its server" in lines


def facts(*servers):
    return origin_of(talk(servers=list(servers))).experiment


def test_who_judges_counts_in_the_fingerprint_and_where_it_is_does_not():
    first, second = (facts(JudgeConfig(base_url=f"http://{host}/v1", api_key="k")) for host in "ab")
    assert first == second
    other = facts(JudgeConfig(base_url="http://a/v1", model_name="other"))
    assert {name for name in first if first[name] != other[name]} == {"judge model_name"}


def test_a_scripted_judge_is_another_experiment_than_a_served_one():
    assert facts()["judge"] == "scripted"
    assert "judge" not in facts(JudgeConfig(base_url="http://a/v1"))
