"""Summaries of long conversations: by the policy as turns of their own, or by a second model as context."""

import asyncio
from dataclasses import replace

import pytest
from starlette.responses import JSONResponse

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, SummariserConfig
from environments.policy.scripted import Choice, call, say
from environments.record.group_line import decode_group, encode_group
from environments.record.summary import summary_rows
from environments.record.totals import Summary
from environments.rollout import agent_loop, model_calls
from environments.rollout.context import SUMMARY_HEADING, SUMMARY_REQUEST, summarise
from environments.rollout.simulated_user import SimulatedUser
from environments.trajectory import IGNORED, Failure, Message, StopReason
from environments.wire.views import list_scores
from tests.environments.policy.chat_server import Server
from tests.environments.policy.text_server import playing, said
from tests.environments.rollout.condensed_play import BUDGET, OPENING, Recorded, Step, played
from tests.environments.talking import TASK, Talking
from tests.equipment.running_server import running_server

LOOKS = [Step(results=("word " * 20,)) for _ in range(6)]
LONG = [Step(results=("word " * 60,)) for _ in range(6)]
EVERY_TWO = summarise(every=2)


async def test_a_summary_is_asked_after_all_that_came_before_and_goes_on_in_its_row():
    rollout = await played(EVERY_TWO, steps=LOOKS)
    asked = rollout.requests[3]
    assert asked.kind == "summary"
    assert asked.messages[:-1] == rollout.conversation[: len(OPENING) + 6]
    assert asked.messages[-1] == Message(role="user", content=SUMMARY_REQUEST)
    assert (rollout.turns[3].span.row, rollout.turns[3].fork) == (0, None)


async def test_the_next_act_sees_opening_summary_and_last_turn():
    rollout = await played(EVERY_TWO, steps=LOOKS, summaries=["All read."])
    seen = rollout.requests[4].messages
    assert [message.role for message in seen] == ["system", "user", "user", "assistant", "tool"]
    assert seen[2].content == f"{SUMMARY_HEADING}\n\nAll read."


async def test_a_new_summary_takes_the_place_of_the_one_before():
    rollout = await played(EVERY_TWO, steps=LOOKS, summaries=["first", "second"])
    texts = [[each.content for each in seen if SUMMARY_HEADING in each.content] for seen in rollout.seen]
    assert [len(each) for each in texts] == [0, 0, 0, 1, 1, 1, 1]
    assert "first" in texts[4][0]
    assert "second" in texts[5][0]


async def test_summaries_are_no_acts_of_the_turn_limit():
    rollout = await played(EVERY_TWO, steps=LOOKS, budget=replace(BUDGET, max_turns=5))
    assert rollout.loop.stop_reason is StopReason.MAX_TURNS
    assert [turn.kind for turn in rollout.turns].count("act") == 5


@pytest.mark.parametrize(
    "text",
    ["", "I cannot help with that.", "<think>so</think>", call("read", {})],
    ids=["empty", "a refusal", "reasoning alone", "a call"],
)
async def test_a_summary_may_say_nothing(text):
    rollout = await played(EVERY_TWO, steps=LOOKS, summaries=[text])
    assert rollout.loop.stop_reason is StopReason.COMPLETED
    assert [turn.tool_results for turn in rollout.turns if turn.kind == "summary"] == [(), ()]
    assert "think" not in rollout.seen[-1][2].content


async def test_a_summary_that_is_cut_is_one():
    budget = replace(BUDGET, max_tokens_per_turn=20)
    rollout = await played(EVERY_TWO, steps=LOOKS, summaries=["word " * 90], budget=budget)
    assert {turn.finish_reason for turn in rollout.turns if turn.kind == "summary"} == {"length"}
    assert rollout.loop.stop_reason is StopReason.COMPLETED


async def test_a_summary_that_uses_up_the_tokens_ends_the_rollout_and_stays():
    whole = await played(EVERY_TWO, steps=LOOKS)
    spent = sum(turn.span.end - turn.span.start for turn in whole.turns[:3])
    budget = replace(BUDGET, token_budget=spent + 2)
    rollout = await played(EVERY_TWO, steps=LOOKS, budget=budget)
    assert rollout.loop.stop_reason is StopReason.TOKEN_BUDGET
    assert [turn.kind for turn in rollout.turns] == ["act"] * 3 + ["summary"]
    assert rollout.turns[3].span.end - rollout.turns[3].span.start == 2


