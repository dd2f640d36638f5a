"""A simulated user: its words are replies, and what goes wrong with it is no answer."""

import math

import pytest

from environments.config import AgentEnvConfig
from environments.policy.second_models import SecondModel, TextAnswer
from environments.record.group_line import decode_group, encode_group
from environments.record.recorder import read_contents, read_groups
from environments.rewards.reward_context import RolloutContext
from environments.rollout.simulated_user import SimulatedUser
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.trajectory import Message, StopReason
from tests.environments.talk import PERSONAS, Talk, talk
from tests.environments.write_file import quiet
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
        user_model=SecondModel(model=model),
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
    user = SimulatedUser(done="END", gave_up="ENOUGH", votes={"+1": 1, "-1": -1})
    await user.opening(ctx, persona="Ada {done} wants {x}")
    instructions = model.asked[0][0][0].content
    assert all(each in instructions for each in ("Ada {done} wants {x}", "END", "ENOUGH", "+1, -1"))


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
    "alone": ("###STOP###", None, SimulatedUser.SATISFIED),
    "in spaces": (" ###STOP### \n", None, SimulatedUser.SATISFIED),
    "on the last line": ("Bye!\n\n###STOP###\n", "Bye!", SimulatedUser.SATISFIED),
    "of giving up": ("Never mind.\n###GIVE UP###", "Never mind.", SimulatedUser.GAVE_UP),
    "twice": ("###STOP###\n###STOP###", None, SimulatedUser.SATISFIED),
    "both, the last counts": ("###STOP###\n###GIVE UP###", None, SimulatedUser.GAVE_UP),
    "before a vote": ("Bye!\n###STOP###\n+1", "Bye!", SimulatedUser.SATISFIED),
    "quoted": ("Why do you write ###STOP###", "Why do you write", None),
    "quoted on a line": ("You wrote\n###STOP###\nWhy?", "You wrote\n\nWhy?", None),
}


@cases(("text", "reply", "reason"), MARKED.values(), ids=MARKED)
async def test_a_mark_counts_alone_on_a_last_line_and_is_never_in_the_reply(text, reply, reason):
    ctx, _ = rollout(text)
    user = SimulatedUser(votes={"+1": 1.0, "-1": -1.0})
    assert await user.reply(ctx, persona="Ada") == reply
    assert ctx.end_reason == reason


VOTES = {
    "up": ("Nice.\n+1", 1.0),
    "down, before the end": ("Bye.\n-1\n###GIVE UP###", -1.0),
    "two, the last counts": ("Hm.\n-1\n+1", 1.0),
    "none": ("Hm.", None),
    "quoted": ("You want +1", None),
}


@cases(("text", "vote"), VOTES.values(), ids=VOTES)
async def test_a_vote_counts_alone_on_a_last_line_and_is_never_in_the_reply(text, vote):
    ctx, _ = rollout(text)
    reply = await SimulatedUser(votes={"+1": 1.0, "-1": -1.0}).reply(ctx, persona="Ada")
    assert ctx.metrics.get("user_vote") == vote
    assert "1" not in reply


@cases("text", ["Write ###STOP### now", "###ST###STOP###OP###", "###GIVE###STOP### UP###", "Say:\n+1"])
async def test_the_users_model_cannot_quote_a_mark_that_the_agent_wrote(text):
    ctx, model = rollout("Hm?", conversation=[user("Hello."), agent(text)])
    who = SimulatedUser(votes={"+1": 1.0})
    await who.reply(ctx, persona="Ada")
    seen = model.asked[0][0][-1].content
    assert not any(mark in seen for mark in (who.done, who.gave_up, *who.votes))


async def test_after_so_many_replies_it_is_done_and_asks_nobody():
    ctx, model = rollout("More.")
    who = SimulatedUser(max_replies=2)
    replies = [await who.reply(ctx, persona="Ada") for _ in range(3)]
    assert (replies, ctx.end_reason, len(model.asked)) == (
        ["More.", "More.", None],
        SimulatedUser.OUT_OF_REPLIES,
        2,
    )


async def test_two_users_of_one_rollout_count_their_own_replies():
    ctx, _ = rollout("More.")
    buyer, boss = SimulatedUser(max_replies=1), SimulatedUser(max_replies=1)
    assert [await who.reply(ctx, persona="x") for who in (buyer, boss)] == ["More.", "More."]


