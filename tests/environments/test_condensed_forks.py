"""Rows that fork beside condensers, each with its own cause; what the model saw is the row all the same."""

from dataclasses import replace

import pytest

from environments.config import ServerConfig
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, CannotExtendError, ChatMLRenderer
from environments.policy.scripted import Choice
from tests.environments.exploring import TASK, Exploring, made, serving
from tests.environments.policy.token_server import token_policy
from tests.environments.test_condensed_row_contract import CONDENSED
from tests.environments.test_row_contract import check_masks, contexts


class Forgetful(ChatMLRenderer):
    """A template that drops the reasoning of earlier turns."""

    def prompt_ids(self, messages, tools):
        return super().prompt_ids([replace(each, reasoning=None) for each in messages], tools)


class Stubborn(Forgetful):
    """One that cannot go on after a turn either."""

    def extend(self, sampled, messages, tools=()):
        raise CannotExtendError("no way to go on")


class Thinking(Exploring):
    """The agent thinks before it acts, and before it sums up."""

    def scripted_choices(self, item, messages, tools, skill):
        return thought(super().scripted_choices(item, messages, tools, skill))

    def scripted_summary(self, item, messages, tools, skill):
        return thought(super().scripted_summary(item, messages, tools, skill))


def thought(choices):
    thoughts = "Where was I? " * 8
    return [
        Choice(probability=each.probability, message=replace(each.message, reasoning=thoughts))
        for each in choices
    ]


async def held(env, renderer, causes):
    """Hold rollouts to the contract; the second of the causes of their forks is the condenser's."""
    group = await env.rollout_group(TASK, 2)
    assert group.failures == ()
    check_masks(env, group)
    for trajectory in group.trajectories:
        assert trajectory.exact
        for turn, seen in zip(trajectory.turns, contexts(trajectory), strict=True):
            row = trajectory.rows[turn.span.row].token_ids
            assert renderer.prompt_ids(seen, trajectory.tools) == row[: turn.span.start]
            assert (turn.fork == causes[1]) == (turn.condensed is not None)
        assert {turn.fork for turn in trajectory.turns} == {None, *causes}


@pytest.mark.parametrize("condenser", ["keep_last_turns", "fit_context", "summarise"])
async def test_a_format_that_cannot_go_on_forks_for_its_own_cause(condenser):
    stubborn = Stubborn.load(str(EMBEDDED_TOKENIZER_DIR))
    settings = CONDENSED[condenser]
    async with serving("vllm", cls=Thinking, **settings) as url:
        policy = token_policy(url, ("vllm", "completions"), renderer=stubborn)
        async with made(policy=policy, cls=Thinking, **settings) as env:
            await held(env, stubborn, ["renderer: no way to go on", f"history: {condenser}"])
        await policy.aclose()


@pytest.mark.parametrize("condenser", ["keep_last_turns", "fit_context", "summarise"])
async def test_a_template_that_drops_reasoning_forks_for_its_own_cause(condenser):
    forgetful = Forgetful.load(str(EMBEDDED_TOKENIZER_DIR))
    settings = CONDENSED[condenser]
    async with serving("chat", cls=Thinking, renderer=forgetful, **settings) as url:
        server = ServerConfig(base_url=url, model_name="scripted", server_type="chat")
        async with made(servers=[server], cls=Thinking, **settings) as env:
            await held(env, forgetful, ["template", f"history: {condenser}"])
