"""What is found out once and kept: a look that died, hung or was refused is no answer, and is tried again."""

import errno
import os
import signal
from collections import Counter

import pytest
from tokenizers import Tokenizer

from environments.config import ServerConfig
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.server_kind import ServerFacts, examine_server
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from tests.adversarial.hostile_server import OK, answer, hostile
from tests.environments.write_file import made
from tools.errors import ConfigError, IsolationError, PolicyError, ServerAway
from tools.sandbox.base import SandboxLimits
from tools.sandbox.docker import engine as engines
from tools.sandbox.docker.manager import ContainerManager
from tools.sandbox.host import silence
from tools.sandbox.local import cgroup, fork_server, probe, tiers

NETWORKED = SandboxLimits(network="full")
FOR_EVER = 99


@pytest.fixture
def look_anew(monkeypatch):
    """Nothing is known of this machine, before and afterwards."""
    kept = (probe._best_tier, tiers.interpreter, cgroup._controllers)
    monkeypatch.setattr(fork_server, "_current", {})
    monkeypatch.setattr(silence, "_AGAIN_S", 0.01)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


def disturbed_starts(monkeypatch, number, times):
    """The first fork servers get a signal as soon as they are there."""
    started, count = fork_server._start_process, Counter()

    def start(*args):
        process = started(*args)
        count["starts"] += 1
        if count["starts"] <= times:
            process.send_signal(number)
            stopped.append(process)
        return process

    stopped = []
    monkeypatch.setattr(fork_server, "_start_process", start)
    monkeypatch.setattr(fork_server, "_ANSWER_S", 1.0 if number == signal.SIGSTOP else 30.0)
    monkeypatch.setattr(fork_server, "_END_S", 0.1)
    return stopped


@pytest.mark.usefixtures("look_anew")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fork_server_that_dies_or_hangs_does_not_decide_the_tier(number, monkeypatch):
    expected = probe.choose_tier(NETWORKED)
    probe._best_tier.cache_clear()
    fork_server._current.clear()
    stopped = disturbed_starts(monkeypatch, number, times=1)
    assert probe.choose_tier(NETWORKED) == expected == "B"
    for each in stopped:
        each.kill()


@pytest.mark.usefixtures("look_anew")
def test_a_tier_that_cannot_be_examined_is_an_error_and_no_weaker_one(monkeypatch):
    disturbed_starts(monkeypatch, signal.SIGKILL, times=FOR_EVER)
    for _ in range(2):
        with pytest.raises(IsolationError, match=r"could not be examined: no sandbox of tier B.*busy\?"):
            probe.choose_tier(NETWORKED, allow_unsafe=True)


@pytest.mark.usefixtures("look_anew")
def test_a_shortage_does_not_decide_the_tier(monkeypatch):
    start, count = probe.launch.start_in_namespaces, Counter()

    def short(*args):
        count["starts"] += 1
        if count["starts"] == 1:
            raise OSError(f"OSError({errno.EAGAIN}, 'clone3: {os.strerror(errno.EAGAIN)}')")
        return start(*args)

    monkeypatch.setattr(probe.launch, "start_in_namespaces", short)
    assert probe.choose_tier(NETWORKED) == "B"


@pytest.mark.usefixtures("look_anew")
def test_what_the_kernel_refuses_is_an_answer_that_is_warned_of(monkeypatch, caplog):
    # Of namespaces: the process to fork from ends by itself, and says why.
    real = fork_server._setup
    monkeypatch.setattr(
        fork_server, "_setup", lambda kind, lent: real("plain", lent) if kind == "plain" else b"?"
    )
    assert probe.choose_tier(NETWORKED) == "C"
    assert "Landlock alone (tier C), for want of namespaces" in caplog.text


@pytest.fixture
def dying_python(tmp_path, monkeypatch):
    """A system Python that is killed so many times."""

    def make(times):
        program, count = tmp_path / "python3", tmp_path / "count"
        program.write_text(
            f"#!/bin/sh\necho >>{count}\n[ $(wc -l <{count}) -gt {times} ] || kill -9 $$\n"
            f'exec /usr/bin/python3 "$@"\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr(tiers, "_SYSTEM_PYTHON", str(program))
        return str(program)

    return make


@pytest.mark.usefixtures("look_anew")
def test_a_system_python_that_is_killed_is_asked_again(dying_python):
    program = dying_python(1)
    assert tiers.interpreter() == program


@pytest.mark.usefixtures("look_anew")
def test_a_system_python_that_is_always_killed_is_an_error(dying_python):
    dying_python(FOR_EVER)
    with pytest.raises(IsolationError, match="could not be examined"):
        tiers.interpreter()


def short_of_groups(monkeypatch, times):
    limit, count = cgroup._limit, Counter()

    def write(*args):
        count["writes"] += 1
        if count["writes"] <= times:
            raise OSError(errno.ENOMEM, "none left")
        limit(*args)

    monkeypatch.setattr(cgroup, "_limit", write)


@pytest.mark.usefixtures("look_anew")
def test_a_shortage_of_control_groups_does_not_leave_limits_out(monkeypatch):
    expected = cgroup.controllers()
    if not expected:
        pytest.skip("there are none here")
    cgroup._controllers.cache_clear()
    short_of_groups(monkeypatch, times=1)
    assert cgroup.controllers() == expected
    cgroup._controllers.cache_clear()
    short_of_groups(monkeypatch, times=FOR_EVER)
    with pytest.raises(IsolationError, match="control groups could not be examined"):
        cgroup.controllers()


PAGES = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]},
    "/version": {"version": "0.33.0"},
    "/server_info": {"vllm_config": {"logprobs_mode": "raw_logprobs"}},
}
FACTS = ServerFacts(kind="vllm", version="0.33.0", context_tokens=4096, logprobs_mode="raw_logprobs")


