import asyncio
import resource
import ssl
import subprocess
from contextlib import asynccontextmanager

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.policy.inference import http_client
from environments.policy.inference.http_client import NoAnswerError
from environments.policy.inference.model_server import ModelServer
from tests.adversarial.hostile_server import HostileServer, answer, hostile
from tests.environments.policy.chat_server import REQUEST, ok, served
from tests.tables import cases
from tools.errors import ConfigError, ContextOverflow, PolicyError


async def as_it_is(content):
    return content


OVERLOADED = {"error": {"message": "try later", "type": "overloaded_error"}}


@pytest.fixture
async def model_server():
    """Makes servers, and closes them."""
    made = []

    def make(url, **settings):
        waits = {"first_wait_s": 0.001, "longest_wait_s": 0.002}
        made.append(ModelServer(**{"base_url": f"{url}/v1", "api_key": "k", **waits, **settings}))
        return made[-1]

    yield make
    for server in made:
        await server.aclose()


# An error inside a 200.


@cases(
    "body",
    [
        OVERLOADED,
        {"error": {"message": "?", "code": "503"}},
        {"error": {"message": "?", "code": "rate_limit_exceeded"}},
        {"object": "error", "message": "?", "type": "InternalServerError", "code": 500},
        {"choices": [{"error": {"message": "?", "code": 502}, "finish_reason": "error"}]},
    ],
    ids=["type", "text code", "name", "vllm", "choice"],
)
async def test_an_error_in_a_200_that_may_pass_is_tried_again(body):
    async with served(JSONResponse(body), ok(), tries=2) as (server, policy):
        assert (await policy.complete(REQUEST)).message.content == "3"
    assert len(server.asked) == 2


@cases(
    "body",
    [
        {"error": "no"},
        {"error": {"message": "no", "code": 400}},
        {"error": {"message": "no", "type": "invalid_request_error"}},
    ],
    ids=["text", "400", "type"],
)
async def test_an_error_in_a_200_that_stays_is_told_at_once(body):
    async with served(JSONResponse(body), tries=3) as (server, policy):
        with pytest.raises(PolicyError, match="answered 400: no"):
            await policy.complete(REQUEST)
    assert len(server.asked) == 1


@cases(
    "begun",
    [": PROCESSING\n\n", "data: ", 'data: {"choices": [{"delta": {"content": "3"}}]}\n\ndata: '],
    ids=["comment", "event", "later event"],
)
async def test_an_error_in_an_event_of_a_200_counts_by_its_code(begun):
    broken = PlainTextResponse(begun + '{"error": {"message": "slow down", "code": 429}}\n\n')
    async with served(broken, ok(), tries=2) as (server, policy):
        assert (await policy.complete(REQUEST)).message.content == "3"
    assert len(server.asked) == 2


async def test_an_error_says_what_the_provider_text():
    body = {"message": "Provider returned error", "code": 400, "metadata": {"raw": '{"why":\n"no"}'}}
    async with served(JSONResponse({"error": body}, status_code=400)) as (_, policy):
        with pytest.raises(PolicyError, match=r'400: Provider returned error: {"why": "no"}$'):
            await policy.complete(REQUEST)


async def test_an_error_without_a_message_is_shown_whole():
    async with served(JSONResponse({"error": {"message": "", "code": 400, "why": "no"}})) as (_, policy):
        with pytest.raises(PolicyError, match='"why":"no"'):
            await policy.complete(REQUEST)


async def test_a_200_that_says_the_context_is_too_long_is_an_overflow():
    body = {"error": {"message": "maximum context length is 8", "code": "context_length_exceeded"}}
    async with served(JSONResponse(body)) as (_, policy):
        with pytest.raises(ContextOverflow):
            await policy.complete(REQUEST)


async def test_an_answer_that_quotes_an_error_is_an_answer():
    async with served(ok(message={"content": '{"error": {"code": 500}}'})) as (_, policy):
        assert (await policy.complete(REQUEST)).message.content == '{"error": {"code": 500}}'


async def test_an_answer_without_an_error_may_say_so(model_server):
    body = ok().body[:-1] + b',"error":null}'
    async with hostile({"*": answer(body)}) as server:
        assert await model_server(server.url).chat(b"{}", as_it_is) == body


# Tries.


async def test_an_answer_that_is_too_long_is_not_asked_for_again(model_server, monkeypatch):
    monkeypatch.setattr(http_client, "_MAX_ANSWER_BYTES", 1000)
    async with hostile({"*": answer(b"x" * 1001)}) as server:
        with pytest.raises(NoAnswerError, match="longer than 1000 bytes"):
            await model_server(server.url, tries=3).chat(b"{}", as_it_is)
    assert len(server.asked) == 1


async def test_an_answer_that_breaks_off_is_asked_for_again(model_server):
    async def breaks_off(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}")

    async with hostile({"*": breaks_off}) as server:
        with pytest.raises(NoAnswerError):
            await model_server(server.url, tries=3).chat(b"{}", as_it_is)
    assert len(server.asked) == 3


