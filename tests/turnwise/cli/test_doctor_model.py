"""`turnwise doctor model` prints what a server gives, and ends with a command to copy."""

import asyncio
import shlex

import pytest

from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from environments.policy.rendering.families import TEXT_FAMILIES, family_names
from tests.equipment.running_server import running_server
from tests.tables import cases
from tests.turnwise.lab.test_model_check import script
from turnwise.cli.main import main


async def checked(*options, **settings):
    """The exit code of the command against a mock."""
    app = mock_app(
        lambda _: script, skill=1, renderer=ChatMLRenderer.embedded(), settings=MockSettings(**settings)
    )
    async with running_server(app) as url:
        return await asyncio.to_thread(main, ["doctor", "model", url, *options])


async def test_the_last_lines_are_a_command_whose_settings_exist(capsys):
    tokenizer = str(EMBEDDED_TOKENIZER_DIR)
    code = await checked("--tokenizer", tokenizer, "--family", "chatml", kind="vllm")
    table, _, command = capsys.readouterr().out.partition("turnwise process ENV")
    given = dict(line.split(" ", 1) for line in map(str.strip, command.split("\\\n")) if line)
    assert code == 0
    assert "sent and given as ids" in table
    fields = {f"--openai.{name}" for name in ServerConfig.model_fields}
    assert set(given) <= fields | {f"--env.{name}" for name in AgentEnvConfig.model_fields}
    assert (given["--openai.server_type"], given["--env.tokenizer_name"]) == ("vllm", tokenizer)


async def test_the_only_model_needs_no_name(capsys):
    assert await checked(model="the/one") == 0
    assert "--openai.model_name the/one" in capsys.readouterr().out


async def test_a_name_from_the_server_is_quoted_in_the_command(capsys):
    hostile = "m; rm -rf /\x1b[2J"
    assert await checked(model=hostile) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "--openai.model_name 'm; rm -rf /" in out


async def test_settings_of_the_user_are_in_the_command_and_secrets_are_not(capsys):
    await checked("--api-key", "s3cret", "--openai.extra_body.top_k", "5")
    out = capsys.readouterr().out
    assert "--openai.api_key YOUR_OWN" in out
    assert "--openai.extra_body.top_k 5" in out
    assert "s3cret" not in out


async def test_what_a_url_has_to_let_somebody_in_is_left_out_and_that_is_said(capsys):
    app = mock_app(lambda _: script, skill=1, renderer=ChatMLRenderer.embedded())
    async with running_server(app) as url:
        assert await asyncio.to_thread(main, ["doctor", "model", url.replace("//", "//me:s3cret@")]) == 0
    out = capsys.readouterr().out
    assert "s3cret" not in out
    assert "user, password and query are left out" in out


async def test_what_is_piped_is_plain_and_has_a_finding_per_line(capsys):
    await checked()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == shlex.split("logprobs ok finite, one for each sampled id") for line in lines)


@cases(
    ("options", "told"),
    [
        (["--model", "other"], "has no model 'other'; it has scripted"),
        (["--family", "none"], "no chat format 'none'"),
        (["--tokenizer", "/nowhere"], "/nowhere"),
        (["--openai.server_typ", "vllm"], "server_type"),
    ],
    ids=["model", "family", "tokenizer", "setting"],
)
async def test_wrong_input_is_one_line_and_exit_code_2(options, told, capsys):
    assert await checked(*options) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", [[], ["http://127.0.0.1:9/v1"], ["no url"]], ids=["none", "nobody", "odd"])
def test_no_server_is_one_line_and_exit_code_2(url, capsys):
    assert main(["doctor", "model", *url]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_families_are_listed_a_line_each(capsys):
    assert main(["doctor", "model", "--families"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, *_ in lines] == list(family_names())
    assert [name for name, *note in lines if note] == list(TEXT_FAMILIES)
