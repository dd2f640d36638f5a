"""What the world says, in which order hooks are asked, and how a rollout ends."""

import asyncio
import json

import pytest

from environments.policy.scripted import say
from environments.record.group_line import decode_group, encode_group
from environments.run.evaluation import sample_row
from environments.testing import group_of
from environments.trajectory import IGNORED, Message, StopReason
from environments.wire.credited_rows import credited_rows
from tests.environments.talking import TASK, Talking, made, played, world
from tests.tables import cases
from tools.errors import ConfigError


def spoken(trajectory):
    return [(message.role, message.content) for message in trajectory.messages]


# The order of things.


async def test_hooks_are_asked_in_their_order():
    def noted(name, given=None):
        def hook(self, *args):
            self.called.append(name)
            return given(*args) if given else None

        return hook

    env = made(
        world(
            plays=("look", "done"),
            prepare=noted("prepare"),
            limits_for=noted("limits_for", lambda item: {}),
            format_prompt=noted("format_prompt", lambda item: "begin"),
            respond=noted("respond"),
            state_key=noted("state_key", lambda item, turn: "here"),
            score_turn=noted("score_turn", lambda item, turn, ctx: 1.0),
            train_turn=noted("train_turn", lambda item, turn, ctx: True),
            compute_turn_rewards=noted("compute_turn_rewards", lambda item, t, ctx: [1.0] * len(t.turns)),
            compute_outcome=noted("compute_outcome"),
        )
    )
    await played(env)
    turn = ["respond", "state_key", "score_turn", "train_turn"]
    before = ["prepare", "format_prompt", "state_key", "limits_for"]
    assert env.called == [*before, *turn, *turn, "compute_turn_rewards", "compute_outcome"]


async def test_a_turn_is_scored_with_its_replies_and_they_stand_in_the_messages():
    seen = []

    def score_turn(self, item, turn, ctx):
        seen.append((turn.replies, ctx.messages[-1]))
        return 1.0

    await played(made(world("why?", score_turn=score_turn)))
    why = Message(role="user", content="why?")
    assert seen == [((why,), why), ((), say("hello"))]


async def test_respond_sees_the_results_of_the_turns_tools():
    seen = []

    def respond(self, item, turn, ctx):
        seen.append(ctx.messages[-1].content)

    await played(made(world(plays=("look", "done"), respond=respond)))
    assert seen == ["a door", "done"]


# Replies.


@cases(
    ("says", "heard"),
    [
        ("why?", [("user", "why?")]),
        ("", [("user", "")]),
        (Message(role="system", content="it rains"), [("system", "it rains")]),
        ({"role": "user", "content": "why?"}, [("user", "why?")]),
        (
            [Message(role="system", content="it rains"), {"role": "user", "content": "why?"}],
            [("system", "it rains"), ("user", "why?")],
        ),
    ],
    ids=["text", "empty text", "a message", "a dict", "several"],
)
async def test_what_is_said_follows_the_turn_and_the_rollout_goes_on(says, heard):
    trajectory = await played(made(world(says)))
    assert spoken(trajectory) == [("user", "begin"), ("assistant", "hello"), *heard, ("assistant", "hello")]
    assert trajectory.stop_reason is StopReason.COMPLETED


async def test_without_a_reply_a_turn_with_a_call_goes_on_and_one_without_ends():
    trajectory = await played(made(world(None, None, plays=("look", "done", "never"))))
    assert [turn.message.content for turn in trajectory.turns] == ["", "done"]


ODD = {
    "an empty list": ([], "gave no messages; give None"),
    "an assistant": (Message(role="assistant"), "role 'assistant'; a reply is of role user or system"),
    "a tool": ({"role": "tool", "content": "ok"}, "role 'tool'; a reply is of role user or system"),
    "a role that is none": ({"role": "robot", "content": "ok"}, "role 'robot'; choose one of"),
    "a number": (3, "gave 3; give text, or a list"),
    "bytes": (b"why?", "give text, or a list"),
    "a list of texts": (["why?"], "give text, or a list"),
    "bytes in a message": (Message(role="user", content=b"why?"), "content is b'why?'; give text"),
    "parts": ({"role": "user", "content": [{"type": "image_url"}]}, "list of parts; give text: images"),
    "half a surrogate pair": ("\udcff", "not UTF-8 text"),
    "thoughts": (Message(role="user", content="a", reasoning="b"), "a role and content alone"),
    "more than a message has": ({"role": "user", "content": "a", "name": "b"}, "give text, or a list"),
    "an iterator without an end": (iter(lambda: "a", None), "give text, or a list"),
}  # fmt: skip


@cases("kind", ODD)
async def test_what_is_no_reply_is_refused_in_one_line_of_its_own(kind):
    given, said = ODD[kind]
    failure = await played(made(world(given)))
    assert failure.error_class == "ConfigError"
    assert "environment 'talking': respond gave" in failure.error
    assert said in failure.error


async def test_respond_that_is_a_generator_is_refused():
    def respond(self, item, turn, ctx):
        yield "why?"

    assert "respond is a generator" in (await played(made(world(respond=respond)))).error


async def test_megabytes_of_a_reply_overflow_the_row_and_the_rollout_is_scored():
    trajectory = await played(made(world("word " * 1_000_000)))
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert trajectory.score == 1.0
    assert len(trajectory.turns[0].replies[0].content) == 5_000_000