async def test_the_wait_for_a_slot_is_no_time_of_the_request():
    async def slow(request):
        await asyncio.sleep(0.25)
        return ok()

    async with served(slow, max_concurrency=1, request_timeout_s=2.0, tries=1) as (_, policy):
        done = await asyncio.gather(*(policy.complete(REQUEST) for _ in range(10)))
    assert len(done) == 10


# Cancellation.


async def test_a_cancelled_call_frees_its_connection_and_its_slot():
    arrived, hung_up = asyncio.Event(), asyncio.Event()

    async def hang(request):
        arrived.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        hung_up.set()
        return ok()

    async with served(hang, ok(), max_concurrency=1) as (_, policy):
        call = asyncio.create_task(policy.complete(REQUEST))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(hung_up.wait(), 60)
        assert (await policy.complete(REQUEST)).message.content == "3"


# Proxies.


async def test_a_proxy_of_the_process_environment_is_not_asked(model_server, monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with hostile({"*": answer(b"{}")}) as server:
        await model_server(server.url, api_key="none", proxy="none").chat(b"{}", as_it_is)
    assert server.asked[0][2]["authorization"] == "Bearer none"


async def test_a_proxy_gets_the_request_in_the_place_of_the_server(model_server):
    async with hostile({"*": answer(b"{}")}) as proxy:
        await model_server("http://model.invalid", proxy=proxy.url).chat(b"{}", as_it_is)
    assert proxy.asked[0][1] == "http://model.invalid/v1/chat/completions"


@cases("proxy", ["socks5://u:s3cret@h:1", "proxy", "ftp://h"])
def test_a_proxy_that_cannot_be_one_is_refused(model_server, proxy):
    with pytest.raises(
        ConfigError, match=r"the proxy .* is not a URL; give one such as http://proxy:3128"
    ) as caught:
        model_server("http://h", proxy=proxy)
    assert "s3cret" not in str(caught.value)


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=turnwise",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


@asynccontextmanager
async def https(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = HostileServer({"*": answer(b"{}")})
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_a_server_is_checked_with_the_certificates_that_the_system_names(
    model_server, certificate, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    async with https(certificate) as url:
        assert await model_server(url).chat(b"{}", as_it_is) == b"{}"


@cases(("trusted", "host"), [(False, "127.0.0.1"), (True, "localhost")], ids=["unknown", "another host"])
async def test_a_certificate_that_is_not_of_this_host_is_refused(trusted, host, certificate):
    with pytest.MonkeyPatch.context() as patch:
        if trusted:
            patch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
        async with https(certificate) as url:
            server = ModelServer(base_url=url.replace("127.0.0.1", host) + "/v1", api_key="k", tries=1)
            with pytest.raises(NoAnswerError, match="CERTIFICATE_VERIFY_FAILED"):
                await server.chat(b"{}", as_it_is)
            await server.aclose()


# How many at once.


class OneTask(AgentEnv):
    name = "one_task"

    def format_prompt(self, item):
        return "?"

    async def compute_reward(self, item, trajectory, ctx):
        return 0.0


@pytest.fixture
def open_files():
    """Sets how many files this process may open."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda count: resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def env(*, rollouts=16, **server):
    servers = [ServerConfig(base_url="http://127.0.0.1:9/v1", **server)]
    return OneTask(AgentEnvConfig(max_concurrent_rollouts=rollouts), servers)


def test_more_requests_at_once_than_files_may_be_open_are_refused(open_files):
    open_files(1024)
    with pytest.raises(ConfigError, match=r"num_max_requests_at_once 2000 .* 1024 .* 960 .*ulimit -n 2064"):
        env(num_max_requests_at_once=2000)


def test_more_rollouts_than_the_default_of_requests_can_have_are_refused(open_files):
    open_files(256)
    with pytest.raises(ConfigError, match=r"max_concurrent_rollouts 512 .* 256 .* 192 "):
        env(rollouts=4000)


def test_settings_that_this_process_can_open_are_not_refused(open_files):
    open_files(256)
    assert env(rollouts=64).servers
    open_files(min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert env(rollouts=4000, num_max_requests_at_once=4000).servers


@asynccontextmanager
async def barrier(count):
    """A server that answers nobody until so many requests are there."""
    arrived, everybody = 0, asyncio.Event()

    async def serve(reader, writer):
        nonlocal arrived
        await reader.readuntil(b"\r\n\r\n{}")
        arrived += 1
        if arrived == count:
            everybody.set()
        await everybody.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"


async def test_twelve_hundred_requests_are_really_in_flight(open_files):
    open_files(min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    async with barrier(1200) as url:
        server = ModelServer(base_url=url, api_key="", max_concurrency=1200, tries=1)
        answers = await asyncio.gather(*(server.chat(b"{}", as_it_is) for _ in range(1200)))
        await server.aclose()
    assert answers == [b"{}"] * 1200
