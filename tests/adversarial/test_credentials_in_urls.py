"""Credentials in URLs let us in, and are in nothing that is printed, recorded or kept: real commands."""

import base64
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from environments.policy.inference.http_client import endpoint
from environments.rollout.boundary import failure_of
from environments.serve.outbox import Outbox
from tests.adversarial.hostile_server import answer, hostile
from tests.environments.conftest import RunApi
from tests.environments.policy.chat_server import REQUEST, chat_policy
from tests.environments.policy.chat_server import answer as reply
from tests.environments.serve import loopback
from tests.environments.serve.proxy import Gateway, Proxy
from tests.tables import cases
from tools.errors import ConfigError, PolicyError
from tools.plain_text import public_url, without_credentials
from turnwise.cli.main import main

PASSWORD, TOKEN, KEY = "s3cr:t/p@ss", "t0k3n-in-a-query", "sk-k3y-of-the-model"
BEARER = "t0k3n-of-the-gateway"
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
SECRETS = [each.encode() for each in (PASSWORD, quote(PASSWORD, safe=""), TOKEN, KEY, BASIC, BEARER)]


class Guard(Proxy):
    """Passes on only requests that bear the password and the token; tells others what they bore instead."""

    def __init__(self, port, *, password=PASSWORD):
        super().__init__(port)
        self.let_in = 0
        self._wanted = "Basic " + base64.b64encode(f"user:{password}".encode()).decode()

    def reply(self, method, path, body, headers):
        bare, _, query = path.partition("?")
        if headers["Authorization"] != self._wanted or query != f"token={TOKEN}":
            return 401, f"no, {path} with {headers}, so {PASSWORD} is wrong".encode()
        self.let_in += 1
        return self.passed_on(method, bare, body, headers)


def secret_url(port, path=""):
    return f"http://user:{quote(PASSWORD, safe='')}@127.0.0.1:{port}{path}?token={TOKEN}"


def model_at(port):
    return [
        "--openai.base_url",
        secret_url(port, "/v1"),
        "--openai.model_name",
        "scripted",
        "--openai.api_key",
        KEY,
    ]


def nothing_secret_in(*places):
    """No file, byte by byte, and no text holds a secret."""
    for place in places:
        files = [each for each in place.rglob("*") if each.is_file()] if isinstance(place, Path) else []
        contents = [(str(each), each.read_bytes()) for each in files]
        if not isinstance(place, Path):
            contents = [("output", place if isinstance(place, bytes) else place.encode())]
        for name, content in contents:
            found = [secret for secret in SECRETS if secret in content]
            assert not found, (name, found, content[-2000:])


def turnwise(*args, folder, env=None):
    return subprocess.run(
        [loopback.TURNWISE, *args],
        cwd=folder,
        capture_output=True,
        env={**os.environ, **(env or {})},
        check=False,
    )


@pytest.fixture(scope="module")
def model():
    port = loopback.free_port()
    with loopback.running(loopback.mock_model("WriteWord", port)) as process:
        loopback.wait_for_port(process, port)
        yield port


@pytest.fixture(scope="module")
def api():
    server = RunApi()
    server.start()
    yield server
    server.kill()


def process(folder, *options, env=None):
    command = ("process", f"{loopback.SERVED}:WriteWord", "--out", "r.jsonl")
    return turnwise(
        *command, "--env.max_items", "2", "--env.group_size", "2", *options, folder=folder, env=env
    )


def test_process_is_let_in_and_keeps_nothing(model, tmp_path):
    with Guard(model) as guard:
        done = process(tmp_path, *model_at(guard.port))
    assert done.returncode == 0, done.stderr
    assert guard.let_in > 4
    nothing_secret_in(tmp_path, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("command", "fault"),
    [("process", "refused"), ("evaluate", "gone"), ("serve", "refused")],
)
def test_a_model_server_that_cannot_be_used_is_named_without_them(command, fault, tmp_path):
    with Guard(1, password="another") as guard:
        port = guard.port if fault == "refused" else loopback.free_port()
        view = ["--env.credit_view", "turn_rows"] if command == "serve" else []
        done = turnwise(command, f"{loopback.SERVED}:WriteWord", *model_at(port), *view, folder=tmp_path)
    assert done.returncode == 2
    assert f"http://127.0.0.1:{port}/v1" in done.stderr.decode()
    nothing_secret_in(tmp_path, done.stdout, done.stderr)


def test_a_model_server_that_serve_waits_for_is_named_without_them(tmp_path):
    log = tmp_path / "log"
    model = model_at(loopback.free_port())
    command = loopback.serve("WriteWord", "http://127.0.0.1:1", tmp_path, *model)
    with log.open("wb") as shown, loopback.running(command, cwd=tmp_path, stdout=shown, stderr=shown):
        loopback.wait_until(lambda: "waiting for it" in log.read_text())
    nothing_secret_in(tmp_path, log.read_bytes())


def test_a_model_server_that_refuses_later_leaves_them_in_no_failure(model, tmp_path):
    class Later(Guard):
        def passed_on(self, method, path, body, headers):
            if method == "POST":
                return 500, f"broken for http://user:{PASSWORD}@h/ {headers}".encode()
            return super().passed_on(method, path, body, headers)

    with Later(model) as guard:
        done = process(tmp_path, *model_at(guard.port))
    assert b"answered 500" in (tmp_path / "r.jsonl").read_bytes()
    nothing_secret_in(tmp_path, done.stdout, done.stderr)


@contextmanager
def serving(command, api, folder):
    """`serve` while it runs, and its log; it has put groups into the queue, and ends well."""
    log = folder / "log"
    with log.open("wb") as shown, loopback.running(command, stdout=shown, stderr=shown, cwd=folder) as env:
        loopback.wait_until(lambda: api.get("/status")["queue_size"] > 0)
        yield env, log
        assert loopback.ended(env) == 0, log.read_text()


