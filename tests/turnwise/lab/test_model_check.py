"""What a model server gives, found out over real HTTP: mocks with the quirks of real ones."""

import json
import time
from contextlib import asynccontextmanager

import pytest
from tokenizers.normalizers import Lowercase

from environments.config import ServerConfig
from environments.policy.inference.model_server import ModelServer
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED, CannotExtendError, ChatMLRenderer, load_tokenizer
from environments.policy.scripted import Choice, say
from environments.trajectory import Message
from tests.equipment.quirky_server import Quirk, QuirkyServer
from tests.equipment.running_server import running_server
from tests.equipment.server_quirks import SERVERS, openai_error, quirks_named
from tests.tables import cases
from tools.calls import ToolCall
from turnwise.lab.model_check import CheckedModel, check_model

RENDERER = ChatMLRenderer.embedded()
CITIES = ("Paris", "Oslo", "Lima")


def script(messages, tools, skill):
    """What a model that was taught tools does."""
    if tools and messages[-1].role == "user" and "Thank you" not in messages[-1].content:
        calls = [ToolCall(id="", name="get_weather", arguments=json.dumps({"city": each})) for each in CITIES]
        return [Choice(probability=1, message=Message(role="assistant", tool_calls=tuple(calls)))]
    words = ["apple", "stone", "cloud", "letter", "green", "seven"]
    return [Choice(probability=1 / 6, message=say(f"{each} {each}", reasoning="Hm.")) for each in words]


@asynccontextmanager
async def asked(
    *quirks, model="scripted", renderer=None, tokenizer=None, given=None, timeout_s=20.0, **settings
):
    """What is examined: a mock with these quirks."""
    app = mock_app(lambda _: script, skill=1, renderer=RENDERER, settings=MockSettings(**settings))
    own = [each for each in quirks if isinstance(each, Quirk)]
    named = quirks_named([each for each in quirks if isinstance(each, str)])
    async with running_server(QuirkyServer(app, [*named, *own])) as base_url:
        server = ModelServer(
            base_url=base_url, api_key="k", tries=2, first_wait_s=0.001, longest_wait_s=0.002,
            request_timeout_s=timeout_s,
        )  # fmt: skip
        yield CheckedModel(
            server=server, model=model, renderer=renderer, tokenizer_name="folder", tokenizer=tokenizer,
            settings=given or ServerConfig(),
        )  # fmt: skip
        await server.aclose()


async def examined(*quirks, **settings):
    async with asked(*quirks, **settings) as each:
        examination = await check_model(each)
    return examination, {finding.name: finding for finding in examination.findings}


def verdicts(findings, *names):
    return tuple(findings[name].verdict for name in names)


async def test_a_server_that_gives_all_is_exact():
    examination, findings = await examined()
    assert examination.tokens == "exact"
    assert set(
        verdicts(findings, "token ids", "logprobs", "prefix", "tool calls", "user after a result")
    ) == {"ok"}
    assert findings["long prompt"].verdict == "ok"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_token_wires_and_our_own_chat_format_lead_to_ids(kind):
    examination, findings = await examined(kind=kind, renderer=RENDERER)
    assert verdicts(findings, "server", "window", "chat format chatml", "read alike") == ("ok",) * 4
    assert sum(name.startswith("ids over") and each.verdict == "ok" for name, each in findings.items()) == 2
    assert f"--openai.server_type {kind}" in examination.flags
    assert "--openai.family chatml" in examination.flags


async def test_ids_of_llama_cpp_are_recommended_though_its_messages_have_none():
    tokenizer = load_tokenizer(EMBEDDED)
    examination, findings = await examined(kind="llama.cpp", renderer=RENDERER, tokenizer=tokenizer)
    assert verdicts(findings, "token ids", "tokenizer", "ids over /completion") == ("no", "ok", "ok")
    assert findings["token ids"].advice == ""
    assert "--openai.server_type llama.cpp" in examination.flags


async def test_no_more_than_two_replies_of_a_check_are_long():
    asked = []

    await examined(Quirk(refuses=lambda fields: asked.append(fields["max_tokens"])))
    assert sorted(asked)[-3:] == [16, 1024, 1024]


