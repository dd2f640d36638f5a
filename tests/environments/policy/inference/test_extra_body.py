"""Fields that a user adds to each request: sent, recorded, and none of those that are set elsewhere."""

import math

import pytest
from pydantic import ValidationError

from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.inference.dialect import SET_ELSEWHERE
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.lifecycle.parts import make_served_policy
from tests.environments.policy.chat_server import REQUEST, ok, served
from tests.tables import cases
from tools.errors import ConfigError
from turnwise.cli.settings import merge_settings, read_yaml, split_overrides

EXTRA = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}, "stop": ["END"], "user": "me"}


def settings(*flags, file=None):
    overrides, _ = split_overrides(flags)
    return merge_settings((AgentEnvConfig(), ServerConfig()), file, overrides).servers[0]


async def test_each_request_has_the_fields():
    async with served(ok(), extra_body=EXTRA) as (server, policy):
        await policy.complete(REQUEST)
    assert server.asked[0].items() >= EXTRA.items()


async def test_a_completion_says_how_it_was_sampled():
    async with served(ok(), extra_body=EXTRA, temperature=0.7) as (_, policy):
        completion = await policy.complete(REQUEST)
    shaped = {name: value for name, value in EXTRA.items() if name != "user"}
    assert completion.sampling == {"temperature": 0.7, "top_p": 1.0, **shaped}


def test_the_name_of_a_policy_shows_what_shapes_it():
    server = ServerConfig(base_url="http://localhost/v1", model_name="m", extra_body=EXTRA, temperature=0.7)
    policy = make_served_policy(AgentEnvConfig(), [server], ChatMLRenderer.embedded())
    assert policy.name == (
        'm temperature=0.7 top_p=1 top_k=20 chat_template_kwargs={"enable_thinking":false} stop=["END"]'
    )


@cases(
    ("flags", "fields"),
    [
        (("--openai.extra_body.top_k", "20"), {"top_k": 20}),
        (("--openai.extra_body.tool_choice", "required"), {"tool_choice": "required"}),
        (("--openai.extra_body.stop", '["END", "\\n"]'), {"stop": ["END", "\n"]}),
        (("--openai.extra_body.ignore_eos",), {"ignore_eos": True}),
        (
            ("--openai.extra_body.chat_template_kwargs", '{"enable_thinking": false}'),
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        (("--openai.extra_body", '{"top_k": 5}', "--openai.extra_body.min_p", "0"), {"top_k": 5, "min_p": 0}),
    ],
    ids=["int", "text", "list", "bare", "object", "whole"],
)
def test_entries_on_the_command_line_are_json_where_they_can_be(flags, fields):
    assert settings(*flags).extra_body == fields


def test_the_command_line_joins_what_a_file_says(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("openai:\n  extra_body:\n    top_k: 20\n    stop: '1'\n    min_p: 0.1\n")
    flags = ("--openai.extra_body.min_p", "None", "--openai.extra_body.top_p_decay", "2")
    assert settings(*flags, file=read_yaml(path)).extra_body == {"top_k": 20, "stop": "1", "top_p_decay": 2}


@cases("name", SET_ELSEWHERE)
def test_a_field_of_ours_is_refused_with_what_sets_it(name):
    with pytest.raises(ConfigError, match=f"--openai.extra_body.{name} cannot set {name}: ") as caught:
        settings(f"--openai.extra_body.{name}", "1")
    assert SET_ELSEWHERE[name] in str(caught.value)
    with pytest.raises(ValidationError, match=f"cannot set {name}"):
        ServerConfig(extra_body={name: 1})


def test_an_entry_within_an_entry_is_refused_with_how_to_write_it():
    with pytest.raises(ConfigError, match=r"extra_body\.chat_template_kwargs '\{\"enable_thinking\": …\}'"):
        settings("--openai.extra_body.chat_template_kwargs.enable_thinking", "false")


@pytest.mark.parametrize("value", [{1, 2}, math.nan, [math.inf], 2**70], ids=["set", "NaN", "inf", "huge"])
def test_a_value_that_is_no_json_is_refused(value):
    with pytest.raises(ValidationError, match="cannot send stop"):
        ServerConfig(extra_body={"stop": value})


@pytest.mark.parametrize("value", [7, "7", ["7"], [True], {"a": 7}])
def test_stop_ids_that_are_no_list_of_ids_are_refused(value):
    with pytest.raises(ValidationError, match="cannot send stop_token_ids: give a list of token ids"):
        ServerConfig(extra_body={"stop_token_ids": value})
