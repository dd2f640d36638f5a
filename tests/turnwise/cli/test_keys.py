"""API keys of model servers: which variable is read, what names it, and where its value never stands."""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from environments.config import JudgeConfig, ServerConfig, SummariserConfig, UserConfig, with_keys
from environments.policy.mock_server import mock_app
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.run.experiment import origin_of
from environments.run.group_source import Finishing
from environments.run.open_run import SourceOptions
from environments.run.progress import RolloutsInFlight
from environments.run.workers.env_spec import WorkerJob
from environments.run.workers.workers import OnWorkers
from tests.environments.write_file import WriteFile
from tests.equipment.running_server import running_server
from tests.tables import cases
from tools.errors import ConfigError
from turnwise.cli.env_command import with_variables
from turnwise.cli.main import main
from turnwise.cli.settings import read_yaml

KEY = "sk-S3CRET-0123456789"
WORD_KEY = "sk0123456789abcdef"
MOCK = mock_app(lambda _: None, skill=1, renderer=ChatMLRenderer.embedded())
ALL = (ServerConfig, JudgeConfig, UserConfig, SummariserConfig)


async def locked(scope, receive, send):
    """The mock server behind a gateway that wants the key."""
    given = dict(scope["headers"]).get(b"authorization", b"").decode()
    refusal = JSONResponse({"error": {"message": f"wrong key {given}"}}, status_code=401)
    await (MOCK if given == f"Bearer {KEY}" else refusal)(scope, receive, send)


def key_for(url, variables, **given):
    return with_keys([ServerConfig(base_url=url, **given)], variables)[0].api_key


@cases(
    "url",
    ["https://api.openai.com/v1", "https://API.openai.com:443/v1", "https://eu.api.openai.com/v1"],
)
def test_openai_gets_the_key_of_its_own_variable(url):
    assert key_for(url, {"OPENAI_API_KEY": f" {KEY}\n"}) == KEY


@cases(
    "url",
    [
        "http://api.openai.com/v1",
        "https://api.openai.com.evil.example/v1",
        "https://api.openai.com@evil.example/v1",
        "https://evil.example/api.openai.com/v1",
        "https://evilapi.openai.com/v1",
        "https://api.openai.com\\@evil.example/v1",
        "https://ap\u0131.openai.com/v1",
        "http://localhost:8000/v1",
    ],
    ids=["plain", "suffix", "user", "path", "prefix", "backslash", "dotless i", "local"],
)
def test_no_other_host_gets_the_key_of_openai(url):
    assert key_for(url, {"OPENAI_API_KEY": KEY}) == "none"


def test_a_key_in_the_settings_goes_before_openais_variable():
    assert key_for("https://api.openai.com/v1", {"OPENAI_API_KEY": "other"}, api_key="own") == "own"


@cases("section", ALL, ids=[each.section for each in ALL])
def test_each_server_reads_the_variable_that_a_file_names(section, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"{section.section}: {{base_url: 'http://h/v1', api_key_env: MINE}}\n")
    server = section().with_values(read_yaml(path).of(section.section), origin=str(path))
    assert with_keys([server], {"MINE": KEY, "OPENAI_API_KEY": "other"})[0].api_key == KEY