async def test_a_server_that_fails_at_a_cut_call_can_play():
    def refuse(fields):
        is_cut = fields["max_tokens"] == 16 and fields.get("tools")
        return openai_error(500, "error parsing tool call: unexpected end of JSON input") if is_cut else None

    for named in ((), ("llamacpp-no-ids",)):
        _, findings = await examined(Quirk(refuses=refuse), *named)
        assert "tool results" not in findings
        assert verdicts(findings, "tools", "tool calls", "user after a result") == ("ok",) * 3


async def test_ids_are_refused_where_the_tokenizer_is_not_the_servers():
    other = load_tokenizer(EMBEDDED)
    other.normalizer = Lowercase()
    examination, findings = await examined(kind="vllm", renderer=RENDERER, tokenizer=other)
    assert "'Hello, world!' has from token 0 on the ids" in findings["tokenizer"].seen
    assert "--openai.server_type chat" in examination.flags
    _, findings = await examined(kind="vllm", renderer=RENDERER, tokenizer=load_tokenizer(EMBEDDED))
    assert findings["tokenizer"].verdict == "ok"


async def test_wires_without_a_tokenizer_are_told_of():
    examination, _ = await examined(kind="vllm")
    assert "--openai.server_type chat" in examination.flags
    assert "It takes ids, too" in examination.conclusion


class Misreading(ChatMLRenderer):
    def parse(self, token_ids, tools=()):
        return Message(role="assistant", content="other")


async def test_a_chat_format_that_reads_other_text_is_never_recommended():
    tokenizer = RENDERER._tokenizer
    examination, findings = await examined(kind="vllm", renderer=Misreading(tokenizer))
    assert findings["read alike"].verdict == "no"
    assert "--openai.server_type chat" in examination.flags


# Servers as they are.

TEXT_ALONE = ["openai", "llamacpp", "ollama", "openrouter", "mistral", "transformers"]


@cases("server", sorted(SERVERS))
async def test_a_real_servers_quirks_are_findings_and_it_can_be_used(server):
    examination, findings = await examined(server)
    assert findings["tool calls"].verdict == "ok"
    assert examination.tokens == ("text" if server in TEXT_ALONE else "exact")


async def test_a_server_that_takes_ids_is_not_called_text_alone():
    examination, findings = await examined("llamacpp")
    assert findings["server"].seen == "llama.cpp"
    assert findings["token ids"].advice == "it takes and gives ids: add --tokenizer NAME"
    assert "It takes ids, too: with --tokenizer NAME" in examination.conclusion


@cases(
    ("quirk", "name", "seen"),
    [
        ("openai", "token ids", "the replies have text alone"),
        ("mistral-roles", "user after a result", "Unexpected role 'user' after role 'tool'"),
        ("vllm-no-parser", "tool calls", "as text, in the format chatml"),
    ],
)
async def test_what_a_server_does_not_do_is_named(quirk, name, seen):
    examination, findings = await examined(quirk)
    assert findings[name].verdict == "no"
    assert seen in findings[name].seen
    assert ("--openai.family chatml" in examination.flags) == (quirk == "vllm-no-parser")


async def test_a_server_that_takes_no_tools_cannot_be_used_and_the_flag_is_named():
    why = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    no_tools = Quirk(refuses=lambda asked: openai_error(400, why) if asked.get("tools") else None)
    examination, findings = await examined(no_tools)
    assert examination.tokens == "none"
    assert "--enable-auto-tool-choice" in findings["chat"].seen


# Servers with mistakes.


def not_finite(reply):
    if (logprobs := reply["choices"][0].get("logprobs")) is not None:
        logprobs["content"][-1]["logprob"] = -99999.0


def shifted(reply):
    reply["choices"][0]["token_ids"] = [*reply["choices"][0].get("token_ids", [])][:-1]


@pytest.mark.parametrize(
    ("broken", "seen"),
    [(not_finite, "logprob -99999.0"), (shifted, "logprobs for")],
    ids=["clamped", "shifted"],
)
async def test_a_server_whose_tokens_do_not_fit_together_cannot_be_used_as_in_a_run(broken, seen):
    def unless_text(reply):
        if "token_ids" in reply["choices"][0]:
            broken(reply)

    examination, findings = await examined(Quirk(replies=unless_text))
    assert examination.tokens == "none"
    assert seen in findings["chat"].seen


