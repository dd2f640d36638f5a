"""How many tokens a prompt has, by every kind of policy: exact where that can be, else an estimate."""

import asyncio
import logging
from functools import partial

from environments.config import ServerConfig
from environments.policy.base import CompletionRequest
from environments.policy.scripted import ScriptedPolicy
from environments.rollout.prompt_tokens import PromptTokens, TokenEstimate
from environments.trajectory import Message, StopReason
from tests.environments.counting_server import Counting, doubled
from tests.environments.exploring import (
    RENDERER,
    TASK,
    TOKENIZER,
    WIRES,
    Exploring,
    made,
    playing,
    serving,
)
from tests.tables import cases

ESTIMATES = "estimated prompt tokens"


def fit(tokens, **settings):
    return {"condenser": ["fit_context"], "condenser_tokens": tokens, "max_tokens_per_turn": 64} | settings


class Mine:
    """A policy of the user's: the scripted agent, seen through nothing but `complete`."""

    name = "mine"

    def __init__(self):
        script = partial(Exploring.scripted_choices, None, None)
        self._plays = ScriptedPolicy(script, skill=1.0, renderer=RENDERER)

    async def complete(self, request):
        return await self._plays.complete(request)


class Counts(Mine):
    """It gives `gives` for each prompt, or what is right."""

    def __init__(self, gives=None):
        super().__init__()
        self.gives = gives
        self.asked = 0

    async def prompt_tokens(self, request):
        self.asked += 1
        return await self._plays.prompt_tokens(request) if self.gives is None else self.gives()


async def played_by(policy, **settings):
    async with made(policy=policy, **settings) as env:
        group = await env.rollout_group(TASK, 1)
    return (*group.trajectories, *group.failures)[0]


def condensations(trajectory):
    return [turn.condensed for turn in trajectory.turns if turn.condensed]


async def played(counting, *, rollouts=1, known_window=True, **settings):
    """The trajectories of rollouts one after the other, by text from a server that counts otherwise."""
    window = counting.window if known_window else None
    async with serving("chat", around=counting, **settings) as url:
        server = ServerConfig(base_url=url, model_name="scripted", server_type="chat", context_tokens=window)
        async with made(servers=[server], tokenizer_name=TOKENIZER, **settings) as env:
            groups = [await env.rollout_group(TASK, 1) for _ in range(rollouts)]
    assert all(not group.failures or "no turn" in group.failures[0].error for group in groups)
    return [trajectory for group in groups for trajectory in group.trajectories]


@cases("wire", sorted(WIRES))
async def test_what_is_counted_is_what_is_sent(wire):
    """The mock's tokenizer is ours, so that estimates are right, too."""
    async with playing(wire, **fit(600)) as env:
        group = await env.rollout_group(TASK, 2)
    for trajectory in group.trajectories:
        condensed = [turn for turn in trajectory.turns if turn.condensed]
        assert condensed
        for turn in condensed:
            assert turn.condensed.tokens_after == turn.span.start
            before = RENDERER.prompt_ids(before_condensing(trajectory, turn), trajectory.tools)
            assert turn.condensed.tokens_before == len(before)


def before_condensing(trajectory, turn):
    """What the model would have seen: what it saw before, its turn and the answers to it."""
    earlier = trajectory.turns[turn.index - 1]
    at = len(trajectory.prompt) + sum(len(each.messages) for each in trajectory.turns[: earlier.index])
    said = trajectory.messages[:at]
    parts = [said] if earlier.context is None else [said[kept.start : kept.end] for kept in earlier.context]
    return [*(message for part in parts for message in part), *earlier.messages]


@cases("fixed", [0, 300], ids=["plain", "hidden-prompt"])
@cases("ratio", [0.5, 1.0, 1.8])
async def test_no_prompt_is_sent_that_the_budget_or_the_window_does_not_hold(ratio, fixed):
    counting = Counting(ratio=ratio, fixed=fixed, window=1_400)
    for trajectory in await played(counting, rollouts=3, **fit(1_300)):
        assert trajectory.stop_reason is StopReason.COMPLETED
    assert counting.refused == 0
    assert max(counting.prompts) <= 1_300