async def test_a_summary_whose_own_prompt_does_not_fit_is_not_paid():
    budget = replace(BUDGET, max_row_tokens=700, max_tokens_per_turn=30)
    rollout = await played(EVERY_TWO, steps=LONG, budget=budget)
    assert rollout.loop.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert [request.kind for request in rollout.requests] == ["act"] * len(rollout.requests)
    assert "leave no room" in rollout.loop._models.stopped_by


async def test_a_summary_that_is_too_long_itself_ends_the_rollout():
    rollout = await played(summarise(max_tokens=420), steps=LONG, summaries=["word " * 180])
    assert rollout.loop.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert rollout.turns[-1].kind == "summary"
    assert max(turn.span.start for turn in rollout.acts) <= 420


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(model_calls, "monotonic", made)
    monkeypatch.setattr(agent_loop, "monotonic", made)
    return made


async def test_the_rollouts_time_ends_within_a_summary_and_the_acts_before_it_stay(clock):
    class Hanging(Recorded):
        async def complete(self, request):
            if request.kind == "summary":
                clock.now = BUDGET.timeout_s
                await asyncio.Event().wait()
            clock.now = BUDGET.timeout_s - 0.05
            return await super().complete(request)

    policy = Hanging(LOOKS, ["never said"])
    rollout = await played(summarise(every=1, keep_last=0), steps=LOOKS, policy=policy)
    assert rollout.loop.stop_reason is StopReason.TIME_BUDGET
    assert [turn.kind for turn in rollout.turns] == ["act"]


async def test_after_a_second_model_took_the_rest_of_the_time_no_act_is_paid(clock):
    async def slow(messages):
        clock.now = BUDGET.timeout_s
        return "All read."

    rollout = await played(summarise(every=2, by="model"), steps=LOOKS, summariser=slow)
    assert rollout.loop.stop_reason is StopReason.TIME_BUDGET
    assert len(rollout.requests) == len(rollout.turns) == 3


def one(**settings):
    return AgentEnvConfig(**{"group_size": 1, "min_group_size": 1} | settings)


class Asked(Talking):
    plays = ("look", "hm", "look", "hm", "look")
    says = ("one", "two", "three", "four", "five", "six", "seven")
    condenser = EVERY_TWO

    def __init__(self, config=None, servers=()):
        AgentEnv.__init__(self, config or one(), servers)
        type(self).asked_about = []

    def note(self, hook, turn):
        self.asked_about.append((hook, "start" if turn is None else turn.kind))

    def score_turn(self, item, turn, ctx):
        self.note("score_turn", turn)
        assert [message for message in ctx.messages if "sum up" in message.content.lower()] == []
        return 1.0

    def respond(self, item, turn, ctx):
        self.note("respond", turn)
        return "so" if len(ctx.turn_scores) < 4 else None

    def state_key(self, item, turn):
        self.note("state_key", turn)
        return "s"

    def train_turn(self, item, turn, ctx):
        self.note("train_turn", turn)
        return turn.kind == "act"

    def scripted_summary(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("The secret sum."))]

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("hm"))]


async def group_of(cls, **settings):
    async with cls(one(**settings)) as env:
        return await env.run_group(TASK, 1)


async def test_of_a_summary_only_train_turn_is_asked():
    await group_of(Asked)
    kinds = {(hook, kind) for hook, kind in Asked.asked_about if kind == "summary"}
    assert kinds == {("train_turn", "summary")}


async def test_an_untrained_summary_has_mask_and_advantage_0():
    credited = await group_of(Asked)
    (trajectory,) = credited.group.trajectories
    (summary,) = (turn for turn in trajectory.turns if turn.kind == "summary")
    assert not summary.trained
    assert credited.advantages[0][summary.index] == 0
    row = list_scores(credited)["masks"][summary.span.row]
    assert set(row[summary.span.start : summary.span.end]) == {IGNORED}


