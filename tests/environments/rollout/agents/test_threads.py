"""Which conversation a request belongs to, and what its turns hold."""

import asyncio
import random
from collections import Counter, defaultdict
from itertools import count

import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.rollout.agents.conversation import _Renamed
from environments.trajectory import Message
from tests.environments.rollout.agents.recorded import (
    ADD,
    Sums,
    Talk,
    ask,
    played,
    post,
    roll_out,
    rolled_out,
    system,
    user,
)
from tests.environments.test_row_contract import check_masks
from tests.turnwise.check.checked_envs import checked
from tools.calls import ToolCall
from tools.errors import PolicyError
from turnwise import AgentEnvConfig, Choice, Command, Completion, ConfigError, StopReason, say


def _turns(trajectory):
    return [(turn.thread, turn.fork, turn.span.row) for turn in trajectory.turns]


async def conversation(endpoint, opening, turns):
    history = list(opening)
    for _ in range(turns):
        history += [await ask(endpoint, *history), user("go on")]
    return history


def test_two_threads_at_once_have_a_row_each_and_clocks():
    async def play(self, item, ctx):
        await asyncio.gather(
            conversation(ctx.endpoint, [system("planner"), user("x")], 2),
            conversation(ctx.endpoint, [system("worker"), user("x")], 2),
        )

    (trajectory,) = rolled_out(played(Talk, play))
    # Which thread has which row is a matter of who is answered first.
    places = Counter((turn.thread, turn.span.row) for turn in trajectory.turns)
    assert sorted(places.values()) == [2, 2]
    assert sorted(thread for thread, _ in places) == sorted(row for _, row in places) == [0, 1]
    clocks = [turn.clock for turn in trajectory.turns]
    assert [clock.requested for clock in clocks] == sorted(clock.requested for clock in clocks)
    assert all(clock.requested < clock.handed_out < clock.scored for clock in clocks)


def test_history_that_an_agent_rewrites_forks_its_row_with_the_cause():
    async def play(self, item, ctx):
        history = await conversation(ctx.endpoint, [user("x")], 3)
        await conversation(ctx.endpoint, [history[0], *history[3:]], 2)

    (trajectory,) = rolled_out(played(Talk, play, scripted_choices=_two))
    assert _turns(trajectory) == [(0, None, 0)] * 3 + [(0, "agent", 1), (0, None, 1)]
    assert len(trajectory.rows) == 2


def _two(self, item, messages, tools, skill):
    """Says how many messages there are, so that no two completions are equal."""
    return [Choice(probability=1.0, message=say(f"after {len(messages)} of {messages[-1].content}"))]


def test_at_a_fork_the_open_turn_has_what_follows_its_message_and_else_nothing():
    async def play(self, item, ctx):
        history = await conversation(ctx.endpoint, [user("x")], 2)
        await ask(ctx.endpoint, user("x"), user("shorter"), history[-2], user("kept reply"))
        await ask(ctx.endpoint, user("x"), user("forgot all"))

    (trajectory,) = rolled_out(played(Talk, play, scripted_choices=_two))
    replies = [[reply.content for reply in turn.replies] for turn in trajectory.turns]
    assert replies == [["go on"], ["kept reply"], [], []]


def test_another_opening_is_another_thread_and_not_a_fork():
    async def play(self, item, ctx):
        await ask(ctx.endpoint, system("s"), user("x"))
        await ask(ctx.endpoint, system("title"), user("x"))
        await ask(ctx.endpoint, system("s"), user("only the system message is shared"))

    (trajectory,) = rolled_out(played(Talk, play))
    assert _turns(trajectory) == [(0, None, 0), (1, None, 1), (2, None, 2)]


@pytest.mark.parametrize(
    ("ours", "theirs", "equal"),
    [("ab", "xy", True), ("ab", "ab", True), ("ab", "xx", False), ("aa", "xy", False)],
)
def test_calls_are_equal_when_their_ids_are_renamed_one_to_one(ours, theirs, equal):
    def calling(ids):
        calls = tuple(ToolCall(id=each, name="add", arguments="{}") for each in ids)
        return Message(role="assistant", tool_calls=calls)

    assert _Renamed().are_equal(calling(theirs), calling(ours)) is equal


