"""How a server is asked: found out once at the start, over real HTTP, from the settings of a run."""

import logging
import shutil

import pytest
from rich.console import Console
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase

from environments.config import ServerConfig
from environments.credit.ledger import ledger
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.record.recorder import read_groups
from environments.record.totals import Summary
from environments.rollout.agent_loop import opening_messages
from environments.run.process_run import process
from environments.serve.serving import serve
from environments.trajectory import StopReason
from tests.environments.policy.token_server import ALL_WIRES, server_type_of
from tests.environments.write_file import ITEMS, group_from, made
from tests.equipment.quirky_server import Quirk, QuirkyServer
from tests.equipment.running_server import running_server
from tests.equipment.server_quirks import quirks_named
from tests.tables import cases
from tools.errors import ConfigError, ServerAway

FOLDER = str(EMBEDDED_TOKENIZER_DIR)
OWN = {"tokenizer_name": FOLDER}


def mock(env, **settings):
    """The scripted agent of an environment behind a server."""

    def script_for(messages):
        task = (
            messages[-1].content
            if len(messages) == 1
            else next(m.content for m in messages if m.role == "user")
        )
        item = next(item for item in ITEMS if env.format_prompt(item) == task)
        return lambda conversation, tools, skill: env.scripted_choices(item, conversation, tools, skill)

    return mock_app(script_for, skill=0.6, renderer=env.renderer, settings=MockSettings(**settings))


def asking(base_url, **fields):
    return ServerConfig(**{"base_url": base_url, "model_name": "scripted", "family": "chatml", **fields})


async def found(server, tokenizer=FOLDER, **settings):
    """What is said at the start of a run."""
    lines = []
    async with running_server(mock(made(), **settings)) as base_url:
        env = made(servers=[asking(base_url, **server)], tokenizer_name=tokenizer)
        async with env.opened(notify=lines.append):
            pass
    (line,) = lines
    return line.removeprefix(f"{base_url} is ")


@cases("wire", ALL_WIRES, ids="-".join)
async def test_a_run_over_a_token_wire_records_what_the_scripted_agent_does(wire, tmp_path):
    kind, name = wire
    scripted, path = made(), tmp_path / "r.jsonl"
    expected = await group_from(scripted)
    async with running_server(mock(scripted, kind=kind)) as base_url:
        server = asking(base_url, server_type=server_type_of(kind, name))
        env = made(servers=[server], data_path_to_save_groups=str(path), **OWN)
        assert await process(env, Console()) == 0
    recorded = next(each for each in read_groups(path) if each.group.item_id == expected.group.item_id)
    rows = [trajectory.rows for trajectory in recorded.group.trajectories]
    assert rows == [trajectory.rows for trajectory in expected.group.trajectories]
    assert all(len(trajectory.rows) == 1 for trajectory in recorded.group.trajectories)


@cases(
    ("server", "asked", "said"),
    [
        (
            {"kind": "vllm"},
            {},
            "vllm 0.33.0, window 131072 tokens; it gets token ids (completions, chat format chatml)",
        ),
        (
            {"kind": "sglang"},
            {},
            "sglang 0.5.23, window 131072 tokens; it gets token ids (generate, chat format chatml)",
        ),
        ({"kind": "plain"}, {}, "a server that does not say what it is; it is asked by messages"),
        (
            {"kind": "vllm"},
            {"tokenizer": "embedded"},
            "it is asked by messages: token ids need the model's own tokenizer",
        ),
        ({"kind": "vllm"}, {"family": None}, "it gets token ids (completions, chat format template)"),
    ],
    ids=["vllm", "sglang", "plain", "no tokenizer", "template"],
)
async def test_auto_says_what_it_found(server, asked, said):
    tokenizer = asked.pop("tokenizer", FOLDER)
    assert said in await found(asked, tokenizer=tokenizer, **server)


async def test_the_only_model_is_taken_and_named_and_gives_the_chat_format():
    server = {"model_name": "default", "family": None}
    said = await found(server, kind="vllm", model="qwen3-tiny")
    assert "its only model qwen3-tiny; it gets token ids (completions, chat format qwen3)" in said


async def test_a_model_whose_name_is_default_is_asked_by_ids():
    server = {"model_name": "default", "family": None}
    assert "it gets token ids" in await found(server, kind="vllm", model="default")


async def test_a_server_without_the_wire_that_is_named_is_not_waited_for():
    with pytest.raises(ConfigError, match="is it llama") as refused:
        await found({"server_type": "llama.cpp"})
    assert not isinstance(refused.value, ServerAway)


async def test_the_window_is_a_setting():
    async with running_server(mock(made(), kind="vllm")) as base_url:
        credited = await group_from(made(servers=[asking(base_url, context_tokens=16)], **OWN))
    for failure in credited.group.failures:
        assert "no turn was finished: context_overflow" in failure.error
        assert failure.error.endswith("leave no room in the 16 of the model's window)")


