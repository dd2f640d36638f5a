"""A real language model: SmolLM2-135M-Instruct in llama.cpp's own server, by ids and by messages."""

import asyncio
import os
import re
import subprocess
from collections import Counter
from functools import cache
from statistics import fmean

import pytest

from environments.trajectory import compact_floats
from tests.environments.real_model.looking_env import HOLDS
from tests.environments.real_model.smol import Kind, gaps, play, sampled_turns, torch_model
from tests.environments.real_model.smol_envs import Chat, LongTalk, OpenAIProgram, ShownLooking
from tests.environments.serve.loopback import TURNWISE, running
from tests.tables import cases

pytestmark = pytest.mark.timeout(600)
ON = {"on_cut": "respond"}
FEW = {"max_concurrent_rollouts": 2}
"""So that the server reads a long prompt that all rollouts share twice, not once for each of its slots."""
CHAT = {"server_type": "chat"}
KINDS = {
    "tools": Kind(env=ShownLooking, settings=FEW),
    "chat": Kind(env=Chat, settings={**ON, "group_size": 3}),
    "program": Kind(env=OpenAIProgram, settings={"group_size": 2}),
    "long": Kind(env=LongTalk, settings={**ON, "group_size": 2}),
    "long by messages": Kind(env=LongTalk, server=CHAT, settings={**ON, "group_size": 2}),
    "tools by messages": Kind(env=ShownLooking, server=CHAT | {"tools": "prompt"}, settings=FEW),
    "chat by messages": Kind(env=Chat, server=CHAT, settings={**ON, "group_size": 2}),
}
BY_IDS = [name for name, kind in KINDS.items() if not kind.server]


@pytest.fixture(scope="module")
def smol():
    """URL and tokenizer's folder, as `turnwise smol` prints them."""
    if not os.environ.get("TURNWISE_REQUIRE_SMOL"):
        pytest.importorskip("xllamacpp", reason="needs xllamacpp, for a real model")
    with running([TURNWISE, "smol", "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        flags = re.compile(r"--openai.base_url (\S+)/v1 --env.tokenizer_name (\S+)")
        yield next(filter(None, map(flags.match, process.stdout))).groups()


@pytest.fixture(scope="module")
def played(smol, tmp_path_factory):
    """What came of each kind of run, made when it is first wanted."""

    @cache
    def of(name):
        return asyncio.run(play(KINDS[name], *smol, tmp_path_factory.mktemp("played") / "record.jsonl"))

    return of


def turns(rollouts):
    return [turn for each in rollouts for turn in each.turns]


def test_at_least_forty_rollouts_and_two_thousand_tokens_are_compared(played):
    rollouts = [each for name in BY_IDS for each in played(name).rollouts]
    assert len(rollouts) >= 40
    assert sum(len(ids) for _, ids, _ in sampled_turns(rollouts)) >= 2_000


@cases("name", BY_IDS)
def test_each_turn_has_the_prompt_the_ids_and_the_logprobs_that_the_server_read_and_gave(played, name):
    run = played(name)
    assert all(each.exact for each in run.rollouts)
    given = [
        (
            tuple(request["prompt"]),
            tuple(reply["tokens"]),
            tuple(compact_floats([entry["logprob"] for entry in reply["completion_probabilities"]])),
        )
        for request, reply in run.replies
    ]
    # A probe of the end token is among them, too.
    assert Counter(tuple(map(tuple, turn)) for turn in sampled_turns(run.rollouts)) <= Counter(given)


@cases("name", BY_IDS)
def test_a_rollout_is_one_row(played, name):
    assert {len(each.rows) for each in played(name).rollouts} == {1}


def test_turns_that_are_cut_and_turns_that_end_by_their_end_token_are_among_them(played):
    reasons = Counter(turn.finish_reason for turn in turns(played("chat").rollouts))
    assert min(reasons["length"], reasons["stop"]) >= 10


@cases("name", ["tools", "tools by messages"])
def test_tools_in_the_prompt_are_called_and_answered(played, name):
    results = [result.content for turn in turns(played(name).rollouts) for result in turn.tool_results]
    assert sum(result in HOLDS.values() for result in results) >= 5


@cases("name", ["tools by messages", "chat by messages"])
def test_by_messages_a_turn_has_the_text_that_the_server_gave_and_is_not_exact(played, name):
    run = played(name)
    assert not any(each.exact for each in run.rollouts)
    given = Counter(reply["choices"][0]["message"]["content"] for _, reply in run.replies)
    texts = Counter(turn.message.content for turn in turns(run.rollouts) if not turn.message.tool_calls)
    assert texts <= given


@cases("name", ["long", "long by messages"])
def test_a_conversation_beyond_the_window_ends_as_such(played, name):
    assert {(len(each.turns), each.stop_reason) for each in played(name).rollouts} == {
        (1, "context_overflow")
    }


def test_a_program_for_the_openai_client_has_its_three_turns_in_one_row(played):
    assert {(len(each.turns), len(each.rows)) for each in played("program").rollouts} == {(3, 1)}


def test_the_logprobs_are_those_of_one_pass_of_the_weights_in_torch(played):
    if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="needs torch, for a real model")
    assert fmean(gaps(torch_model(), played("chat").rollouts)) <= 0.1