def test_a_retry_gets_the_same_completion_and_is_no_turn():
    async def play(self, item, ctx):
        body = {"model": "m", "messages": [user("x")]}
        _, first, _ = await post(ctx.endpoint, body)
        _, again, _ = await post(ctx.endpoint, body, headers={"x-stainless-retry-count": "1"})
        assert first == again

    (trajectory,) = rolled_out(played(Talk, play))
    assert (len(trajectory.turns), trajectory.agent.counts) == (1, {"retries": 1})


def meeting(count, choices):
    """`scripted_choices` that answers nobody until so many requests are there."""
    asked, everybody = [], asyncio.Event()

    async def scripted_choices(self, item, messages, tools, skill):
        asked.append(messages)
        if len(asked) == count:
            everybody.set()
        await everybody.wait()
        return choices(self, item, messages, tools, skill)

    return scripted_choices


def test_equal_bodies_at_once_are_two_turns_with_seeds_of_their_own():
    async def play(self, item, ctx):
        answers = await asyncio.gather(*(post(ctx.endpoint, {"messages": [user("x")]}) for _ in range(2)))
        assert answers[0][1]["id"] != answers[1][1]["id"]

    (trajectory,) = rolled_out(played(Talk, play, scripted_choices=meeting(2, Talk.scripted_choices)))
    assert sorted(turn.thread for turn in trajectory.turns) == [0, 1]


async def test_a_closed_connection_ends_no_sampling_and_the_next_equal_request_gets_its_completion():
    policy = PacedPolicy()

    async def play(self, item, ctx):
        await policy.abandon(ctx.endpoint, "x")
        assert (await policy.answer(ctx.endpoint, "x"))["content"] == "x"

    (trajectory,) = (await roll_out(played(Talk, play), policy=policy)).group.trajectories
    assert (len(trajectory.turns), trajectory.stop_reason) == (1, StopReason.COMPLETED)


def test_seeds_are_by_opening_and_not_by_who_came_first():
    def agent(order):
        async def play(self, item, ctx):
            for name in order:
                await conversation(ctx.endpoint, [system(name), user("x")], 4)

        return play

    one = rolled_out(played(Talk, agent("ab")))[0]
    two = rolled_out(played(Talk, agent("ba")))[0]

    def said(trajectory, thread):
        return [turn.message.content for turn in trajectory.turns if turn.thread == thread]

    assert said(one, 0) == said(two, 1)
    assert said(one, 1) == said(two, 0)
    assert said(one, 0) != said(one, 1)


def test_a_second_model_answers_to_its_name_untrained():
    async def play(self, item, ctx):
        status, answer, _ = await post(ctx.endpoint, {"model": "grader", "messages": [user("which?")]})
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "the other")
        await ask(ctx.endpoint, user("x"))

    extra = {"other_models": {"grader": "judge"}, "scripted_judge": lambda self, item, messages: "the other"}
    (trajectory,) = rolled_out(played(Talk, play, **extra))
    assert len(trajectory.turns) == 1
    assert [(made.answer, made.messages[-1].content) for made in trajectory.other_calls] == [
        ("the other", "which?")
    ]


