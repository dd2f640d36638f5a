"""Branches of a rollout, played in real sandboxes."""

import itertools
import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from environments.credit import estimate
from environments.policy.scripted import Choice, call
from environments.policy.second_models import TextAnswer
from environments.record.group_line import decode_group, encode_group
from environments.record.totals import Summary
from environments.rollout.context import keep_last_turns
from environments.rollout.items.tasks import past_group
from environments.rollout.lifecycle.weight_versions import withhold
from environments.run.group_source import OwnEvaluations
from environments.trainers.completion_columns import CompletionColumns
from environments.trajectory import IGNORED, StopReason
from environments.wire.views import token_advantages
from tests.environments.rollout.count_up import CountUp
from tests.environments.write_file import ScalarWriteFile, WriteFile, by_sibling, made
from tools.errors import UsageError
from tools.mcp.mcp_toolset import MCPToolset


async def group_of_one_item(cls=CountUp, **settings):
    settings = {"group_size": 6, "branches": 3, "scripted_skill": 0.6, "seed": 1, **settings}
    env = made(cls, **settings)
    async with env:
        return await env.run_group(env.tasks()[0])


def families(credited):
    group = credited.group
    return [[group.trajectories[index] for index in family] for family in group.families]


def tokens_of(turn):
    return turn.span.end - turn.span.start


def text_of(turn):
    return turn.tool_results[0].content


async def test_continuations_share_what_came_before_their_turn_and_nothing_after_it():
    credited = await group_of_one_item(branch_at=2)

    for trunk, *branches in families(credited):
        assert len(branches) == 2
        for branch in branches:
            assert (branch.trunk, branch.branch_turn) == (trunk.sibling, 1)
            assert branch.turns[0].messages == trunk.turns[0].messages
            assert text_of(branch.turns[1]).startswith(text_of(trunk.turns[0]).partition("[")[0])
    said = [text_of(each.turns[-1]) for family in families(credited) for each in family]
    assert len(set(said)) > 2


async def test_a_branch_trains_its_own_turns_alone_on_the_trunk_s_tokens():
    credited = await group_of_one_item(branch_at=3)
    rows = dict(
        zip(
            [each.sibling for each in credited.group.trajectories],
            token_advantages(credited).rows,
            strict=True,
        )
    )

    for trunk, *branches in families(credited):
        shared = trunk.turns[1].span.end
        for each in branches:
            assert rows[each.sibling].tokens[:shared] == rows[trunk.sibling].tokens[:shared]
            assert rows[each.sibling].logprobs[:shared] == rows[trunk.sibling].logprobs[:shared]
            assert set(rows[each.sibling].mask[:shared]) == {IGNORED}
            assert set(rows[each.sibling].advantages[:shared]) == {0.0}


async def test_the_turn_after_the_first_that_scored_below_1_is_branched():
    credited = await group_of_one_item()

    for trunk, *branches in families(credited):
        wrong = [turn for turn, reward in enumerate(trunk.rewards.turns[:-1]) if reward < 1.0]
        assert trunk.branch_turn == (wrong[0] + 1 if wrong else None)
        assert len(branches) == (2 if wrong else 0)


async def test_a_drawn_turn_depends_on_the_seed_alone():
    first, again = [await group_of_one_item(branch_at="draw", max_turns=4) for _ in range(2)]
    other = await group_of_one_item(branch_at="draw", max_turns=4, seed=5, scripted_skill=0.1)

    turns = [[trunk.branch_turn for trunk, *_ in families(each)] for each in (first, again, other)]
    assert turns[0] == turns[1] != turns[2]


async def test_the_hook_is_asked_before_each_request_until_it_chooses():
    asked = []

    class Asked(CountUp):
        def branch_at(self, item, ctx):
            asked.append((len(ctx.turn_scores), ctx.messages[-1].role))
            return len(ctx.turn_scores) == 2

    await group_of_one_item(Asked, group_size=4, branches=2)

    assert sorted(asked) == [(turn, "user") for turn in (0, 1, 2) for _ in range(2)]


