"""A simulated user: its words are replies, and what goes wrong with it is no answer."""

import asyncio

import pytest

from environments.record.group_line import decode_group, encode_group
from environments.reward_context import RolloutContext
from environments.second_models.asked_model import AskedModel, ScriptedAnswers
from environments.second_models.text_model import TextAnswer
from environments.simulated_user import IS_DONE, SimulatedUser
from environments.trajectory import Message, StopReason
from tests.environments.talk import PERSONAS, Talk, talk
from tests.tables import cases
from tools.calls import ToolCall
from tools.errors import ConfigError, SecondModelError


class Model:
    """Gives these answers, the last one for ever."""

    model = "m"

    def __init__(self, *answers):
        self.answers = [TextAnswer(text=each) if isinstance(each, str) else each for each in answers]
        self.asked = []

    def sampling(self, seed):
        return {"seed": seed}

    async def answer(self, messages, *, seed):
        self.asked.append((messages, seed))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def rollout(*answers, conversation=None, seed=5):
    model = Model(*answers)
    ctx = RolloutContext(
        env="e",
        item_id="i",
        seed=seed,
        sandbox=None,
        fresh_sandbox=None,
        user_model=AskedModel(model=model),
        messages=(user("Hello."), agent("Hi.")) if conversation is None else tuple(conversation),
    )
    return ctx, model


def user(content):
    return Message(role="user", content=content)


def agent(content, *calls):
    return Message(role="assistant", content=content, tool_calls=calls)


CALL = ToolCall(id="c", name="look", arguments="{}")
CONVERSATION = (
    Message(role="system", content="Policy."),
    user("Hello."),
    agent("Let me look.", CALL),
    Message(role="tool", content="secret", tool_call_id="c"),
    Message(role="assistant", content="It is blue.", reasoning="secret"),
)


async def test_it_sees_the_conversation_from_the_other_side_and_no_tools():
    ctx, model = rollout("Good.", conversation=CONVERSATION)
    await SimulatedUser().reply(ctx, persona="Ada")
    (messages, _), *_ = model.asked
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert [message.content for message in messages[2:]] == ["Hello.", "Let me look.\n\nIt is blue."]
    assert "secret" not in repr(messages)


async def test_its_instructions_hold_the_persona_and_the_marker():
    ctx, model = rollout("Good.")
    await SimulatedUser(done="END").opening(ctx, persona="Ada {done} wants {x}")
    assert "Ada {done} wants {x}" in model.asked[0][0][0].content
    assert "write END and nothing else" in model.asked[0][0][0].content


async def test_an_agent_that_says_nothing_is_heard_to_say_nothing():
    ctx, model = rollout("Hm?", conversation=[user("Hello."), agent("", CALL)])
    await SimulatedUser().reply(ctx, persona="Ada")
    assert "says nothing" in model.asked[0][0][-1].content
    assert model.asked[0][0][-1].role == "user"


async def test_each_question_has_a_seed_of_its_own_that_the_rollouts_seed_decides():
    seeds = []
    for _ in range(2):
        ctx, model = rollout("Hello.")
        who = SimulatedUser()
        await who.opening(ctx, persona="Ada")
        await who.reply(ctx, persona="Ada")
        seeds.append([seed for _, seed in model.asked])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


MARKED = {
    "alone": ("###STOP###", None),
    "in spaces": (" ###STOP### \n", None),
    "after a word": ("Bye! ###STOP###", "Bye!"),
    "within": ("Bye ###STOP### !", "Bye  !"),
    "twice": ("###STOP######STOP###", None),
}


@cases(("text", "reply"), MARKED.values(), ids=MARKED)
async def test_at_its_marker_it_is_done_and_nobody_sees_the_marker(text, reply):
    ctx, _ = rollout(text)
    assert await SimulatedUser().reply(ctx, persona="Ada") == reply
    assert ctx.end_reason == IS_DONE


async def test_after_so_many_replies_it_is_done_and_asks_nobody():
    ctx, model = rollout("More.")
    who = SimulatedUser(max_replies=2)
    replies = [await who.reply(ctx, persona="Ada") for _ in range(3)]
    assert (replies, ctx.end_reason, len(model.asked)) == (["More.", "More.", None], IS_DONE, 2)