@pytest.mark.parametrize("seed", range(12))
async def test_what_each_turn_saw_renders_as_its_row_whatever_the_threads_do(seed):
    """Over random schedules of going on, forking and beginning."""

    async def thread(endpoint, name, dice):
        history = [system(name), user("x")]
        for _ in range(dice.randint(1, 4)):
            history += [await ask(endpoint, *history), user(f"go on {dice.randint(0, 3)}")]
            await asyncio.sleep(0.001 * dice.randint(0, 3))
            if dice.random() < 0.3:
                history = [*history[:2], *history[2 + dice.randint(0, 1) * 2 :]]
            if dice.random() < 0.2:
                history = [*history[:-1], user("another end")]

    async def play(self, item, ctx):
        dice = random.Random(f"{ctx.seed} {seed}")
        names = [dice.choice("abc") for _ in range(dice.randint(1, 4))]
        await asyncio.gather(*(thread(ctx.endpoint, name, dice) for name in names))

    cls = played(Talk, play, scripted_choices=_two)
    async with cls(AgentEnvConfig(group_size=4, max_turns=50)) as env:
        group = await env.rollout_group(env.tasks()[0], 4)
        check_masks(env, group)
    renderer = ChatMLRenderer.embedded()
    for trajectory in group.trajectories:
        assert [turn.index for turn in trajectory.turns] == list(range(len(trajectory.turns)))
        for index, turn in enumerate(trajectory.turns):
            seen = trajectory.thread_until(index)[: -len(turn.messages)]
            row = trajectory.rows[turn.span.row].token_ids
            assert renderer.prompt_ids(seen, trajectory.tools) == row[: turn.span.start]


def test_results_at_a_fork_are_found_by_the_ids_of_the_calls():
    async def play(self, item, ctx):
        first = await ask(ctx.endpoint, user("Add."), tools=[ADD])
        named = first["tool_calls"][0]["id"]
        result = {"role": "tool", "tool_call_id": named, "content": "1"}
        await ask(ctx.endpoint, user("Add."), {**first, "content": "written anew"}, result, tools=[ADD])

    (trajectory,) = rolled_out(played(Sums, play))
    assert [turn.fork for turn in trajectory.turns] == [None, "agent"]
    assert [each.content for each in trajectory.turns[0].tool_results] == ["1"]


def test_equal_conversations_side_by_side_keep_their_threads():
    async def play(self, item, ctx):
        await asyncio.gather(*(conversation(ctx.endpoint, [user("x")], 3) for _ in range(3)))

    def same(self, item, messages, tools, skill):
        return [Choice(probability=1.0, message=say("yes"))]

    (trajectory,) = rolled_out(played(Talk, play, scripted_choices=meeting(3, same)))
    assert len(trajectory.rows) == 3


def test_the_tools_of_the_record_are_those_first_offered_and_an_empty_message_may_lack_its_content():
    async def play(self, item, ctx):
        await ask(ctx.endpoint, system("title"), user("Add."))
        await ask(ctx.endpoint, user("Add."), {"role": "assistant", "content": None}, user("on"), tools=[ADD])

    (trajectory,) = rolled_out(played(Sums, play))
    assert [spec.name for spec in trajectory.tools] == ["add"]


# --- clocks, and what was never handed out ---------------------------------------------------------------


class PacedPolicy:
    """Answers each request with the text of its last message, once that text was let."""

    name = "paced"

    def __init__(self):
        self.began, self.may_end = defaultdict(asyncio.Event), defaultdict(asyncio.Event)

    async def complete(self, request):
        text = request.messages[-1].content
        self.began[text].set()
        await self.may_end[text].wait()
        renderer = ChatMLRenderer.embedded()
        ids = renderer.completion_ids(say(text))
        return Completion(
            message=say(text), finish_reason="stop", exact=True, token_ids=ids,
            prompt_ids=renderer.prompt_ids(request.messages, request.tools), logprobs=(-0.5,) * len(ids),
        )  # fmt: skip

    async def answer(self, endpoint, text, *before, **fields):
        self.may_end[text].set()
        return await ask(endpoint, *before, user(text), **fields)

    async def abandon(self, endpoint, text, *before):
        """Ask, and close the connection while it is being sampled."""
        asking = asyncio.create_task(ask(endpoint, *before, user(text)))
        await self.began[text].wait()
        asking.cancel()
        await asyncio.wait({asking})


class Told(Talk):
    def score_turn(self, item, turn, ctx):
        return float(turn.message.content.split()[-1])