@cases(
    ("server", "fields", "problem"),
    [
        ({"server_type": "vllm"}, {}, "need the model's own tokenizer; name it with --env.tokenizer_name"),
        ({"server_type": "vllm", "extra_body": {"tool_choice": "auto"}}, OWN, "acts on messages"),
        ({"family": "klingon"}, {}, "no chat format 'klingon'"),
    ],
    ids=["tokenizer", "messages", "no-family"],
)
def test_settings_that_cannot_work_are_refused_when_the_environment_is_made(server, fields, problem):
    with pytest.raises(ConfigError) as refused:
        made(servers=[asking("http://127.0.0.1:9/v1", **server)], **fields)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_server_with_another_tokenizer_is_refused_at_the_start(tmp_path):
    vocabulary = Tokenizer.from_file(f"{FOLDER}/tokenizer.json")
    vocabulary.normalizer = Lowercase()
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ConfigError, match=r"is not the tokenizer of http.*: 'Hello, world!' has from token 0 on"
    ):
        await found({}, tokenizer=str(tmp_path), kind="vllm")


@cases(
    ("template", "problem"),
    [
        (None, "the chat format of 'scripted' is not known: "),
        ("{{ raise_exception('no') }}", "given a user message, raises 'no'"),
    ],
    ids=["no-template", "raises"],
)
def test_a_folder_without_a_usable_template_is_refused_when_ids_are_required(template, problem, tmp_path):
    shutil.copy(EMBEDDED_TOKENIZER_DIR / "tokenizer.json", tmp_path)
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError) as refused:
        made(
            servers=[asking("http://127.0.0.1:9/v1", server_type="sglang", family=None)],
            tokenizer_name=str(tmp_path),
        )
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_tools_in_the_prompt_are_announced():
    said = await found({"server_type": "chat", "tools": "prompt"}, kind="vllm")
    assert said.endswith("it is asked by messages, tools in the prompt")


async def test_a_server_of_another_kind_is_refused_at_the_start():
    with pytest.raises(ConfigError, match=r"--openai\.server_type vllm: .* says that it is sglang"):
        await found({"server_type": "vllm"}, kind="sglang")


async def test_a_server_of_another_kind_may_be_one_of_several():
    scripted = made()
    expected = await group_from(scripted)
    async with (
        running_server(mock(scripted, kind="vllm")) as tokens,
        running_server(mock(scripted)) as messages,
    ):
        credited = await group_from(made(servers=[asking(tokens), asking(messages)], **OWN))
    assert [t.rows for t in credited.group.trajectories] == [t.rows for t in expected.group.trajectories]


async def test_settings_that_logprobs_do_not_follow_are_warned_of_once(caplog):
    async with running_server(mock(made(), kind="vllm")) as base_url:
        with caplog.at_level(logging.WARNING):
            env = made(servers=[asking(base_url, temperature=0.5)], **OWN)
            await group_from(env)
            await group_from(env)
    warned = [
        record for record in caplog.records if "--logprobs-mode processed_logprobs" in record.getMessage()
    ]
    assert len(warned) == 1


async def test_a_turn_that_is_cut_where_the_window_ends_ends_its_rollout_there():
    async with running_server(mock(made(), kind="vllm")) as base_url:
        env = made(servers=[asking(base_url)], **OWN)
        prompt = len(env.renderer.prompt_ids(prompt_of(env), env.toolset.specs))
        small = made(servers=[asking(base_url, context_tokens=prompt + 5)], **OWN)
        credited = await group_from(small)
    ends = {
        (t.stop_reason, len(t.turns), len(t.rows[0].token_ids) - prompt) for t in credited.group.trajectories
    }
    assert ends == {(StopReason.CONTEXT_OVERFLOW, 1, 5)}


def prompt_of(env):
    return opening_messages(env.format_prompt(ITEMS[0]), system=env.system_prompt, env=env.name)


async def test_tokens_of_text_are_counted_by_the_server_in_record_ledger_and_summary(tmp_path):
    def count(reply):
        reply["usage"] |= {"prompt_tokens": 39, "completion_tokens": 24}

    path = tmp_path / "r.jsonl"
    server = QuirkyServer(mock(made()), [*quirks_named(["llamacpp-no-ids"]), Quirk(replies=count)])
    async with running_server(server) as base_url:
        env = made(servers=[asking(base_url)], data_path_to_save_groups=str(path))
        assert await process(env, Console()) == 0
    credited, *_ = read_groups(path)
    turns = [turn for trajectory in credited.group.trajectories for turn in trajectory.turns]
    assert {(turn.prompt_tokens, turn.sampled_tokens) for turn in turns} == {(39, 24)}
    assert {entry.tokens for entries in ledger(credited) for entry in entries} == {24}
    summary = Summary()
    summary.add(credited)
    numbers = summary.values()
    assert (numbers["tokens"]["approximate"], numbers["tokens"]["prompts"]) == (
        24 * len(turns),
        39 * len(turns),
    )


async def test_serve_refuses_a_server_of_text_alone_at_its_start():
    async def models(request):
        return JSONResponse({"data": [{"id": "scripted", "owned_by": "llamacpp"}]})

    app = Starlette(routes=[Route("/v1/models", models)])
    async with running_server(app) as base_url:
        env = made(servers=[ServerConfig(base_url=base_url, model_name="scripted")], credit_view="turn_rows")
        with pytest.raises(
            ConfigError, match=r"is llama\.cpp; it is asked by messages: .*, and gives no token ids"
        ):
            await serve(env, Console())