@cases(
    ("more", "said"),
    [
        (["--openai.api_key_env", "NO_SUCH_KEY"], "NO_SUCH_KEY: this environment variable is not set"),
        (["--openai.api_key_env", "EMPTY_KEY"], "EMPTY_KEY: this environment variable is empty"),
        (["--openai.api_key_env", KEY], "takes the name of an environment variable"),
        (["--openai.api_key_env", WORD_KEY], "api_key_env: this environment variable is not set"),
        (["--openai.api_key_env", "MY_KEY", "--openai.api_key", "x"], "are both set; give one"),
    ],
    ids=["not set", "empty", "the key itself", "a key of letters and digits", "both"],
)
def test_a_variable_without_a_key_is_one_line_and_exit_code_2(more, said, monkeypatch, capsys):
    monkeypatch.setenv("EMPTY_KEY", " ")
    monkeypatch.setenv("MY_KEY", KEY)
    assert main(["process", "word_guess", "--openai.base_url", "http://127.0.0.1:9/v1", *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert KEY not in error
    assert WORD_KEY not in error


def test_a_program_is_told_to_read_the_variable_itself():
    with pytest.raises(ConfigError, match=r"in a program give api_key=os\.environ\['MINE'\]"):
        WriteFile(servers=[ServerConfig(base_url="http://h/v1", api_key_env="MINE")])


def test_help_shows_no_key(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("api_key", "api_key_env"):
        assert (
            main(["process", "word_guess", "--openai.base_url", "https://api.openai.com/v1", "--help"]) == 0
        )
        assert main(["process", "word_guess", "--openai.help", name]) == 0
    assert KEY not in capsys.readouterr().out


@cases(
    ("more", "said"),
    [
        (["--openai.api_key_env", "WRONG_KEY"], "the key is that of WRONG_KEY"),
        ([], "no key was sent; set api_key_env"),
        (["--openai.api_key", "sk-S3CRET-wrong"], "the key is api_key; set api_key_env"),
    ],
    ids=["variable", "none", "setting"],
)
@cases(
    "command", [["process", "word_guess", "--openai.base_url"], ["doctor", "model"]], ids=["run", "doctor"]
)
async def test_a_401_says_where_the_key_came_from_and_not_what_it_is(
    command, more, said, monkeypatch, capsys
):
    monkeypatch.setenv("WRONG_KEY", "sk-S3CRET-other")
    async with running_server(locked) as url:
        assert await asyncio.to_thread(main, [*command, url, *more]) == 2
    error = capsys.readouterr().err
    assert "refuses the API key (401): wrong key" in error
    assert said in error
    assert "S3CRET" not in error


async def test_a_run_with_a_key_writes_it_into_no_file(tmp_path):
    async with running_server(locked) as url:
        flags = ["--openai.base_url", url, "--openai.api_key_env", "MY_KEY", "--env.max_items", "2"]
        run = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "turnwise", "process", "code_debug", *flags, "--env.group_size", "2"],
            env={**os.environ, "MY_KEY": KEY}, cwd=tmp_path, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        printed, _ = await run.communicate()
    assert run.returncode == 0, printed.decode()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"record.jsonl", "config.yaml", "summary.json"} <= {path.name for path in written}
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    (config,) = tmp_path.rglob("config.yaml")
    assert "api_key_env: MY_KEY" in config.read_text()
    assert KEY.encode() not in printed


@asynccontextmanager
async def opened_with_key(url):
    servers = with_keys([ServerConfig(base_url=url, api_key_env="MY_KEY")], os.environ)
    async with WriteFile(servers=servers).opened() as env:
        yield env


async def test_the_key_is_in_no_message_to_a_worker_which_reads_the_variable_itself(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    async with running_server(locked) as url, opened_with_key(url) as env:
        finishing = Finishing(fingerprint=None)
        job = WorkerJob.of(env, SourceOptions(finishing=finishing, say=print, in_flight=RolloutsInFlight()))
        (start,) = OnWorkers(count=1).starts(env, job, 1, are_here=False)
        assert KEY.encode() not in pickle.dumps(start)
        assert KEY not in repr(job)
        spec = pickle.loads(start.spec)
        assert spec.load("")[0].servers[0].api_key == KEY
        monkeypatch.delenv("MY_KEY")
        with pytest.raises(ConfigError, match="MY_KEY: this environment variable is not set") as error:
            spec.load("")
        assert isinstance(error.value.__cause__, KeyError)  # which brings the hint at --worker-env


async def test_the_variable_is_no_fact_of_the_experiment(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    async with running_server(locked) as url, opened_with_key(url) as env:
        facts = origin_of(env).facts()
    assert not [name for name, value in facts.items() if "MY_KEY" in value or KEY in value]


async def test_a_redirect_takes_the_key_nowhere(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    asked = []

    async def note(scope, receive, send):
        asked.append(scope["path"])
        await MOCK(scope, receive, send)

    async with running_server(note) as elsewhere:

        async def lead_away(request):
            return RedirectResponse(f"{elsewhere}/models", status_code=307)

        app = Starlette(routes=[Route("/{path:path}", lead_away, methods=["GET", "POST"])])
        async with running_server(app) as url:
            with pytest.raises(ConfigError, match="it leads to"):
                async with opened_with_key(url):
                    pass
    assert asked == []


async def test_the_sandbox_of_a_rollout_has_no_variable_with_the_key(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    async with running_server(locked) as url, opened_with_key(url) as env, env.open_sandbox() as sandbox:
        result = await sandbox.exec(["sh", "-c", "env; cat /proc/*/environ"], timeout_s=60)
    assert b"PATH" in result.stdout
    assert KEY.encode() not in result.stdout


def test_keys_and_proxies_are_both_of_the_process_environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("http_proxy", "http://p:1")
    (server,) = with_variables([ServerConfig(base_url="http://h/v1", api_key_env="MY_KEY")])
    assert (server.api_key, server.proxy) == (KEY, "http://p:1")
    assert KEY not in repr(server)