async def test_replies_are_in_no_mask_and_the_rows_hold_them():
    env = made(world("why?"))
    credited = env.credit(await env.rollout_group(TASK, 2))
    for row in credited_rows(credited):
        text = env.renderer.decode(row.tokens)
        assert "<|im_start|>user\nwhy?<|im_end|>" in text
        trained = env.renderer.decode([token for token in row.mask if token != IGNORED])
        assert trained == "hello<|im_end|>" * 2


async def test_replies_after_the_last_turn_are_in_no_row_and_come_back_from_the_record(tmp_path):
    env = made(world("one", "two", plays=("a", "b")), max_turns=2)
    credited = env.credit(await env.rollout_group(TASK, 1))
    (trajectory,) = credited.group.trajectories
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert "two" not in env.renderer.decode(trajectory.rows[0].token_ids)
    assert spoken(trajectory)[-1] == ("user", "two")
    assert decode_group(encode_group(credited), tmp_path, 1) == credited
    (row,) = credited_rows(credited)
    assert row.messages[-1] == {"role": "user", "content": "two"}
    assert sample_row(trajectory)["messages"][-1] == {"role": "user", "content": "two"}


# Budgets.


async def test_respond_is_asked_after_the_last_permitted_turn_and_the_budget_wins():
    trajectory = await played(made(world("why?", "why?"), max_turns=1))
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert [turn.replies[0].content for turn in trajectory.turns] == ["why?"]


async def test_a_last_permitted_turn_without_a_reply_and_a_call_is_complete():
    assert (await played(made(world(), max_turns=1))).stop_reason is StopReason.COMPLETED


async def test_respond_is_asked_after_a_turn_that_was_cut_and_the_budget_wins():
    trajectory = await played(made(world("why?", plays=("long " * 100,)), max_tokens_per_turn=16))
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET
    assert trajectory.turns[-1].finish_reason == "length"
    assert trajectory.turns[-1].replies[0].content == "why?"


LONG = "long " * 100
ANSWERED = {"max_tokens_per_turn": 16, "on_cut": "respond"}


async def test_a_cut_turn_may_be_answered_and_the_rollout_continues():
    trajectory = await played(made(world("why?", plays=(LONG, "done")), **ANSWERED))
    assert [turn.finish_reason for turn in trajectory.turns] == ["length", "stop"]
    assert trajectory.stop_reason is StopReason.COMPLETED


async def test_the_row_closes_an_answered_cut_turn_outside_its_span_and_mask():
    env = made(world("why?", plays=(LONG, "done")), **ANSWERED)
    (row,) = credited_rows(env.credit(await env.rollout_group(TASK, 1)))
    first, second = row.turns
    between = env.renderer.decode(row.tokens[first.span.end : second.span.start])
    assert between == "<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    trained = [index for index, token in enumerate(row.mask) if token != IGNORED]
    assert trained == [*range(first.span.start, first.span.end), *range(second.span.start, second.span.end)]


async def test_a_cut_turn_without_a_reply_ends_the_rollout():
    trajectory = await played(made(world(plays=(LONG,)), **ANSWERED))
    assert trajectory.stop_reason is StopReason.TOKEN_BUDGET


async def test_a_slow_reply_uses_up_the_rollouts_time_and_is_kept():
    async def respond(self, item, turn, ctx):
        await asyncio.sleep(2)
        return "why?"

    trajectory = await played(made(world(respond=respond), rollout_timeout_s=1.5))
    assert trajectory.stop_reason is StopReason.TIME_BUDGET
    assert trajectory.turns[0].replies[0].content == "why?"
    assert trajectory.score == 1.0


def test_the_record_keeps_no_end_reason_where_there_is_none():
    credited = made(world()).credit(group_of([[1.0], [0.0]]))
    (first, _) = json.loads(encode_group(credited))["trajectories"]
    assert "end_reason" not in first


async def test_what_a_hook_does_to_the_context_reaches_no_model_and_no_row():
    class Other(Talking):
        says = ("and?", "and?")

        def score_turn(self, item, turn, ctx):
            ctx.messages = ()
            return 1.0

    class Plain(Talking):
        says = ("and?", "and?")

    assert (await played(made(Other))).rows == (await played(made(Plain))).rows


@pytest.mark.parametrize("later", ["user", "judge"])
async def test_a_context_that_is_used_after_its_rollout_is_refused_at_once(later):
    kept = []

    class Keeping(Talking):
        def compute_outcome(self, item, trajectory, ctx):
            kept.append(ctx)

        def scripted_judge(self, item, messages):
            return '{"score": 1}'

        def scripted_user(self, item, messages):
            return "Hello."

    await played(made(Keeping))
    asked = kept[0].judge("Good?") if later == "judge" else kept[0].user_model.ask((), seed=0)
    with pytest.raises(ConfigError, match="is called after its rollout was over; use ctx while it goes on"):
        await asked


@cases("hook", ["respond", "prepare", "train_turn", "score_group", "limits_for"])
async def test_a_hook_that_is_set_on_the_object_is_asked_like_one_of_its_class(hook):
    asked = []
    env = made(Talking)

    def noted(*args):
        asked.append(hook)
        return {"train_turn": True, "limits_for": {}}.get(hook)

    setattr(env, hook, noted)
    await env.run_group(TASK, 1)
    assert asked