async def test_two_users_of_one_rollout_count_their_own_replies():
    ctx, _ = rollout("More.")
    buyer, boss = SimulatedUser(max_replies=1), SimulatedUser(max_replies=1)
    assert [await who.reply(ctx, persona="x") for who in (buyer, boss)] == ["More.", "More."]


NO_ANSWERS = ["cut", "empty", "refused", "filtered"]


@pytest.mark.parametrize("problem", NO_ANSWERS)
async def test_what_is_no_answer_is_asked_for_again(problem):
    ctx, _ = rollout(TextAnswer(text="x", problem=problem), "Good.")
    assert await SimulatedUser().reply(ctx, persona="Ada") == "Good."


@pytest.mark.parametrize("problem", ["cut", "empty", "refused"])
async def test_what_is_no_answer_three_times_is_a_failure(problem):
    ctx, model = rollout(TextAnswer(text="", problem=problem))
    with pytest.raises(SecondModelError, match=f"3 times: {problem}, {problem}, {problem}"):
        await SimulatedUser().reply(ctx, persona="Ada")
    assert len({seed for _, seed in model.asked}) == 3


async def test_a_conversation_that_the_agent_made_too_long_ends_the_rollout_and_fails_nothing():
    ctx, _ = rollout(TextAnswer(text=None, problem="too_long"))
    assert await SimulatedUser().reply(ctx, persona="Ada") is None
    assert "no longer fits" in ctx.end_reason


async def test_a_conversation_that_the_users_server_filters_ends_the_rollout_and_fails_nothing():
    ctx, model = rollout(TextAnswer(text=None, problem="filtered"))
    assert await SimulatedUser().reply(ctx, persona="Ada") is None
    assert (ctx.end_reason, len(model.asked)) == ("the user's model filters the conversation", 3)


@pytest.mark.parametrize(
    "answer", ["###STOP###", TextAnswer(text=None, problem="too_long")], ids=["marker", "too long"]
)
async def test_a_user_without_a_first_message_is_a_failure(answer):
    ctx, _ = rollout(answer)
    with pytest.raises(SecondModelError, match="no first message"):
        await SimulatedUser().opening(ctx, persona="Ada")


@pytest.mark.parametrize(
    "settings",
    [{"done": " "}, {"max_replies": 0}, {"instructions": "Be a user."}],
    ids=lambda each: next(iter(each)),
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match="SimulatedUser"):
        SimulatedUser(**settings)


async def test_its_words_are_replies_that_nobody_trains_on_and_its_calls_are_recorded(tmp_path):
    async with talk() as env:
        credited = await env.run_group(env.tasks()[0])
    trajectory = credited.group.trajectories[0]
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, IS_DONE)
    assert [m.content for m in trajectory.messages if m.role == "user"] == [
        f"Hello, {PERSONAS[0]}.",
        "And?",
        "Thanks!",
    ]
    sampled = sum(turn.span.end - turn.span.start for turn in trajectory.turns)
    row = trajectory.rows[0]
    assert sum(logprob <= 0 for logprob in row.logprobs) == sampled
    assert [call.hook for call in trajectory.user_calls] == ["format_prompt", "respond", "respond"]
    assert decode_group(encode_group(credited), tmp_path, 1) == credited


class Mute(Talk):
    def scripted_user(self, item, messages):
        return ""


async def test_a_user_that_fails_is_a_failed_sibling_and_no_reply():
    async with talk(Mute) as env:
        credited = await env.run_group(env.tasks()[0])
    assert [failure.error_class for failure in credited.group.failures] == ["SecondModelError"] * 2
    assert [len(failure.user_calls) for failure in credited.group.failures] == [3, 3]


async def test_a_script_answers_like_a_model():
    async def script(messages):
        return "Hello."

    answers = ScriptedAnswers(name="scripted_user", script=script)
    asked = AskedModel(model=answers)
    await asyncio.gather(*(asked.ask([user("x")], seed=0) for _ in range(2)))
    assert [call.answer for call in asked.calls] == ["Hello.", "Hello."]