@pytest.mark.parametrize(("room", "branches"), [(True, 2), (False, 0)])
async def test_a_turn_that_the_text_before_leaves_no_room_for_is_no_branch_turn(room, branches):
    first = (await group_of_one_item(branch_at=1, max_turns=1)).group.trajectories[0]
    size = len(first.rows[0].token_ids)

    credited = await group_of_one_item(branch_at=2, max_token_length=size + 200 * room)

    for trunk, *others in families(credited):
        assert len(trunk.turns) > 1 if room else trunk.stop_reason is StopReason.CONTEXT_OVERFLOW
        assert (trunk.branch_turn, len(others)) == (1 if room else None, branches)


async def test_a_branch_turn_whose_own_completion_is_too_long_keeps_its_branches():
    class Verbose(CountUp):
        def scripted_choices(self, item, messages, tools, skill):
            is_second = sum(message.role == "tool" for message in messages) == 1
            long = call("terminal", {"command": f"echo {'word ' * 500}"})
            others = super().scripted_choices(item, messages, tools, skill)
            is_long = is_second and next(second_turns) in (0, 2, 4, 6, 8)
            return [Choice(probability=1.0, message=long)] if is_long else others

    second_turns = itertools.count()  # the first 8 are those of the trunks
    credited = await group_of_one_item(Verbose, branch_at=2, max_token_length=1000, group_size=24)

    discarded = [own for own in families(credited) if len(own[0].turns) == 1]
    assert {own[0].stop_reason for own in discarded} == {StopReason.CONTEXT_OVERFLOW}
    assert {(own[0].branch_turn, len(own)) for own in discarded} == {(1, 3)}
    assert any(len(branch.turns) > 1 for own in discarded for branch in own[1:])


async def test_an_evaluation_chooses_no_branch_turn():
    class Asked(CountUp):
        def branch_at(self, item, ctx):
            raise AssertionError("nothing branches in an evaluation")

    env = made(Asked, group_size=4, branches=2, eval_rollouts=2)
    async with env.opened(evaluation=True):
        done = await OwnEvaluations(env, nullcontext).run(env.tasks()[0])
        by_hand = await env.run_group(env.tasks()[0])

    assert [each.branch_turn for each in done.group.trajectories] == [None] * 2
    assert [each.branch_turn for each in by_hand.group.trajectories] == [None] * 4


async def test_a_branch_whose_replay_differs_is_refused_and_counted_apart():
    class Clocked(CountUp):
        def scripted_choices(self, item, messages, tools, skill):
            done = sum(message.role == "tool" for message in messages)
            nonce = "date +%N; " if done == 0 else ""
            return [Choice(probability=1.0, message=call("terminal", {"command": f"{nonce}echo {done + 1}"}))]

    credited = await group_of_one_item(Clocked, branch_at=2, group_size=4, branches=2, min_group_size=2)

    assert [(each.sibling, each.trunk, each.error) for each in credited.group.failures] == [
        (sibling, trunk, "RolloutError: branch refused, since its replay differs in results: turn 1")
        for sibling, trunk in ((2, 0), (3, 1))
    ]
    assert (credited.status, past_group(credited).lost) == ("no_credit", 0)


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        ("respond", "replies: turn 1"),
        ("score_turn", "score_turn: turn 1"),
        ("state_key", "state_key: turn 1"),
        ("format_prompt", "another prompt"),
    ],
)
async def test_a_hook_that_gives_something_else_refuses_its_branch(hook, what):
    drawn = random.Random(3)
    given = {
        "respond": lambda self, item, turn, ctx: f"{drawn.random()}",
        "score_turn": lambda self, item, turn, ctx: drawn.random(),
        "state_key": lambda self, item, turn, ctx: f"{drawn.random()}",
        "format_prompt": lambda self, item: f"{drawn.random()}",
    }
    changed = type("Changed", (CountUp,), {hook: given[hook]})

    credited = await group_of_one_item(changed, branch_at=2, group_size=4, branches=2)

    assert len(credited.group.failures) == 2
    assert all(what in each.error for each in credited.group.failures)