@pytest.fixture
def trained(api):
    api.get("/reset_data")
    api.start_trainer(batch_size=4)
    return api


def test_serve_is_let_in_and_keeps_nothing(model, trained, tmp_path):
    with Guard(trained.port) as at_api, Guard(model) as at_model:
        command = loopback.serve("WriteWord", secret_url(at_api.port), tmp_path, *model_at(at_model.port))
        with serving(command, trained, tmp_path) as (env, log):
            of_children = arguments_below(env.pid)
    nothing_secret_in(tmp_path, of_children)
    assert f"registered at http://127.0.0.1:{at_api.port} as" in log.read_text()


def test_a_gateway_gets_its_token_with_every_request_of_serve_which_is_kept_nowhere(trained, tmp_path):
    with Gateway(trained.port, BEARER) as gateway:
        command = loopback.serve("Instant", gateway.url, tmp_path, "--env.rollout_server_token", BEARER)
        with serving(command, trained, tmp_path) as (_, log):
            gateway.answers["/status"] = 401, f"{BEARER} is no longer known".encode()
            loopback.wait_until(lambda: "no longer known" in log.read_text())
    assert {path for _, path, _ in gateway.seen} >= {"/register-env", "/info", "/status-env", "/scored_data"}
    assert set(gateway.borne) == {f"Bearer {BEARER}"}
    nothing_secret_in(tmp_path)


def test_a_refused_post_is_kept_without_them(tmp_path):
    api = endpoint(secret_url(1), name="n", example="e")
    with Outbox(tmp_path / "o.sqlite") as outbox:
        outbox.note_rejected("a", api.without_secrets(f"no {secret_url(1)} {BASIC} {PASSWORD}"))
    nothing_secret_in(tmp_path)


@cases(
    "args",
    [
        ["process", "code_debug", "--openai.base_url", f"http//user:{PASSWORD}@h"],
        ["process", "code_debug", "--openai.base_url", f"user:{PASSWORD}@h:80"],
        ["process", "code_debug", "--openai.base_url", f"http://user:{PASSWORD}@h"],
        ["serve", "code_debug", "--env.rollout_server_url", f"ftp://user:{PASSWORD}@h"],
        ["serve", "code_debug", "--env.rollout_server_url", f"h?token={TOKEN}"],
        ["serve", "code_debug", "--env.rollout_url", secret_url(1)],
        ["serve", "code_debug", "--rollout_server_url", secret_url(1)],
        ["serve", secret_url(1)],
        ["serve", "code_debug", secret_url(1)],
        ["serve", "code_debug", "--openai.num_max_requests_at_once", secret_url(1)],
        ["process", "code_debug", *model_at(1), "--openai.proxy", f"socks5://user:{PASSWORD}@h"],
    ],
)
def test_a_mistake_is_told_without_them(args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    nothing_secret_in(*capsys.readouterr(), tmp_path)


def test_an_error_of_a_library_is_recorded_without_them():
    error = RuntimeError(f"401 for url '{secret_url(1)}'")
    failure = failure_of(error, sibling=0, turns=0)
    nothing_secret_in(repr(failure))


@cases(
    ("url", "shown"),
    [
        ("http://user:pw@h:80/v1?api_key=x#y", "http://h:80/v1"),
        ("https://token@h", "https://h"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://user:p/w@h", "h"),
        ("localhost:8000/v1", "localhost:8000/v1"),
        ("h:80?token=a@b", "(hidden)"),
    ],
)
def test_what_is_shown_of_a_url(url, shown):
    assert public_url(url) == shown


async def test_a_proxy_is_told_its_password_and_nobody_else():
    async with hostile({"*": answer(reply(), status=200)}) as server:
        proxy = secret_url(server.url.rpartition(":")[2])
        policy = chat_policy("http://model.invalid/v1", tries=1, proxy=proxy)
        await policy.complete(REQUEST)
        (method, url, headers, _), *_ = server.asked
        assert (method, url) == ("POST", "http://model.invalid/v1/chat/completions")
        assert headers["proxy-authorization"] == f"Basic {BASIC}"
        server.answers["*"] = answer(b"no", status=407)
        with pytest.raises(PolicyError) as caught:
            await policy.complete(REQUEST)
        await policy.aclose()
    nothing_secret_in(str(caught.value))


async def test_a_proxy_that_is_gone_is_named_without_its_password():
    policy = chat_policy("http://model.invalid/v1", tries=1, proxy=secret_url(loopback.free_port()))
    with pytest.raises(PolicyError) as caught:
        await policy.complete(REQUEST)
    await policy.aclose()
    nothing_secret_in(str(caught.value))


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it():
    with pytest.raises(ConfigError) as caught:
        endpoint("http://h", name="n", example="e", api_key="se\ncret")
    assert "cret" not in str(caught.value)


def arguments_below(pid):
    """The command lines and environments of all that runs below a process."""
    found, parents = [], {pid}
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in parents:
                parents.add(int(entry.name))
                found.append((entry / "cmdline").read_bytes() + (entry / "environ").read_bytes())
        except OSError:
            continue
    assert found
    return b"".join(found)


def test_a_url_that_became_a_path_is_shown_without_them():
    assert without_credentials("no file at https:/me:secret@host/x") == "no file at https:/***@host/x"
    assert without_credentials("no file at me:secret@host:/x") == "no file at ***@host:/x"
    assert without_credentials("image python:3.11@sha256:0a1b") == "image python:3.11@sha256:0a1b"