async def _hangs_up(writer):
    writer.close()


NO_ANSWERS = {
    "busy": answer({"error": {"message": "busy"}}, status=503),
    "cut": OK + b'Connection: close\r\n\r\n{"data": [{"id": "m", "own',
    "hangs up": _hangs_up,
}


def asked(url, **settings):
    waits = {"first_wait_s": 0.001, "longest_wait_s": 0.002}
    return ModelServer(base_url=f"{url}/v1", api_key="k", **waits, **settings)


def pages(disturbed, with_what, times):
    count = Counter()

    def page(path, content):
        async def respond(writer):
            count[path] += 1
            given = with_what if path == disturbed and count[path] <= times else answer(content)
            if callable(given):
                await given(writer)
            else:
                writer.write(given)

        return respond

    return {path: page(path, content) for path, content in PAGES.items()} | {"*": answer(b"{}", status=404)}


@pytest.mark.parametrize("kind", NO_ANSWERS)
@pytest.mark.parametrize("path", PAGES)
async def test_a_page_of_a_model_server_that_was_not_had_is_asked_for_again(path, kind):
    async with hostile(pages(path, NO_ANSWERS[kind], times=1)) as server:
        model_server = asked(server.url)
        assert await examine_server(model_server, "m") == FACTS
        await model_server.aclose()


@pytest.mark.parametrize("kind", ["busy", "hangs up"])
@pytest.mark.parametrize("path", PAGES)
async def test_a_model_server_that_cannot_be_examined_is_an_error(path, kind):
    async with hostile(pages(path, NO_ANSWERS[kind], times=FOR_EVER)) as server:
        model_server = asked(server.url)
        with pytest.raises(ServerAway, match=f"could not be examined: its .*{path.rpartition('/')[2]}.*busy"):
            await examine_server(model_server, "m")
        await model_server.aclose()


async def test_a_run_does_not_keep_how_a_server_is_asked_that_could_not_be_examined():
    count = Counter()

    async def models(writer):
        count["asked"] += 1
        writer.write(answer(PAGES["/v1/models"]) if count["asked"] > 4 else NO_ANSWERS["busy"])

    async with hostile(pages("", b"", 0) | {"/v1/models": models}) as server:
        env = made(servers=[ServerConfig(base_url=f"{server.url}/v1", model_name="m")])
        (policy,) = env.policy._servers
        policy.chat.server.first_wait_s = policy.chat.server.longest_wait_s = 0.001
        with pytest.raises(PolicyError, match="could not be examined"):
            await policy._decide_in_a_rollout()
        await policy._decide_in_a_rollout()
        assert policy.facts.kind == "vllm"
        await policy.aclose()


def test_a_tokenizer_that_a_hub_did_not_give_is_an_error_and_no_weaker_wire(monkeypatch):
    tokenizer, count = Tokenizer.from_file(str(EMBEDDED_TOKENIZER_DIR / "tokenizer.json")), Counter()

    def from_pretrained(name):
        count["asked"] += 1
        if count["asked"] == 2:
            raise TimeoutError("the hub does not answer")
        return tokenizer

    monkeypatch.setattr(Tokenizer, "from_pretrained", staticmethod(from_pretrained))
    server = ServerConfig(base_url="http://127.0.0.1:9/v1", model_name="m", family="chatml")
    with pytest.raises(ConfigError, match="the hub does not answer"):
        made(servers=[server], tokenizer_name="hub/name")
    made(servers=[server], tokenizer_name="hub/name")


class _Engine:
    """An engine that does not answer at first."""

    def __init__(self):
        self.asked = 0

    def image(self, name):
        self.asked += 1
        if self.asked == 1:
            raise engines.EngineError("it is restarting", None)
        return engines.Image(id=name, digest=name, env=())

    def pull(self, name):
        raise AssertionError(f"{name} is there")


def test_an_image_of_which_an_engine_did_not_answer_is_asked_for_again():
    managed = ContainerManager(_Engine())
    with pytest.raises(IsolationError, match="it is restarting"):
        managed.image("img", str)
    assert managed.image("img", str).id == "img"


def test_a_docker_engine_that_did_not_answer_is_asked_again(monkeypatch):
    real, count = engines.docker.from_env, Counter()

    def from_env(**options):
        count["asked"] += 1
        if count["asked"] == 1:
            raise engines.docker.errors.DockerException("connection refused")
        return real(**options)

    monkeypatch.setattr(engines.docker, "from_env", from_env)
    engines.connect.cache_clear()
    with pytest.raises(IsolationError, match="no Docker engine answers"):
        engines.connect()
    if os.path.exists("/var/run/docker.sock"):  # noqa: PTH110
        assert engines.connect().arch