async def test_a_simulated_user_answers_the_replay_as_it_answered_the_trunk():
    class Talked(CountUp):
        async def respond(self, item, turn, ctx):
            answer = await ctx.user_model.ask(ctx.messages[-1:], seed=turn.index)
            return await super_respond(self, turn, ctx, answer.text)

        def scripted_user(self, item, messages):
            return f"word {random.random()}"

    async def super_respond(env, turn, ctx, text):
        CountUp.respond(env, None, turn, ctx)
        return text

    credited = await group_of_one_item(Talked, branch_at=2, group_size=4, branches=2)

    assert credited.group.failures == ()
    for trunk, branch in families(credited):
        assert branch.turns[0].replies == trunk.turns[0].replies
        assert branch.turns[2].replies != trunk.turns[2].replies


async def test_a_question_asked_twice_in_equal_words_has_its_answers_in_order():
    class Repeated(CountUp):
        async def respond(self, item, turn, ctx):
            CountUp.respond(self, item, turn, ctx)
            return (await ctx.user_model.ask(ctx.messages[:1], seed=turn.index)).text

        def scripted_user(self, item, messages):
            return f"word {random.random()}"

    credited = await group_of_one_item(Repeated, branch_at=4, group_size=4, branches=2)

    assert credited.group.failures == ()
    for trunk, branch in families(credited):
        assert [turn.replies for turn in branch.turns[:3]] == [turn.replies for turn in trunk.turns[:3]]


async def test_a_refusal_names_the_first_difference_also_long_before_the_branch_turn():
    class Drawn(CountUp):
        def respond(self, item, turn, ctx):
            super().respond(item, turn, ctx)
            return f"{random.random()}"

    credited = await group_of_one_item(Drawn, branch_at=4, group_size=4, branches=2)

    assert all("replies: turn 1" in each.error for each in credited.group.failures)
    assert len(credited.group.failures) == 2


async def test_a_branch_does_not_count_the_cost_of_its_trunk_s_answers_again():
    class Paid(CountUp):
        def prepare(self, item, sandbox, ctx):
            ctx.user_model.model = PaidModel()
            return []

        async def respond(self, item, turn, ctx):
            CountUp.respond(self, item, turn, ctx)
            return (await ctx.user_model.ask(ctx.messages[-1:], seed=turn.index)).text

    class PaidModel:
        model = "paid"

        def sampling(self, seed):
            return {}

        async def answer(self, messages, *, seed):
            return TextAnswer(text=f"{seed}", usage={"prompt_tokens": 5})

    credited = await group_of_one_item(Paid, branch_at=3, group_size=4, branches=2)

    for trunk, branch in families(credited):
        assert [each.usage.get("prompt_tokens") for each in trunk.user_calls] == [5] * 4
        assert [(each.answer, each.usage) for each in branch.user_calls[:2]] == [("0", {}), ("1", {})]


async def test_the_summary_counts_a_replayed_turn_once_and_means_of_trunks():
    credited = await group_of_one_item(branch_at=3)
    trunks = [each for each in credited.group.trajectories if each.trunk is None]

    summary = Summary()
    summary.add(credited)
    numbers = summary.values()
    by_turn = numbers["by_turn"]

    assert numbers["turns"]["count"] == numbers["score"]["count"] == 2
    assert [each["tool_calls"] for each in by_turn] == [2, 2, 6, 6]
    assert [each["tokens"]["count"] for each in by_turn] == [2, 2, 6, 6]
    assert [each["advantage"]["count"] for each in by_turn] == [2, 2, 6, 6]
    assert [each["rollouts"] for each in by_turn] == [2, 2, 2, 2]
    assert [each["reward"]["mean"] for each in by_turn] == [
        sum(each.rewards.turns[turn] for each in trunks) / 2 for turn in range(4)
    ]


async def test_a_replay_forks_its_rows_where_a_condenser_did():
    class Condensed(CountUp):
        condenser = keep_last_turns(1)

    credited = await group_of_one_item(Condensed, branch_at=3)

    for trunk, *branches in families(credited):
        assert (len(trunk.rows), len(branches)) == (3, 2)
        for each in branches:
            assert each.rows[0] == trunk.rows[0]
            assert [turn.fork for turn in each.turns] == [turn.fork for turn in trunk.turns]
            assert [turn.context for turn in each.turns[:2]] == [turn.context for turn in trunk.turns[:2]]


