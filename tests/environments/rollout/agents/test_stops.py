"""Stop texts of a request: the row keeps them, the agent's text ends before them."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from environments.config import ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from tests.environments.rollout.agents.recorded import (
    ADD,
    Sums,
    Talk,
    ask,
    played,
    post,
    roll_out,
    rolled_out,
    user,
)
from tests.environments.test_row_contract import contexts
from tests.equipment.running_server import running_server
from turnwise import Choice, Completion, call, say

RENDERER = ChatMLRenderer.embedded()
TURNS = 10
WIRES = {
    "in process": None,
    "plain": ("plain", "chat"),
    "vllm by messages": ("vllm", "chat"),
    "sglang by messages": ("sglang", "chat"),
    "vllm": ("vllm", "vllm"),
    "vllm_generate": ("vllm", "vllm_generate"),
    "sglang": ("sglang", "sglang"),
    "sglang_chat": ("sglang", "sglang_chat"),
    "llama.cpp": ("llama.cpp", "llama.cpp"),
}


def react(messages, tools, skill):
    """Thinks, acts, and invents an observation unless it is stopped."""
    step = sum(message.role == "assistant" for message in messages)
    text = f"Thought: {'all ' * step}right.\nAction: look {step}\nObservation: nothing but {step}"
    return [Choice(probability=0.5, message=say(text)), Choice(probability=0.5, message=say(f"So: {text}"))]


class React(Talk):
    """Ten turns of an agent that stops the model at its observations."""

    def scripted_choices(self, item, messages, tools, skill):
        return react(messages, tools, skill)

    async def play(self, item, ctx):
        history = [user("Look around.")]
        for turn in range(TURNS):
            history.append(await ask(ctx.endpoint, *history, stop=["Observation:"]))
            history.append(user(f"Observation: {turn}"))


@asynccontextmanager
async def _server(wire):
    if wire is None:
        yield {}
        return
    kind, server_type = wire
    app = mock_app(lambda messages: react, skill=1.0, renderer=RENDERER, settings=MockSettings(kind=kind))
    async with running_server(app) as url:
        server = ServerConfig(base_url=url, model_name="scripted", server_type=server_type, family="chatml")
        yield {"servers": [server], "tokenizer_name": str(EMBEDDED_TOKENIZER_DIR)}


@pytest.mark.parametrize("wire", [each for each in WIRES if each != "plain"])
async def test_ten_turns_that_stop_at_a_text_are_one_row_with_every_sampled_id(wire):
    async with _server(WIRES[wire]) as where:
        credited = await roll_out(React, **where)
    (trajectory,) = credited.group.trajectories
    assert [turn.fork for turn in trajectory.turns] == [None] * TURNS
    assert (len(trajectory.rows), trajectory.exact) == (1, True)
    row = trajectory.rows[0].token_ids
    for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
        assert RENDERER.prompt_ids(seen, ()) == row[: turn.span.start]
        sampled = RENDERER.decode(row[turn.span.start : turn.span.end])
        assert sampled == turn.message.content
        # llama.cpp drops the log-probabilities of a stop text, so that its tokens leave the turn.
        assert sampled.endswith("\nObservation:") != (wire == "llama.cpp")


async def test_a_server_that_removes_the_stop_text_and_gives_no_ids_plays_too():
    async with _server(WIRES["plain"]) as where:
        (trajectory,) = (await roll_out(React, **where)).group.trajectories
    assert {turn.message.content.rpartition("\n")[2] for turn in trajectory.turns} == {""}


async def test_the_agent_gets_the_text_before_the_stop():
    async def play(self, item, ctx):
        _, answer, _ = await post(ctx.endpoint, {"messages": [user("x")], "stop": "Observation:"})
        (choice,) = answer["choices"]
        assert choice["message"]["content"].endswith("look 0\n")
        assert choice["finish_reason"] == "stop"

    credited = await roll_out(played(React, play))
    assert len(credited.group.trajectories) == 1


async def test_a_reply_of_the_messages_api_names_the_stop_sequence():
    async def play(self, item, ctx):
        body = {"max_tokens": 99, "messages": [user("x")], "stop_sequences": ["Observation:"]}
        _, answer, _ = await post(ctx.endpoint, body, "/messages")
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "Observation:")

    credited = await roll_out(played(React, play))
    assert len(credited.group.trajectories) == 1


@pytest.mark.parametrize("returned", [str.strip, lambda text: f"{text}Observation:", str])
def test_an_agent_may_return_the_text_stripped_or_with_its_stop(returned):
    async def play(self, item, ctx):
        history = [user("x")]
        for _ in range(3):
            answer = await ask(ctx.endpoint, *history, stop=["Observation:"])
            history += [{**answer, "content": returned(answer["content"])}, user("go on")]

    (trajectory,) = rolled_out(played(React, play))
    assert [turn.fork for turn in trajectory.turns] == [None] * 3


class _Endless:
    """A policy that ignores stop texts."""

    name = "endless"

    async def complete(self, request):
        message = say("Done.\nObservation: made up")
        row, new = request.row, request.messages[request.row.messages if request.row else 0 :]
        prompt = (
            RENDERER.prompt_ids(new, ())
            if row is None
            else RENDERER.extend(row.token_ids[row.sampled_start :], new)
        )
        ids = RENDERER.completion_ids(message)
        return Completion(
            message=message, finish_reason="stop", prompt_ids=prompt, extends_row=row is not None,
            token_ids=ids, logprobs=(-0.5,) * len(ids), exact=True,
        )  # fmt: skip


async def test_what_a_policy_writes_after_the_stop_stays_in_the_row_trained_and_the_agent_never_sees_it():
    got = []

    class Plays(React):
        async def play(self, item, ctx):
            first = await ask(ctx.endpoint, user("x"), stop=["Observation:"])
            got.append(first["content"])
            await ask(ctx.endpoint, user("x"), first, user("y"), stop=["Observation:"])

    credited = await roll_out(Plays, policy=_Endless())
    (trajectory,) = credited.group.trajectories
    assert got == ["Done.\n"]
    assert [turn.message.content for turn in trajectory.turns] == ["Done.\nObservation: made up"] * 2
    assert ([turn.fork for turn in trajectory.turns], trajectory.turns[0].trained) == ([None, None], True)


@pytest.mark.parametrize(("text", "kept"), [("Observation:", 1), ("Observation: 3", 0)])
async def test_calls_are_handed_out_unless_text_follows_the_stop(text, kept):
    got = []

    class Calls(_Endless):
        async def complete(self, request):
            given = call("add", {"a": 1, "b": 2}, content=text)
            ids = RENDERER.completion_ids(given)
            calls = tuple(replace(each, id="call_1") for each in given.tool_calls)
            return Completion(
                message=replace(given, tool_calls=calls), finish_reason="tool_calls",
                prompt_ids=RENDERER.prompt_ids(request.messages, ()),
                token_ids=ids, logprobs=(-0.5,) * len(ids), exact=True,
            )  # fmt: skip

    class Plays(Sums):
        async def play(self, item, ctx):
            body = {"messages": [user("x")], "tools": [ADD], "stop": "Observation:"}
            _, answer, _ = await post(ctx.endpoint, body)
            got.append(answer["choices"][0])

    await roll_out(Plays, policy=Calls())
    assert len(got[0]["message"].get("tool_calls", ())) == kept
    assert got[0]["finish_reason"] == ("tool_calls" if kept else "stop")