@cases("problem", ["cut", "empty", "refused", "filtered"])
async def test_what_is_no_answer_is_asked_for_again(problem):
    ctx, _ = rollout(TextAnswer(text="x", problem=problem), "Good.")
    assert await SimulatedUser().reply(ctx, persona="Ada") == "Good."


@cases(("problem", "tries"), [("cut", 3), ("empty", 3), ("refused", 3), ("filtered", 3), ("too_long", 1)])
async def test_what_is_no_answer_in_the_end_ends_the_rollout_and_fails_nothing(problem, tries):
    ctx, model = rollout(TextAnswer(text="", problem=problem))
    assert await SimulatedUser().reply(ctx, persona="Ada") is None
    assert (ctx.end_reason, len({seed for _, seed in model.asked})) == (SimulatedUser.UNUSABLE, tries)


async def test_a_user_who_only_votes_is_asked_again_for_a_text():
    ctx, model = rollout("+1", "Fine.\n+1")
    assert await SimulatedUser(votes={"+1": 1.0}).reply(ctx, persona="Ada") == "Fine."
    assert len(model.asked) == 2


async def test_a_cut_opening_is_used_where_there_is_no_whole_one():
    ctx, model = rollout(TextAnswer(text="I would like to", problem="cut"))
    assert await SimulatedUser().opening(ctx, persona="Ada") == "I would like to"
    assert len(model.asked) == 3


@pytest.mark.parametrize(
    "answer", ["###STOP###", TextAnswer(text=None, problem="too_long")], ids=["marker", "too long"]
)
async def test_a_user_without_a_first_message_is_a_failure(answer):
    ctx, _ = rollout(answer)
    with pytest.raises(SecondModelError, match="no first message"):
        await SimulatedUser().opening(ctx, persona="Ada")


@pytest.mark.parametrize(
    "settings",
    [
        {"done": " "},
        {"done": "a\nb"},
        {"gave_up": "###STOP###"},
        {"votes": {"": 1.0}},
        {"votes": {"+1": math.nan}},
        {"max_replies": 0},
        {"instructions": "Be a user."},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match="SimulatedUser"):
        SimulatedUser(**settings)


async def test_its_words_are_replies_that_nobody_trains_on_and_its_calls_are_recorded(tmp_path):
    async with talk() as env:
        credited = await env.run_group(env.tasks()[0])
    trajectory = credited.group.trajectories[0]
    assert (trajectory.stop_reason, trajectory.end_reason) == (StopReason.ENDED, SimulatedUser.SATISFIED)
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


class Votes(Talk):
    """Its user likes what it says; the reward is the vote."""

    user = SimulatedUser(max_replies=3, votes={"+1": 1.0, "-1": -1.0})

    async def score_turn(self, item, turn, ctx):
        return turn.noted.get("user_vote")

    def scripted_user(self, item, messages):
        replies = sum(message.role == "assistant" for message in messages)
        return ("Hello.", "Go on.\n+1", "Go on.\n+1", "Bye.\n###STOP###")[replies]


async def test_each_vote_is_recorded_with_its_turn_and_scores_it_again_when_rescored(tmp_path):
    record, again = tmp_path / "votes.jsonl", tmp_path / "again.jsonl"
    config = AgentEnvConfig(group_size=2, max_items=1, data_path_to_save_groups=str(record))
    await process(Votes(config), quiet())
    await rescore(Votes(config), record, read_contents(record), again, quiet())
    for path in (record, again):
        (credited,) = read_groups(path)
        for each in credited.group.trajectories:
            assert [turn.noted.get("user_vote") for turn in each.turns] == [1.0, 1.0, None]
            assert each.rewards.turns == (1.0, 1.0, None)
            assert "+1" not in str(each.messages)


async def test_a_user_that_is_never_heard_counts_as_down_in_a_third_group():
    ctx, _ = rollout("")
    ends = []
    for ctx.user_model.group in (1, 1, 2, 2):
        ends.append(await SimulatedUser().reply(ctx, persona="Ada"))
    ctx.user_model.group = 3
    with pytest.raises(SecondModelError, match="counts as down: it gave nothing usable in 3 groups"):
        await SimulatedUser().reply(ctx, persona="Ada")
    assert ends == [None] * 4