async def test_score_group_compares_one_continuation_of_each_trunk():
    shown = []

    class Compared(CountUp):
        def score_group(self, item, trajectories, ctx):
            shown.append([each.sibling for each in trajectories])
            return [0.5] * len(trajectories)

    credited = await group_of_one_item(Compared, branch_at=2)

    assert shown == [[0, 1], [2, 4], [3, 5]]
    assert [each.rewards.group for each in credited.group.trajectories] == [0.5] * 6


async def test_a_record_recredits_branches_exactly():
    credited = await group_of_one_item(branch_at=2)

    read = decode_group(encode_group(credited), "record", 1)

    assert [(each.trunk, each.branch_turn) for each in read.group.trajectories] == [
        (each.trunk, each.branch_turn) for each in credited.group.trajectories
    ]
    assert estimate("turn_return", read.group) == [list(row) for row in credited.advantages]


async def test_a_branch_is_as_old_as_the_turns_that_it_sampled():
    credited = await group_of_one_item(branch_at=3)

    def dated(each):
        versions = ["old" if turn.index < 2 else "new" for turn in each.turns]
        pairs = zip(each.turns, versions, strict=True)
        return replace(each, turns=tuple(replace(turn, weight_version=one) for turn, one in pairs))

    group = replace(credited.group, trajectories=tuple(map(dated, credited.group.trajectories)))

    left = withhold(replace(credited, group=group), lambda versions: "old" if "old" in versions else None)

    assert all((each.stale is None) == (each.trunk is not None) for each in left.group.trajectories)
    assert [any(row) for row in left.advantages][:2] == [False, False]
    assert left.advantages[2:] == credited.advantages[2:]


async def test_a_trainer_of_completions_gets_a_branch_with_its_prefix_masked():
    credited = await group_of_one_item(branch_at=2)

    columns = CompletionColumns()
    columns.add_group(credited, rows=6)

    each = credited.group.trajectories
    assert list(map(sum, columns.tool_mask)) == [sum(map(tokens_of, one.own_turns)) for one in each]
    weights = [
        sum(advantage * tokens_of(turn) for turn, advantage in zip(one.turns, row, strict=True))
        for one, row in zip(each, credited.advantages, strict=True)
    ]
    assert list(map(sum, columns.advantages)) == pytest.approx(weights)


async def test_a_scalar_environment_trains_branches_by_advantages():
    class Scalar(ScalarWriteFile):
        default_estimator = "rloo"
        compute_reward = staticmethod(by_sibling)

    credited = await group_of_one_item(Scalar, branch_at=1, group_size=4, branches=2, scripted_skill=0.5)

    assert credited.status == "ok"
    assert all(row.advantages is not None for row in token_advantages(credited).rows)


class Recorded(CountUp):
    async def play(self, item, ctx):
        """Never called."""


class Held(CountUp):
    def prepare(self, item, sandbox) -> Iterator[list]:
        yield []


class WithoutHook(WriteFile):
    """Chooses no turn."""


class Served(CountUp):
    tools = (MCPToolset(name="held", command="server"),)


@pytest.mark.parametrize(
    ("cls", "settings", "why"),
    [
        (Served, {}, "the state of an MCP server is not known"),
        (Recorded, {}, "a recorded agent owns its loop"),
        (Held, {}, "prepare is a generator"),
        (WithoutHook, {}, "or write branch_at"),
        (CountUp, {"estimator": "grpo"}, "grpo does not credit branches of a rollout; possible: turn_return"),
        (CountUp, {"branch_at": 5, "max_turns": 4}, "--env.branch_at 5 is beyond --env.max_turns 4"),
        (CountUp, {"group_size": 7}, "multiple of branches, and at least 6"),
        (CountUp, {"group_size": 3}, "multiple of branches, and at least 6"),
    ],
)
def test_what_cannot_branch_is_refused_when_the_environment_is_built(cls, settings, why):
    with pytest.raises(UsageError, match=why):
        made(cls, **{"group_size": 6, "branches": 3, **settings})


def test_a_parameter_of_the_estimator_given_as_text_can_branch():
    env = made(CountUp, group_size=6, branches=3, estimator_params={"outcome_weight": "3"})

    assert env.lifecycle.parts.estimator_params == {"outcome_weight": 3}