async def test_ids_in_the_first_reply_alone_are_not_called_exact():
    def of_first_turn(reply):
        if "tokens" in replies:
            for name in ("token_ids", "logprobs"):
                reply["choices"][0].pop(name, None)
            reply.pop("prompt_token_ids", None)
        replies.append("tokens")

    replies = []
    examination, findings = await examined(Quirk(replies=of_first_turn))
    assert findings["token ids"].verdict == "ok"
    assert "gave no token ids this time" in findings["later turns"].seen
    assert (examination.tokens, examination.flags) == ("none", ())


class Forking(ChatMLRenderer):
    def extend(self, sampled, messages, tools):
        raise CannotExtendError("the template drops the reasoning")


async def test_rows_that_a_chat_format_forks_are_told_of():
    examination, findings = await examined(kind="vllm", renderer=Forking(RENDERER._tokenizer))
    assert "rows fork: renderer: the template drops the reasoning" in findings["ids over /completions"].seen
    assert "Rows fork" in examination.conclusion
    assert "--openai.server_type vllm" in examination.flags


async def test_a_server_that_hangs_is_not_asked_three_times_over():
    def hang(fields):
        asked.append(fields)
        time.sleep(2)

    asked = []
    examination, _ = await examined(Quirk(refuses=hang), timeout_s=1.5)
    assert "timed out after 1.5 s" in examination.conclusion
    assert len(asked) == 2


async def test_the_temperature_of_a_run_is_tried():
    def refuse(fields):
        return openai_error(400, "temperature is not supported") if fields.get("temperature") == 0.5 else None

    examination, _ = await examined(Quirk(refuses=refuse), given=ServerConfig(temperature=0.5))
    assert "set --openai.temperature to 1" in examination.conclusion


async def test_a_template_that_writes_a_turn_otherwise_forks_and_is_told_why():
    # The thoughts that were sampled are in no later prompt, as with templates that drop reasoning.
    _, findings = await examined(Quirk(replies=without_thoughts))
    assert findings["prefix"].verdict == "no"
    assert "drops the reasoning" in findings["prefix"].seen


def without_thoughts(reply):
    think = RENDERER._control["</think>"][0]
    ids = list(reply.get("prompt_token_ids", ()))
    if think in ids:
        start = ids.index(RENDERER._control["<think>"][0])
        reply["prompt_token_ids"] = ids[:start] + ids[ids.index(think) + 1 :]


async def test_tools_that_the_template_drops_are_named_with_the_setting_that_helps():
    def count(reply):
        reply["usage"]["prompt_tokens"] = 39

    def call_nothing(reply):
        choice = reply["choices"][0]
        choice["message"] |= {"content": "Sunny.", "tool_calls": []}
        choice["finish_reason"] = "stop"

    examination, findings = await examined(
        "llamacpp-no-ids", Quirk(replies=count), Quirk(replies=call_nothing)
    )
    assert findings["tools"].seen == "its template drops them, 39 prompt tokens with and without"
    assert "--openai.tools prompt" in findings["tools"].advice
    assert findings["tool calls"].advice == ""
    assert "--openai.tools prompt" in examination.flags


async def test_tools_that_are_in_the_prompt_make_it_longer():
    _, findings = await examined()
    assert findings["tools"].verdict == "ok"


def cut(reply):
    reply["usage"]["prompt_tokens"] = min(reply["usage"]["prompt_tokens"], 4096)


async def test_a_prompt_that_is_cut_in_silence_is_told():
    _, findings = await examined("llamacpp-no-ids", Quirk(replies=cut))
    assert findings["long prompt"].seen == "cut in silence: 4096 tokens of 8000 words"


async def test_a_prompt_that_is_refused_as_too_long_is_as_it_should_be():
    _, findings = await examined(context_tokens=3000)
    assert findings["long prompt"].seen == "8000 words are refused as too long"