async def trajectory_of(play, policy, base=Told, **attributes):
    raw = {"singleton": "raw"}
    credited = await roll_out(played(base, play, **attributes), policy=policy, estimator_params=raw)
    assert credited.group.failures == ()
    return credited.group.trajectories[0], credited.advantages[0]


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_planner_earns_the_same_whether_its_workers_reward_comes_before_or_after_its_answer(is_long):
    policy = PacedPolicy()

    async def play(self, item, ctx):
        async def plan():
            await ask(ctx.endpoint, user("plan 1"))

        planner = asyncio.create_task(plan())
        await policy.began["plan 1"].wait()
        if not is_long:
            policy.may_end["plan 1"].set()
            await planner
        first = await policy.answer(ctx.endpoint, "work 2", system("worker"))
        await policy.answer(ctx.endpoint, "more 4", system("worker"), user("work 2"), first)
        policy.may_end["plan 1"].set()
        await planner

    _, advantages = await trajectory_of(play, policy)
    assert advantages == (1 + 2 + 4, 1 + 2 + 4, 1 + 4)


async def test_a_completion_that_its_agent_gave_up_is_a_turn_without_a_reward_of_its_own():
    policy = PacedPolicy()

    async def play(self, item, ctx):
        await policy.abandon(ctx.endpoint, "slow 1")
        policy.may_end["slow 1"].set()
        await policy.answer(ctx.endpoint, "quick 2", system("another"))

    trajectory, advantages = await trajectory_of(play, policy)
    assert [(turn.kind, turn.trained) for turn in trajectory.turns] == [("undelivered", True), ("act", True)]
    assert trajectory.rewards.turns == (None, 2.0)
    assert trajectory.agent.counts == {"undelivered": 1}
    assert advantages == (2.0, 2.0)


async def test_a_thread_goes_on_after_a_completion_that_was_given_up_in_a_row_of_its_own():
    policy = PacedPolicy()

    async def play(self, item, ctx):
        first = await policy.answer(ctx.endpoint, "one 1")
        history = [user("one 1"), first]
        await policy.abandon(ctx.endpoint, "two 2", *history)
        policy.may_end["two 2"].set()
        await policy.answer(ctx.endpoint, "aside 8", system("another"))
        await policy.answer(ctx.endpoint, "three 4", *history)

    cls = played(Told, play)
    async with cls(AgentEnvConfig(group_size=1, min_group_size=1), policy=policy) as env:
        group = await env.rollout_group(env.tasks()[0], 1)
        check_masks(env, group)
    turns = group.trajectories[0].turns
    assert [(turn.kind, turn.thread, turn.fork) for turn in turns] == [
        ("act", 0, None),
        ("undelivered", 0, None),
        ("act", 1, None),
        ("act", 0, "agent"),
    ]


async def test_while_a_completion_that_was_given_up_is_still_sampled_its_thread_has_a_request_in_flight():
    policy = PacedPolicy()

    async def play(self, item, ctx):
        await policy.abandon(ctx.endpoint, "slow 1", system("a"))
        await policy.answer(ctx.endpoint, "quick 2", system("a"))
        policy.may_end["slow 1"].set()
        await policy.answer(ctx.endpoint, "last 4", system("b"))

    trajectory, advantages = await trajectory_of(play, policy)
    assert [(turn.kind, turn.thread) for turn in trajectory.turns] == [
        ("undelivered", 0),
        ("act", 1),
        ("act", 2),
    ]
    assert advantages == (6.0, 6.0, 6.0)


async def test_a_completion_that_was_cut_off_is_counted_and_moves_no_turn_to_another_index():
    policy = PacedPolicy()

    async def play(self, item, ctx):
        await policy.abandon(ctx.endpoint, "slow 1")
        await policy.answer(ctx.endpoint, "quick 2", system("another"))

    trajectory, _ = await trajectory_of(play, policy)
    assert trajectory.agent.counts == {"cut off": 1}
    assert [turn.clock.unfinished_before for turn in trajectory.turns] == [1]