async def test_mask_truncated_reaches_summaries():
    class Cut(Asked):
        train_turn = Talking.train_turn

    credited = await group_of(Cut, mask_truncated=True, max_tokens_per_turn=3)
    (trajectory,) = credited.group.trajectories
    assert {turn.trained for turn in trajectory.turns if turn.kind == "summary"} == {False}


class ByModel(Asked):
    condenser = summarise(every=2, by="model")

    def scripted_summariser(self, item, messages):
        (message,) = messages
        assert "[user]\nbegin" in message.content
        return f"Said so far, of {item['id']}: {message.content.count('hm')} times hm."


async def test_a_second_model_reads_the_conversation_and_its_text_is_context_that_nobody_trains_on():
    credited = await group_of(ByModel)
    (trajectory,) = credited.group.trajectories
    assert {turn.kind for turn in trajectory.turns} == {"act"}
    after = trajectory.turns[3]
    assert after.context[1] == Message(
        role="user", content=f"{SUMMARY_HEADING}\n\nSaid so far, of one: 3 times hm."
    )
    columns = list_scores(credited)
    ids = [token for token in columns["masks"][after.span.row] if token != IGNORED]
    sampled = sum(
        turn.span.end - turn.span.start for turn in trajectory.turns if turn.span.row == after.span.row
    )
    assert len(ids) == sampled


async def test_what_the_summariser_was_asked_comes_back_from_the_record_and_stands_in_the_summary():
    credited = await group_of(ByModel)
    (asked,) = credited.group.trajectories[0].summariser_calls
    assert (asked.hook, asked.model) == ("condenser summarise", "scripted")
    assert decode_group(encode_group(credited), "record", 1) == credited
    summary = Summary()
    summary.add(credited)
    assert ("summariser", "1 answer") in summary_rows(summary.values(), wall_s=1.0)


async def test_a_failed_sibling_keeps_what_its_summariser_said():
    class Breaks(ByModel):
        def compute_outcome(self, item, trajectory, ctx):
            raise ZeroDivisionError

    (failure,) = (await group_of(Breaks)).group.failures
    assert len(failure.summariser_calls) == 1


async def test_a_simulated_user_does_not_hear_a_summary():
    heard = []

    class Heard(Asked):
        user = SimulatedUser()

        async def respond(self, item, turn, ctx):
            if len(ctx.turn_scores) >= 4:
                return None
            return await self.user.reply(ctx, persona="Ada")

        def scripted_user(self, item, messages):
            heard.extend(message.content for message in messages)
            return "and?"

    credited = await group_of(Heard)
    assert any(turn.kind == "summary" for turn in credited.group.trajectories[0].turns)
    assert not any("secret sum" in text for text in heard)


async def served(url):
    server = SummariserConfig(base_url=url, model_name="m")
    async with ByModel(one(), [server]) as env:
        return await env.rollout_group(TASK, 1)


async def test_a_served_summariser_says_what_the_scripted_one_says():
    async with playing(ByModel, "summariser") as url:
        (trajectory,) = (await served(url)).trajectories
    scripted = (await group_of(ByModel)).group.trajectories[0]
    assert trajectory.messages == scripted.messages
    assert [turn.context for turn in trajectory.turns] == [turn.context for turn in scripted.turns]
    assert {asked.model for asked in trajectory.summariser_calls} == {"m"}


async def test_a_summariser_that_cannot_be_reached_costs_the_sibling():
    server = Server(JSONResponse({"error": {"message": "down"}}, status_code=503))
    async with running_server(server.app) as url:
        (failure,) = (await served(url)).failures
    assert isinstance(failure, Failure)
    assert "the summariser's model" in failure.error


@pytest.mark.parametrize("text", ["", "word " * 50], ids=["empty", "long"])
async def test_whatever_a_summariser_says_is_the_summary(text):
    server = Server(said(text))
    async with running_server(server.app) as url:
        (trajectory,) = (await served(url)).trajectories
    assert trajectory.turns[3].context[1].content == f"{SUMMARY_HEADING}\n\n{text.strip()}"


async def test_a_conversation_that_is_too_long_for_the_summariser_ends_the_rollout():
    error = {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}
    server = Server(JSONResponse({"error": error}, status_code=400))
    async with running_server(server.app) as url:
        (trajectory,) = (await served(url)).trajectories
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