async def test_a_calibrated_budget_is_used():
    counting = Counting(ratio=0.5)
    settings = fit(600)
    await played(counting, rollouts=2, **settings)
    assert max(counting.prompts) > 500


async def test_of_a_server_without_counts_prompts_are_taken_as_longer():
    counting = Counting(ratio=1.25, counts=False)
    (trajectory,) = await played(counting, **fit(700))
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert max(counting.prompts) <= 700


async def test_estimates_are_told_once_and_marked(caplog):
    with caplog.at_level(logging.WARNING):
        trajectories = await played(Counting(ratio=1.2), rollouts=2, **fit(700))
    assert sum(ESTIMATES in record.message for record in caplog.records) == 1
    assert {each.is_estimate for trajectory in trajectories for each in condensations(trajectory)} == {True}


async def test_a_prompt_that_a_server_refuses_as_too_long_raises_the_estimate():
    """Its window is smaller than the budget, and nobody knows it."""
    counting = Counting(ratio=1.0, window=550)
    trajectories = await played(counting, rollouts=8, known_window=False, **fit(760))
    assert trajectories[0].stop_reason is StopReason.CONTEXT_OVERFLOW
    assert trajectories[-1].stop_reason is StopReason.COMPLETED


async def test_of_a_server_that_gives_ids_the_row_is_known_and_the_rest_is_corrected():
    settings = fit(1_300, max_tokens_per_turn=128)
    async with serving("chat", around=doubled, **settings) as url:
        server = ServerConfig(base_url=url, model_name="scripted", server_type="chat")
        async with made(servers=[server], **settings) as env:
            groups = [await env.rollout_group(TASK, 1) for _ in range(2)]
    for trajectory in (each for group in groups for each in group.trajectories):
        assert trajectory.exact
        starts = [turn.span.start for turn in trajectory.turns]
        assert 1_100 < max(starts) <= 1_300
        assert all(each.tokens_before > 1_300 for each in condensations(trajectory))


@cases(
    ("policy", "is_estimate"),
    [(Mine(), True), (Counts(), False), (Counts(lambda: None), True)],
    ids=["does not count", "counts", "does not know"],
)
async def test_a_policy_of_the_users_counts_itself_or_is_counted_by_an_estimate(policy, is_estimate):
    trajectory = await played_by(policy, **fit(600))
    assert {each.is_estimate for each in condensations(trajectory)} == {is_estimate}
    assert max(turn.span.start for turn in trajectory.turns) <= 600


async def test_nothing_is_counted_without_a_condenser():
    policy = Counts()
    await played_by(policy)
    assert policy.asked == 0


def raises():
    raise KeyError("no tokenizer")


@cases(
    ("gives", "says"),
    [
        (lambda: -1, "prompt_tokens gave -1"),
        (lambda: True, "prompt_tokens gave True"),
        (lambda: 3.0, "prompt_tokens gave 3.0"),
        (lambda: "many", "prompt_tokens gave 'many'"),
        (raises, "no tokenizer"),
    ],
    ids=["negative", "bool", "float", "text", "raises"],
)
async def test_a_count_that_is_none_costs_its_rollout_and_names_the_policy(gives, says):
    failure = await played_by(Counts(gives), **fit(600))
    assert says in failure.error


async def test_a_count_that_hangs_ends_with_the_limit_of_hooks():
    class Hangs(Mine):
        async def prompt_tokens(self, request):
            await asyncio.Event().wait()

    failure = await played_by(Hangs(), **fit(600, hook_timeout_s=0.2))
    assert "took longer than 0.2 s" in failure.error


async def test_a_text_is_counted_by_its_beginning_where_it_is_huge():
    count = PromptTokens(Mine(), TokenEstimate(RENDERER), None)
    text = "0123456789 and so on, " * 50_000
    assert abs(await count.of_text(text) / len(text) - await count.of_text(text[:22_000]) / 22_000) < 1e-3


async def test_a_prompt_that_no_row_holds_is_not_rendered():
    count = PromptTokens(Mine(), TokenEstimate(RENDERER), None)
    long = Message(role="user", content="x" * 1_000_000)
    request = CompletionRequest(messages=(long,), max_row_tokens=1_000)
    assert (await count.of(request)).tokens == 1_000_000