def test_a_request_that_failed_before_another_was_made_leaves_no_gap():
    class Failing:
        name, asked = "failing", 0

        async def complete(self, request):
            self.asked += 1
            if self.asked == 1:
                raise PolicyError("not now")
            policy = PacedPolicy()
            policy.may_end[request.messages[-1].content].set()
            return await policy.complete(request)

    async def play(self, item, ctx):
        status, _, _ = await post(ctx.endpoint, {"messages": [user("a 1")]})
        assert status == 503
        await ask(ctx.endpoint, user("a 1"))

    (trajectory,) = rolled_out(played(Told, play), policy=Failing())
    assert [turn.clock for turn in trajectory.turns] == [None]


# --- which threads are trained ---------------------------------------------------------------------------


async def titled(self, item, ctx):
    """Asks for a title without tools, and offers some while it works, whether or not it calls them."""
    await ask(ctx.endpoint, system("title"), user("x"))
    first = await ask(ctx.endpoint, user("work"), tools=[ADD])
    await ask(ctx.endpoint, user("work"), first, user("sum up"))


@pytest.mark.parametrize(("chosen", "trained"), [("all", [True] * 3), ("with_tools", [False, True, True])])
def test_threads_whose_requests_offer_no_tools_may_be_left_untrained(chosen, trained):
    credited = asyncio.run(roll_out(played(Talk, titled, train_threads=chosen), scripted_skill=0.5))
    (trajectory,) = credited.group.trajectories

    assert [turn.trained for turn in trajectory.turns] == trained
    assert all(
        turn.trained or not value
        for turn, value in zip(trajectory.turns, credited.advantages[0], strict=True)
    )


def test_a_turn_is_not_left_out_for_what_its_thread_offers_later():
    async def play(self, item, ctx):
        first = await ask(ctx.endpoint, user("x"))
        await ask(ctx.endpoint, user("x"), first, user("go on"), tools=[ADD])

    (trajectory,) = rolled_out(played(Talk, play, train_threads="with_tools"))
    assert [turn.trained for turn in trajectory.turns] == [False, True]


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"train_threads": "none"}, "train_threads is 'none'; choose one of 'all', 'with_tools'"),
        (
            {"other_models": {"grader": "nobody"}},
            "other_models names 'nobody'; choose from judge, user, summariser",
        ),
    ],
    ids=["threads", "models"],
)
def test_what_is_trained_and_who_answers_is_one_of_a_few_words(attributes, says):
    with pytest.raises(ConfigError, match=says):
        played(Talk, titled, **attributes)()
    with pytest.raises(ConfigError, match="Command has train_threads='none'"):
        Command(["true"], train_threads="none")


async def test_the_state_of_a_turn_is_that_of_its_request_whatever_other_threads_did_meanwhile():
    policy = PacedPolicy()

    def state_key(self, item, turn):
        return "start" if turn is None else turn.message.content

    async def play(self, item, ctx):
        planner = asyncio.create_task(ask(ctx.endpoint, user("plan 1")))
        await policy.began["plan 1"].wait()
        first = await policy.answer(ctx.endpoint, "work 2", system("worker"))
        await policy.answer(ctx.endpoint, "more 4", system("worker"), user("work 2"), first)
        policy.may_end["plan 1"].set()
        await planner

    trajectory, _ = await trajectory_of(play, policy, state_key=state_key)
    assert [turn.anchor for turn in trajectory.turns] == ["start", "start", "work 2"]


async def test_check_does_not_call_another_order_of_threads_a_leak(monkeypatch, tmp_path):
    rollouts = count()

    async def play(self, item, ctx):
        names = ["planner", "worker"]
        for name in names if next(rollouts) % 2 else reversed(names):
            await ask(ctx.endpoint, system(name), user("x"))

    result, found = (await checked(played(Talk, play), monkeypatch, tmp_path, items=1))["siblings"]
    assert result == "warn"
    assert "the pace of threads" in found
